// Package picture draws a host: its sockets and nodes, with their CPUs, memory,
// devices and VMs, and the distances between the nodes. It draws the same
// content as text for a terminal and as SVG for a page.
//
// The package is pure: it computes a string from an inventory.
package picture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// node is what a picture shows of one NUMA node.
type node struct {
	id     topology.NodeID
	alone  bool              // the title names the socket too, since the node is drawn without its socket
	socket topology.SocketID // -1: a node without CPUs
	cpus   []string          // one line for each L3 domain; empty for a node without CPUs
	cores  string            // "8 cores, 2 threads each"
	memory topology.Bytes
	used   float64  // share of the memory that is not free, 0 to 1
	usage  string   // "12 GiB of 64 GiB free"
	pools  []string // huge page pools: "2 MiB pages: 10 of 512 free"
	device []string
	vms    []vm
}

// vm is what a picture shows of a VM on one node.
type vm struct {
	name   string
	vcpus  int
	memory topology.Bytes
}

// title names the node: "node 2", or "node 4, memory only".
func (n *node) title() string {
	switch {
	case len(n.cpus) == 0 && n.memory == 0:
		return fmt.Sprintf("node %d, empty", n.id)
	case len(n.cpus) == 0:
		return fmt.Sprintf("node %d, memory only", n.id)
	case n.memory == 0:
		return fmt.Sprintf("node %d, CPUs only", n.id)
	}
	if n.alone {
		return fmt.Sprintf("node %d, socket %d", n.id, n.socket)
	}
	return fmt.Sprintf("node %d", n.id)
}

// percent says how much of the memory is not free: "62 % used".
func (n *node) percent() string { return fmt.Sprintf("%.0f %% used", 100*n.used) }

// line gives a VM in one line: "db1: 4 vCPUs, 8 GiB".
func (v vm) line() string {
	var parts []string
	if v.vcpus > 0 {
		parts = append(parts, text.Count(v.vcpus, "vCPU", "vCPUs"))
	}
	if v.memory > 0 {
		parts = append(parts, v.memory.String())
	}
	return v.name + ": " + strings.Join(parts, ", ")
}

// socket is a group of nodes that are drawn together.
type socket struct {
	id      topology.SocketID // -1: nodes without CPUs
	several bool              // some socket of the host has several nodes, so sockets have a frame of their own
	nodes   []node
}

func (s *socket) title() string {
	if s.id < 0 {
		return "no socket"
	}
	return fmt.Sprintf("socket %d", s.id)
}

// summary describes the host in one line.
func summary(inv *inventory.Host) string {
	t := &inv.Topology
	var memory topology.Bytes
	sockets, cores := map[topology.SocketID]bool{}, map[topology.CoreID]bool{}
	for _, n := range t.Nodes {
		memory = memory.Plus(n.Memory)
	}
	for _, c := range t.CPUs {
		sockets[c.Socket], cores[c.Core] = true, true
	}
	line := fmt.Sprintf("%s, %s, %s (%s), %v", text.Count(len(sockets), "socket", "sockets"),
		text.Count(len(t.Nodes), "node", "nodes"), text.Count(len(t.CPUs), "CPU", "CPUs"),
		text.Count(len(cores), "core", "cores"), memory)
	if inv.Name != "" {
		line = text.Visible(inv.Name) + ": " + line
	}
	return line
}

// socketsOf groups the nodes by the socket of their first CPU, ascending; nodes without CPUs come last.
func socketsOf(inv *inventory.Host) []socket {
	var sockets []socket
	for i := range inv.Topology.Nodes {
		n := nodeOf(inv, &inv.Topology.Nodes[i])
		at := slices.IndexFunc(sockets, func(s socket) bool { return s.id == n.socket })
		if at < 0 {
			sockets = append(sockets, socket{id: n.socket})
			at = len(sockets) - 1
		}
		sockets[at].nodes = append(sockets[at].nodes, n)
	}
	slices.SortStableFunc(sockets, func(a, b socket) int {
		if (a.id < 0) != (b.id < 0) {
			return int(b.id - a.id)
		}
		return int(a.id - b.id)
	})
	return joined(sockets)
}

// joined puts the nodes of all sockets side by side if no socket has several nodes.
func joined(sockets []socket) []socket {
	if slices.ContainsFunc(sockets, func(s socket) bool { return s.id >= 0 && len(s.nodes) > 1 }) {
		for i := range sockets {
			sockets[i].several = true
		}
		return sockets
	}
	var all socket
	for _, s := range sockets {
		for _, n := range s.nodes {
			n.alone = true
			all.nodes = append(all.nodes, n)
		}
	}
	return []socket{all}
}

func nodeOf(inv *inventory.Host, seen *topology.Node) node {
	n := node{id: seen.ID, socket: -1, memory: seen.Memory}
	n.cpus, n.cores = cpusOf(&inv.Topology, seen.CPUs)
	for c := range seen.CPUs.All() {
		if cpu, ok := inv.Topology.CPU(c); ok {
			n.socket = cpu.Socket
			break
		}
	}
	if seen.Memory > 0 {
		n.used = 1 - min(1, float64(seen.Free)/float64(seen.Memory))
		n.usage = fmt.Sprintf("%v of %v free", seen.Free, seen.Memory)
	}
	for _, p := range seen.HugePages {
		if p.Total > 0 {
			n.pools = append(n.pools, fmt.Sprintf("%v pages: %d of %d free", p.Size, p.Free, p.Total))
		}
	}
	for _, d := range inv.Topology.Devices {
		if d.Node == seen.ID && d.Kind != topology.DeviceOther {
			words := append([]string{string(d.Kind)}, d.Names...)
			n.device = append(n.device, text.Visible(strings.Join(append(words, d.Address), " ")))
		}
	}
	for i := range inv.Guests {
		if v := vmOn(&inv.Guests[i], seen); v.vcpus > 0 || v.memory > 0 {
			n.vms = append(n.vms, v)
		}
	}
	return n
}

// cpusOf gives a node's CPUs, a line for each L3 domain, and its cores in words.
func cpusOf(t *topology.Topology, cpus topology.CPUSet) (domains []string, cores string) {
	var ids []topology.L3ID
	byCache := map[topology.L3ID][]topology.CPUID{}
	byCore := map[topology.CoreID]int{}
	threads := 0
	for id := range cpus.All() {
		c, ok := t.CPU(id)
		if !ok {
			continue
		}
		if byCache[c.L3] == nil {
			ids = append(ids, c.L3)
		}
		byCache[c.L3] = append(byCache[c.L3], id)
		byCore[c.Core]++
		threads = max(threads, byCore[c.Core])
	}
	for _, id := range ids {
		line := "CPUs " + topology.SetOf(byCache[id]...).String()
		if len(ids) > 1 {
			line = "L3: " + line
		}
		domains = append(domains, line)
	}
	if cores = text.Count(len(byCore), "core", "cores"); threads > 1 {
		cores += fmt.Sprintf(", %d threads each", threads)
	}
	return domains, cores
}

// vmOn gives a VM's share of a node: its vCPUs by the CPU on which each ran last, and its memory there.
func vmOn(g *inventory.Guest, on *topology.Node) vm {
	v := vm{name: text.Visible(g.Name), memory: g.Seen.MemoryByNode[on.ID]}
	for _, thread := range g.Seen.Threads {
		if thread.VCPU != nil && on.CPUs.Contains(thread.LastCPU) {
			v.vcpus++
		}
	}
	return v
}

// distances is the matrix of the figures that the host is judged by, with a heading.
func distances(t *topology.Topology) (heading string, rows [][]string) {
	measured := t.LatencyComplete()
	heading = "distances by firmware (ACPI SLIT), from a row's CPUs to a column's memory"
	if measured {
		heading = "measured latency in ns, from a row's CPUs to a column's memory"
	}
	top := []string{""}
	for _, n := range t.Nodes {
		top = append(top, fmt.Sprint(n.ID))
	}
	rows = append(rows, top)
	for _, from := range t.Nodes {
		row := []string{fmt.Sprint(from.ID)}
		for _, to := range t.Nodes {
			figure := "-"
			if d, ok := t.Distance(from.ID, to.ID); ok {
				figure = fmt.Sprint(d)
			}
			if ns, ok := t.Latency(from.ID, to.ID); ok && measured {
				figure = fmt.Sprintf("%.0f", ns)
			}
			row = append(row, figure)
		}
		rows = append(rows, row)
	}
	return heading, rows
}
