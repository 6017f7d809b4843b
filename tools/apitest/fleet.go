package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/tools/process"
	"github.com/numavisor/numavisor/tools/simhost"
)

const (
	hosts, spares, vms = 3, 3, 6
	// machine is the shape of each simulated host.
	machine = "nodes:2 cores:8 memory:16G huge:2M=512"
	// readyTime is how long the fleet may take until all its hosts and VMs are there.
	readyTime = time.Minute
	// lookEvery is how often the tool makes again what a run has removed.
	lookEvery = 500 * time.Millisecond
)

func hostName(i int) string { return fmt.Sprintf("host%d", i) }
func vmName(i int) string   { return fmt.Sprintf("vm%d", i) }

// aFleet is a server with simulated hosts.
type aFleet struct {
	folder, address string
	ca              []byte
	server          *process.Program
	admin           *fleetapi.Client // of a user that no run changes
	end             context.CancelFunc
	daemons         sync.WaitGroup
	joined, looks   int // joined names the folders of spare hosts
	broken          error
}

// startFleet makes a fleet and returns when its VMs run.
func startFleet(ctx context.Context, program, folder string) (*aFleet, error) {
	f := &aFleet{folder: folder}
	if err := f.startServer(ctx, program); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(ctx)
	f.end = end
	ready, cancel := context.WithTimeout(life, readyTime)
	defer cancel()
	err := until(ready, func() error { _, err := f.admin.Me(ready); return err })
	for i := range hosts {
		if err == nil {
			err = f.startHost(life, hostName(i))
		}
	}
	if err == nil {
		err = until(ready, func() error { return f.allRun(ready) })
	}
	if err != nil {
		return nil, errors.Join(err, f.stop())
	}
	f.daemons.Go(func() { f.restore(life) })
	return f, nil
}

// until repeats something until it succeeds.
func until(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// startServer makes the server's folder and starts it.
func (f *aFleet) startServer(ctx context.Context, program string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f.address = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "init", "--data", f.path("server"), "--address",
		f.address).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s init: %w: %s", program, err, bytes.TrimSpace(out))
	}
	token := ""
	for line := range strings.Lines(string(out)) {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "nvu_") {
			token = t
		}
	}
	if f.ca, err = os.ReadFile(f.path("server", "ca.pem")); err != nil {
		return err
	}
	if f.admin, err = f.client(token); err != nil {
		return err
	}
	f.server = &process.Program{Name: "server", Log: f.path("server.log"),
		Args: []string{program, "--data", f.path("server"), "--listen", f.address}}
	return f.server.Start() //nolint:contextcheck // it ends with this process
}

func (f *aFleet) client(token string) (*fleetapi.Client, error) {
	return fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.address, Token: token, CA: f.ca})
}

// stop ends all. It fails if the server has ended by itself, or has logged a failure.
func (f *aFleet) stop() error {
	runs := f.server.Runs()
	if f.end != nil {
		f.end()
	}
	f.daemons.Wait()
	f.server.Quit()
	log, err := os.ReadFile(f.path("server.log"))
	if !runs {
		err = errors.Join(err, errors.New("the server has ended by itself"))
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, "panic") {
			err = errors.Join(err, errors.New("the server's log: "+strings.TrimSpace(line)))
		}
	}
	return errors.Join(err, f.broken)
}

// member makes a token for a host, and what it joins with.
func (f *aFleet) member(ctx context.Context, name string) (agent.JoinRequest, error) {
	made, err := f.admin.CreateJoin(ctx, fleetapi.JoinCreate{})
	return agent.JoinRequest{Server: f.address, Token: made.Token, Fingerprint: made.Fingerprint, Host: name,
		ID: "id-" + name}, err
}

// startHost lets a host join, and starts its daemon.
func (f *aFleet) startHost(ctx context.Context, name string) error {
	join, err := f.member(ctx, name)
	if err != nil {
		return err
	}
	folder := f.path(name)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	on, err := simhost.Join(fake.MustNew(machine), folder)
	if err != nil {
		return err
	}
	log, err := os.Create(f.path(name + ".log"))
	if err != nil {
		return err
	}
	a, err := simhost.Agent(ctx, join, agent.Options{Folder: folder, Host: on, Program: "apitest",
		Loads: func(ctx context.Context) (inventory.Host, error) { return on.Observe(ctx) }, Migrations: refusal{name},
		Log: slog.New(slog.NewTextHandler(log, nil)), Look: time.Second, Grace: 100 * time.Millisecond,
		LeastWait: 100 * time.Millisecond, MostWait: time.Second})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	f.daemons.Go(func() {
		defer log.Close()
		if err := a.Run(ctx); err != nil && ctx.Err() == nil {
			f.broken = fmt.Errorf("the daemon of %s has ended: %w", name, err)
			f.end()
		}
	})
	return nil
}

// refusal is a simulated host's part in migrations: as target it has no room, as source its VM stays. So each
// migration ends.
type refusal struct{ host string }

// Act implements agent.Migrations.
func (r refusal) Act(
	_ context.Context, vm *fleet.VM, _ func(fleet.MigrationStatus),
) (part migrate.Part, has bool, err error) {
	m := vm.Migration
	if m == nil {
		return part, false, nil
	}
	part.Status = fleet.MigrationStatus{Began: m.Began, Message: "a simulated host"}
	switch target := m.To == r.host; {
	case target && m.Cancel == "":
		part.Status.Phase = fleet.MigrationRefused
	case target:
		part.Status.Phase = fleet.MigrationGivenBack
	case m.Cancel != "":
		part.Status.Phase = fleet.MigrationStays
	}
	return part, true, nil
}

// Forgotten implements agent.Migrations.
func (refusal) Forgotten(context.Context, string) error { return nil }

// Open implements agent.Migrations.
func (refusal) Open() ([]string, error) { return nil, nil }

// joinSpare lets a host join that has no daemon.
func (f *aFleet) joinSpare(ctx context.Context, name string) error {
	join, err := f.member(ctx, name)
	if err == nil {
		f.joined++
		_, err = agent.Join(ctx, f.path(fmt.Sprintf("member%d", f.joined)), join)
	}
	return err
}

// restore makes again what a run has removed, until ctx ends.
func (f *aFleet) restore(ctx context.Context) {
	for ctx.Err() == nil {
		_ = f.complete(ctx) // it is repeated
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// complete makes hosts and VMs that are missing, and lets hosts take VMs again.
func (f *aFleet) complete(ctx context.Context) error {
	var errs []error
	all, err := f.admin.Hosts(ctx)
	if err != nil {
		return err
	}
	known := map[string]fleetapi.Host{}
	for i := range all {
		known[all[i].Name] = all[i]
	}
	for i := range spares {
		if _, has := known[spare(i)]; !has {
			errs = append(errs, f.joinSpare(ctx, spare(i)))
		}
	}
	for i := range hosts {
		if known[hostName(i)].Cordoned {
			_, err := f.admin.Uncordon(ctx, hostName(i))
			errs = append(errs, err)
		}
	}
	f.looks++ // the change is an event for those who follow events
	_, err = f.admin.EditHost(ctx, hostName(0), fleetapi.HostEdit{
		Labels: &map[string]string{"looks": strconv.Itoa(f.looks)}}, fleetapi.Change{})
	errs = append(errs, err)
	for i := range vms {
		if _, err := f.admin.VM(ctx, vmName(i)); problemType(err) == fleetapi.ProblemNotFound {
			spec := guest.Spec{Name: vmName(i), VCPUs: 1 + i%2, Memory: topology.GiB}
			_, err := f.admin.CreateVM(ctx, fleetapi.VMCreate{Project: fleetapi.DefaultProject, Spec: spec,
				Labels: map[string]string{"tier": "web"}}, fleetapi.Change{})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func problemType(err error) fleetapi.ProblemType {
	if p, is := errors.AsType[*fleetapi.Problem](err); is {
		return p.Type
	}
	return ""
}

// allRun makes the fleet complete, and fails while a VM does not run.
func (f *aFleet) allRun(ctx context.Context) error {
	if err := f.complete(ctx); err != nil {
		return err
	}
	all, err := f.admin.VMs(ctx, fleetapi.Filter{})
	if err != nil {
		return err
	}
	for i := range all {
		if v := &all[i]; v.Run == fleet.Running && v.State != fleetapi.VMRunning {
			return fmt.Errorf("VM %s is %s", v.Name, v.State)
		}
	}
	return nil
}
