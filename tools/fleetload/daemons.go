package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/lab/cputime"
	"github.com/numavisor/numavisor/tools/process"
	"github.com/numavisor/numavisor/tools/simhost"
)

// daemonsArgs are what the process of the daemons needs.
type daemonsArgs struct {
	Folder, Address, Token string
	CA                     []byte
	Hosts, VMs, Daemons    int
}

// progress is what that process writes every second.
type progress struct {
	Joined    int
	Connected int
	Reports   int64 // of loads that were sent
	Failed    string
}

// asDaemons runs the process of the daemons, if this is it.
func asDaemons(args []string) (is bool, err error) {
	if len(args) != 3 || args[1] != "-daemons-of" {
		return false, nil
	}
	var a daemonsArgs
	if err := json.Unmarshal([]byte(args[2]), &a); err != nil {
		return true, err
	}
	return true, a.run(context.Background())
}

func progressFile(folder string) string { return filepath.Join(folder, "progress.json") }

// daemons is the process of the simulated daemons.
type daemons struct {
	program *process.Program
	folder  string
}

// startDaemons starts the daemons and returns when all are connected. Their files are in memory: the disk is the
// server's.
func (s *served) startDaemons(ctx context.Context, o *options) (*daemons, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in := s.folder
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		in = "/dev/shm"
	}
	d := &daemons{}
	if d.folder, err = os.MkdirTemp(in, "fleetload"); err != nil {
		return nil, err
	}
	text, err := json.Marshal(daemonsArgs{Folder: d.folder, Address: s.address, Token: s.token, CA: s.ca,
		Hosts: o.hosts, VMs: o.vms, Daemons: o.daemons})
	if err != nil {
		return nil, err
	}
	d.program = &process.Program{Name: "daemons", Log: filepath.Join(s.folder, "daemons.log"),
		Args: []string{self, "-daemons-of", string(text)}}
	if err := d.program.Start(); err != nil { //nolint:contextcheck // it ends with this process
		return nil, err
	}
	for last, moved := 0, time.Now(); ; time.Sleep(200 * time.Millisecond) {
		p, err := d.progress()
		switch {
		case err != nil || ctx.Err() != nil:
			d.stop()
			return nil, errors.Join(err, ctx.Err())
		case p.Connected == o.daemons:
			return d, nil
		case p.Joined+p.Connected != last:
			last, moved = p.Joined+p.Connected, time.Now()
		case time.Since(moved) > 2*time.Minute || !d.program.Runs():
			d.stop()
			return nil, fmt.Errorf("of %d daemons, %d have joined and %d are connected: see daemons.log", o.daemons,
				p.Joined, p.Connected)
		}
	}
}

// progress returns how far the daemons are.
func (d *daemons) progress() (p progress, err error) {
	text, err := os.ReadFile(progressFile(d.folder))
	if errors.Is(err, os.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && p.Failed != "" {
		err = errors.New(p.Failed)
	}
	return p, err
}

func (d *daemons) stop() {
	d.program.Kill()
	_ = os.RemoveAll(d.folder) // it is temporary
}

// joinsAtOnce is how many daemons join at the same time.
const joinsAtOnce = 8

// fleetOf is the daemons in their process.
type fleetOf struct {
	daemonsArgs
	sample  *drawn
	users   *fleetapi.Client
	reports atomic.Int64

	mu     sync.Mutex
	agents []*agent.Agent
	failed error
}

// run lets all daemons join, and runs them until it is killed.
func (a *daemonsArgs) run(ctx context.Context) error {
	if err := raiseFiles(a.Daemons); err != nil {
		return err
	}
	sample, err := drawFleet(ctx, a.Hosts, a.VMs)
	if err != nil {
		return err
	}
	f := &fleetOf{daemonsArgs: *a, sample: sample}
	f.users, err = fleetapi.NewClient(fleetapi.Config{URL: "https://" + a.Address, Token: a.Token, CA: a.CA})
	if err != nil {
		return err
	}
	slots := make(chan struct{}, joinsAtOnce)
	go func() {
		for i := range a.Daemons {
			slots <- struct{}{}
			go func() {
				err := f.start(ctx, i)
				<-slots
				if err != nil {
					f.mu.Lock()
					f.failed = errors.Join(f.failed, fmt.Errorf("host %s: %w", hostName(i), err))
					f.mu.Unlock()
				}
			}()
		}
	}()
	for ; ; time.Sleep(time.Second) {
		if err := f.write(); err != nil {
			return err
		}
	}
}

// write writes the progress.
func (f *fleetOf) write() error {
	f.mu.Lock()
	agents, failed := slices.Clone(f.agents), f.failed
	f.mu.Unlock()
	p := progress{Joined: len(agents), Reports: f.reports.Load()}
	for _, a := range agents {
		if a.Status().Connected {
			p.Connected++
		}
	}
	if failed != nil {
		p.Failed = failed.Error()
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return renameio.WriteFile(progressFile(f.Folder), text, 0o600)
}

// start lets a daemon join, and runs it.
func (f *fleetOf) start(ctx context.Context, i int) error {
	name := hostName(i)
	folder := filepath.Join(f.Folder, name)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	h, err := f.sample.simulated(ctx, i)
	if err != nil {
		return err
	}
	on, err := simhost.Join(h, folder)
	if err != nil {
		return err
	}
	l := &loads{host: on, count: &f.reports, random: rand.New(rand.NewPCG(4, uint64(i)))}
	a, err := f.join(ctx, name, agent.Options{Folder: filepath.Join(folder, "fleet"), Host: on, Loads: l.next,
		Program: "fleetload", Grace: 100 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.agents = append(f.agents, a)
	f.mu.Unlock()
	go func() {
		if err := a.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
		}
	}()
	return nil
}

// joinTries is how often a daemon tries to join, a second apart: a server may be too busy, as an operator would see.
const joinTries = 30

// join lets a daemon join, each time with a token of its own.
func (f *fleetOf) join(ctx context.Context, name string, o agent.Options) (*agent.Agent, error) {
	for n := 1; ; n++ {
		made, err := f.users.CreateJoin(ctx, fleetapi.JoinCreate{})
		if err == nil {
			var a *agent.Agent
			a, err = simhost.Agent(ctx, agent.JoinRequest{Server: f.Address, Token: made.Token,
				Fingerprint: made.Fingerprint, Host: name, ID: hostID(name)}, o)
			if err == nil {
				return a, nil
			}
		}
		if n == joinTries {
			return nil, err
		}
		time.Sleep(time.Second)
	}
}

// loads makes the loads of a host up. All of them differ from those before: the largest report that such a host sends.
// No VM waits for CPUs long enough to be moved.
type loads struct {
	host   *operate.Host
	count  *atomic.Int64
	random *rand.Rand
	seen   inventory.Host
}

// observeEvery is how often the daemon of a real host observes it.
const observeEvery = 30 * time.Second

// next returns the host with its loads. Only one goroutine of the agent calls it.
func (l *loads) next(ctx context.Context) (inventory.Host, error) {
	if now := time.Now(); now.Sub(l.seen.Taken) > observeEvery {
		seen, err := l.host.Observe(ctx)
		if err != nil {
			return seen, err
		}
		l.seen = seen
	}
	out := l.seen
	out.Taken, out.Guests, out.Load = time.Now(), slices.Clone(l.seen.Guests), nil
	for i := range out.Topology.Nodes {
		out.Load = append(out.Load, inventory.NodeLoad{Node: out.Topology.Nodes[i].ID, CPU: 6 * l.random.Float64(),
			Wait: l.random.Float64() / 100})
	}
	for i := range out.Guests {
		out.Guests[i].Seen.Load = &inventory.GuestLoad{Window: 10 * time.Second, CPU: l.random.Float64(),
			Wait: l.random.Float64() / 1000}
	}
	l.count.Add(1)
	return out, nil
}

// measure measures the server while daemons report and users send requests.
func (s *served) measure(ctx context.Context, r *report, d *daemons, o *options) error {
	m, err := s.mixture(o.daemons)
	if err != nil {
		return err
	}
	type used struct {
		server, daemons time.Duration
		reports         int64
	}
	read := func() (u used, err error) {
		var errServer, errDaemons, errProgress error
		u.server, errServer = process.CPU(s.program.PID())
		u.daemons, errDaemons = process.CPU(d.program.PID())
		p, errProgress := d.progress()
		u.reports = p.Reports
		return u, errors.Join(errServer, errDaemons, errProgress)
	}
	before, err := read()
	if err != nil {
		return err
	}
	clock := cputime.Start()
	m.run(ctx, o.rate, o.time)
	after, err := read()
	if err != nil {
		return err
	}
	wall := clock.Wall().Seconds()
	server, simulated := after.server-before.server, after.daemons-before.daemons
	r.below(fmt.Sprintf("server with %d daemons that report every 5 s, CPUs used", o.daemons), server.Seconds()/wall, 1)
	r.add("  reports of loads a second", "%.0f", float64(after.reports-before.reports)/wall)
	r.add("  simulated daemons, CPUs used", "%.2f", simulated.Seconds()/wall)
	r.add("  simulated users, CPUs used", "%.2f", clock.Own().Seconds()/wall)
	r.others(clock, server+simulated)
	if err := m.report(r); err != nil {
		return err
	}
	return r.memory(fmt.Sprintf("with these %d daemons", o.daemons), s.program.PID())
}
