package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// network says where servers, members of etcd and hosts are: in network namespaces, if the tool may make them, else on
// loopback. Servers are the first places, members those after them. Hosts and users are at the bridge.
type network struct {
	id     string
	subnet string // the first three bytes of addresses
	apart  bool
	base   int // first port on loopback
	places int
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

// bridge is the address of hosts and users.
func (n *network) bridge() string { return n.subnet + ".254" }

func (n *network) space(i int) string { return fmt.Sprintf("%s-%d", n.id, i) }

// inSpace returns the command line that runs a program at a place.
func (n *network) inSpace(i int, args ...string) []string {
	if !n.apart {
		return args
	}
	return append([]string{"ip", "netns", "exec", n.space(i)}, args...)
}

func command(args ...string) error {
	out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// make makes a namespace for each place, joined by a bridge.
func (n *network) make(places int) error {
	n.places = places
	if !n.apart {
		return nil
	}
	ip := func(line string) error { return command(append([]string{"ip"}, strings.Fields(line)...)...) }
	if err := errors.Join(ip("link add "+n.id+" type bridge"), ip("addr add "+n.bridge()+"/24 dev "+n.id),
		ip("link set "+n.id+" up")); err != nil {
		return err
	}
	for i := range places {
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
func (n *network) remove() {
	if !n.apart {
		return
	}
	for i := range n.places {
		_ = command("ip", "netns", "del", n.space(i))
		_ = command("ip", "link", "del", n.space(i)) // it may have ended with its namespace
	}
	_ = command("ip", "link", "del", n.id)
}

// cut separates a place from all others, hosts and users included; heal ends that.
func (n *network) cut(i int) error  { return command("ip", "link", "set", n.space(i), "down") }
func (n *network) heal(i int) error { return command("ip", "link", "set", n.space(i), "up") }

// part separates two places from each other; hosts and users reach both.
func (n *network) part(a, b int) error {
	return errors.Join(command("ip", "-n", n.space(a), "route", "add", "blackhole", n.address(b)+"/32"),
		command("ip", "-n", n.space(b), "route", "add", "blackhole", n.address(a)+"/32"))
}

func (n *network) join(a, b int) error {
	return errors.Join(command("ip", "-n", n.space(a), "route", "del", "blackhole", n.address(b)+"/32"),
		command("ip", "-n", n.space(b), "route", "del", "blackhole", n.address(a)+"/32"))
}

// nowhere is the hardware address of no machine: what is sent to it is lost, and no side learns of it.
const nowhere = "02:00:00:00:00:01"

// mute loses all that a place sends to hosts and users, while it receives what they send; speak ends that. Connections
// are half open meanwhile.
func (n *network) mute(i int) error {
	return command("ip", "-n", n.space(i), "neigh", "replace", n.bridge(), "lladdr", nowhere, "dev", "eth0", "nud",
		"permanent")
}

func (n *network) speak(i int) error {
	return command("ip", "-n", n.space(i), "neigh", "del", n.bridge(), "dev", "eth0")
}

// deafen loses all that is sent to a place; hear ends that. What it sends arrives.
func (n *network) deafen(i int) error {
	return n.neighbours(i, func(space []string, device string) error {
		return command(append(space, "neigh", "replace", n.address(i), "lladdr", nowhere, "dev", device, "nud",
			"permanent")...)
	})
}

func (n *network) hear(i int) error {
	return n.neighbours(i, func(space []string, device string) error {
		return command(append(space, "neigh", "del", n.address(i), "dev", device)...)
	})
}

// neighbours calls do with each network that sends to a place: the start of ip's command line, and the device.
func (n *network) neighbours(i int, do func(space []string, device string) error) error {
	err := do([]string{"ip"}, n.id)
	for other := range n.places {
		if other != i {
			err = errors.Join(err, do([]string{"ip", "-n", n.space(other)}, "eth0"))
		}
	}
	return err
}

// slow lets a place receive 100 kbit a second; fast ends that.
func (n *network) slow(i int) error {
	return command("tc", "qdisc", "add", "dev", n.space(i), "root", "tbf", "rate", "100kbit", "burst", "10kb",
		"latency", "2s")
}

func (n *network) fast(i int) error {
	return command("tc", "qdisc", "del", "dev", n.space(i), "root")
}
