package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// network says where servers and hosts are: in network namespaces, if the tool may make them, else on loopback.
type network struct {
	id     string
	subnet string // the first three bytes of addresses
	apart  bool
	base   int // first port on loopback
}

func (n *network) address(i int) string {
	if n.apart {
		return fmt.Sprintf("%s.%d", n.subnet, i+1)
	}
	return "127.0.0.1"
}

func (n *network) port(i, of int) int {
	if n.apart {
		return of
	}
	return n.base + 2*i + of%2
}

func (n *network) space(i int) string { return fmt.Sprintf("%s-%d", n.id, i) }

func command(args ...string) error {
	out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// make makes a namespace for each server, joined by a bridge.
func (n *network) make(servers int) error {
	if !n.apart {
		return nil
	}
	ip := func(line string) error { return command(append([]string{"ip"}, strings.Fields(line)...)...) }
	if err := errors.Join(ip("link add "+n.id+" type bridge"), ip("addr add "+n.subnet+".254/24 dev "+n.id),
		ip("link set "+n.id+" up")); err != nil {
		return err
	}
	for i := range servers {
		s := n.space(i)
		for _, line := range []string{
			"netns add " + s, "link add " + s + " type veth peer name eth0 netns " + s,
			"link set " + s + " master " + n.id + " up", "-n " + s + " link set lo up", "-n " + s + " link set eth0 up",
			"-n " + s + " addr add " + n.address(i) + "/24 dev eth0",
		} {
			if err := ip(line); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes what make has made.
func (n *network) remove(servers int) {
	if !n.apart {
		return
	}
	for i := range servers {
		_ = command("ip", "netns", "del", n.space(i))
		_ = command("ip", "link", "del", n.space(i)) // it may have ended with its namespace
	}
	_ = command("ip", "link", "del", n.id)
}

// cut separates a server from all others, hosts and users included; heal ends that.
func (n *network) cut(i int) error  { return command("ip", "link", "set", n.space(i), "down") }
func (n *network) heal(i int) error { return command("ip", "link", "set", n.space(i), "up") }

// part separates two servers from each other; hosts and users reach both.
func (n *network) part(a, b int) error {
	return errors.Join(command("ip", "-n", n.space(a), "route", "add", "blackhole", n.address(b)+"/32"),
		command("ip", "-n", n.space(b), "route", "add", "blackhole", n.address(a)+"/32"))
}

func (n *network) join(a, b int) error {
	return errors.Join(command("ip", "-n", n.space(a), "route", "del", "blackhole", n.address(b)+"/32"),
		command("ip", "-n", n.space(b), "route", "del", "blackhole", n.address(a)+"/32"))
}

// slow lets a server receive 100 kbit a second; fast ends that.
func (n *network) slow(i int) error {
	return command("tc", "qdisc", "add", "dev", n.space(i), "root", "tbf", "rate", "100kbit", "burst", "10kb",
		"latency", "2s")
}

func (n *network) fast(i int) error {
	return command("tc", "qdisc", "del", "dev", n.space(i), "root")
}

// aFleet is the processes of a run.
type aFleet struct {
	folder, shared string
	net            network
	servers, hosts []*process.Program
	clients        []*fleetapi.Client
	token          string
}

// make makes a fleet of servers, each with a small disk of its own where that is possible, and starts it.
// hostPath is the program of the hosts; empty: this one.
func (f *aFleet) make(ctx context.Context, programPath string, servers, hosts int, hostPath string) error {
	if err := f.net.make(servers); err != nil {
		return err
	}
	f.shared = filepath.Join(f.folder, "shared")
	if err := os.MkdirAll(filepath.Join(f.shared, "running"), 0o750); err != nil {
		return err
	}
	var peers []string
	for i := range servers {
		peers = append(peers, fmt.Sprintf("s%d=https://%s", i,
			net.JoinHostPort(f.net.address(i), fmt.Sprint(f.net.port(i, 2380)))))
	}
	for i := range servers {
		if err := f.addServer(programPath, i, peers); err != nil {
			return err
		}
	}
	ca, err := os.ReadFile(filepath.Join(f.data(0), "ca.pem"))
	if err != nil {
		return err
	}
	for i := range servers {
		c, err := fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.api(i), Token: f.token, CA: ca})
		if err != nil {
			return err
		}
		f.clients = append(f.clients, c)
	}
	return f.addHosts(ctx, hosts, hostPath)
}

func (f *aFleet) api(i int) string {
	return net.JoinHostPort(f.net.address(i), fmt.Sprint(f.net.port(i, 8443)))
}
func (f *aFleet) data(i int) string { return filepath.Join(f.folder, fmt.Sprintf("s%d", i)) }

func (f *aFleet) addServer(path string, i int, peers []string) error {
	if err := os.MkdirAll(f.data(i), 0o700); err != nil {
		return err
	}
	if f.net.apart {
		if err := command("mount", "-t", "tmpfs", "-o", "size=420M", "none", f.data(i)); err != nil {
			return err
		}
	}
	args := []string{path, "init", "--data", f.data(i), "--address", f.api(i), "--member", fmt.Sprintf("s%d", i)}
	if i > 0 {
		args = append(args, "--from", f.data(0))
	} else {
		for _, p := range peers {
			args = append(args, "--peer", p)
		}
	}
	out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	for line := range strings.Lines(string(out)) {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "nvu_") {
			f.token = t
		}
	}
	p := &process.Program{Name: fmt.Sprintf("s%d", i), Log: filepath.Join(f.folder, fmt.Sprintf("s%d.log", i))}
	p.Args = []string{path, "--data", f.data(i)}
	if f.net.apart {
		p.Args = append([]string{"ip", "netns", "exec", f.net.space(i)}, p.Args...)
	}
	f.servers = append(f.servers, p)
	if i == len(peers)-1 {
		for _, p := range f.servers {
			if err := p.Start(); err != nil {
				return err
			}
		}
	}
	return nil
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

// end ends all processes, and removes what make has made.
func (f *aFleet) end() {
	for _, p := range append(append([]*process.Program(nil), f.servers...), f.hosts...) {
		p.Kill()
	}
	for i := range f.servers {
		if f.net.apart {
			_ = unix.Unmount(f.data(i), unix.MNT_DETACH)
		}
	}
	f.net.remove(len(f.servers))
}
