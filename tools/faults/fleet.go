package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// aFleet is the processes of a run.
type aFleet struct {
	folder, shared string
	net            network
	servers, hosts []*process.Program
	// members are those of an external cluster of etcd; none: the servers are the members. endpoints are their URLs.
	members     []*process.Program
	endpoints   []string
	serverCount int
	clients     []*fleetapi.Client
	token, ca   string
	only        string // how the names of faults begin
	migrates    bool   // users migrate VMs
}

// size says of how many processes a fleet is, and which programs they run. hostPath is the program of the hosts;
// empty: this one.
type size struct {
	servers, members, hosts int
	serverPath, hostPath    string
}

// make makes a fleet, each server and member with a small disk of its own where that is possible, and starts it.
func (f *aFleet) make(ctx context.Context, of size) error {
	f.serverCount = of.servers
	if err := f.net.make(of.servers + of.members); err != nil {
		return err
	}
	f.shared = filepath.Join(f.folder, "shared")
	if err := os.MkdirAll(filepath.Join(f.shared, "running"), 0o750); err != nil {
		return err
	}
	if err := f.addMembers(of.members); err != nil {
		return err
	}
	for i := range of.servers {
		if err := f.addServer(ctx, of.serverPath, i); err != nil {
			return err
		}
	}
	for _, p := range f.servers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	ca, err := os.ReadFile(filepath.Join(f.data("s0"), caFile))
	if err != nil {
		return err
	}
	f.ca = string(ca)
	for i := range of.servers {
		c, err := fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.api(i), Token: f.token, CA: ca})
		if err != nil {
			return err
		}
		f.clients = append(f.clients, c)
	}
	return f.addHosts(ctx, of.hosts, of.hostPath)
}

// places are the processes that have a network and a disk of their own: servers, then members.
func (f *aFleet) places() []*process.Program { return slices.Concat(f.servers, f.members) }

// voters are the processes of which more than half must run: the members of etcd.
func (f *aFleet) voters() []*process.Program {
	if len(f.members) > 0 {
		return f.members
	}
	return f.servers
}

func (f *aFleet) api(i int) string {
	return net.JoinHostPort(f.net.address(i), fmt.Sprint(f.net.port(i, 8443)))
}

func (f *aFleet) data(name string) string { return filepath.Join(f.folder, name) }

// disk makes a folder, on a small disk of its own where that is possible.
func (f *aFleet) disk(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil || !f.net.apart {
		return err
	}
	return command("mount", "-t", "tmpfs", "-o", "size=420M", "none", folder)
}

func serverName(i int) string { return fmt.Sprintf("s%d", i) }

// addServer makes a server. The first one of those with an external etcd writes into it, once that has a quorum.
func (f *aFleet) addServer(ctx context.Context, path string, i int) error {
	name := serverName(i)
	if err := f.disk(f.data(name)); err != nil {
		return err
	}
	args := []string{path, "init", "--data", f.data(name), "--address", f.api(i)}
	if len(f.members) == 0 {
		args = append(args, "--member", name)
	}
	if i > 0 {
		args = append(args, "--from", f.data("s0"))
	} else {
		args = append(args, f.records()...)
	}
	var out []byte
	var err error
	for range 30 {
		if out, err = exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err == nil ||
			len(f.members) == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	for line := range strings.Lines(string(out)) {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "nvu_") {
			f.token = t
		}
	}
	f.servers = append(f.servers, &process.Program{Name: name, Log: f.data(name) + ".log",
		Args: f.net.inSpace(i, path, "--data", f.data(name), "--verbose")})
	return nil
}

// records are the flags that say where the first server's records are.
func (f *aFleet) records() (flags []string) {
	if len(f.members) == 0 {
		for i := range f.serverCount {
			flags = append(flags, "--peer", fmt.Sprintf("%s=https://%s", serverName(i),
				net.JoinHostPort(f.net.address(i), fmt.Sprint(f.net.port(i, 2380)))))
		}
		return flags
	}
	for _, at := range f.endpoints {
		flags = append(flags, "--etcd", at)
	}
	of := f.data(memberName(0))
	return append(flags, "--etcd-ca", filepath.Join(of, caFile), "--etcd-cert", filepath.Join(of, certificateFile),
		"--etcd-key", filepath.Join(of, keyFile))
}

// addHosts lets hosts join, once the servers answer.
func (f *aFleet) addHosts(ctx context.Context, hosts int, path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path = cmp.Or(path, self)
	for i := range hosts {
		var made fleetapi.NewJoin
		err := f.retry(ctx, func(c *fleetapi.Client) (err error) {
			made, err = c.CreateJoin(ctx, fleetapi.JoinCreate{})
			return err
		})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("h%d", i)
		folder := filepath.Join(f.folder, name)
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
		args, err := json.Marshal(hostArgs{name, folder, f.shared, f.api(i % len(f.servers)), made.Token,
			made.Fingerprint})
		if err != nil {
			return err
		}
		p := &process.Program{Name: name, Log: filepath.Join(f.folder, name+".log"),
			Args: []string{path, "-host", string(args)}}
		f.hosts = append(f.hosts, p)
	}
	return f.allJoined(ctx)
}

// allJoined returns once all hosts are reachable. Their processes end if a server is not ready yet, and a server ends
// if it finds no quorum for a minute: both are started again, as systemd does.
func (f *aFleet) allJoined(ctx context.Context) error {
	for _, p := range f.hosts {
		err := f.retry(ctx, func(c *fleetapi.Client) error {
			if err := f.allAlive(); err != nil {
				return err
			}
			h, err := c.Host(ctx, p.Name)
			if err == nil && (h.State != fleetapi.HostReachable || h.Nodes == 0) {
				err = fmt.Errorf("host %s is %s", p.Name, h.State)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retry asks one server after the other until one has taken a request.
func (f *aFleet) retry(ctx context.Context, do func(*fleetapi.Client) error) error {
	var err error
	for n := 0; ctx.Err() == nil; n++ {
		if err = do(f.clients[n%len(f.clients)]); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(err, ctx.Err())
}

// all are all processes.
func (f *aFleet) all() []*process.Program { return slices.Concat(f.members, f.servers, f.hosts) }

// end ends all processes, and removes what make has made.
func (f *aFleet) end() {
	for _, p := range f.all() {
		p.Kill()
	}
	for _, p := range f.places() {
		if f.net.apart {
			_ = unix.Unmount(f.data(p.Name), unix.MNT_DETACH)
		}
	}
	f.net.remove()
}
