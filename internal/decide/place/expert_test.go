package place

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// hold puts a guest on a node, with all its memory touched.
func hold(h *inventory.Host, node topology.NodeID, vcpus int, memory topology.Bytes) *inventory.Guest {
	name := fmt.Sprintf("old%d", len(h.Guests))
	settle(h, guest.Placement{
		Guest: name, CPUMode: guest.CPURange,
		Reservations: []guest.Reservation{{Node: node, VCPUs: vcpus, Memory: memory}},
	})
	g := &h.Guests[len(h.Guests)-1]
	g.Seen.MemoryByNode = topology.MemoryByNode{node: memory}
	h.Topology.Nodes[node].Free -= memory
	return g
}

// nearPairs: nodes 0 and 1, and 2 and 3, are near each other; 8 CPUs and 32 GiB each.
func nearPairs() *inventory.Host {
	return &inventory.Host{Name: "pairs", Topology: made(shape{
		nodes: 4, cpus: 8, threads: 1, memory: 32 * gib, perSocket: 2, near: 12, far: 32,
	})}
}

// Node 0 has the memory, but all its CPUs are promised; nodes 2 and 3 are nearly idle.
func busyNodeWithMemory() *inventory.Host {
	h := nearPairs()
	hold(h, 0, 8, 4*gib)
	hold(h, 1, 8, 28*gib)
	hold(h, 2, 1, 18*gib)
	hold(h, 3, 1, 18*gib)
	return h
}

// An expert's answers on small hosts.
func TestPlace_AsAnExpertWould(t *testing.T) {
	two := func(memory ...topology.Bytes) *inventory.Host {
		h := &inventory.Host{Name: "two", Topology: made(shape{nodes: 2, cpus: 8, threads: 1, memory: 32 * gib,
			perSocket: 1})}
		for i, m := range memory {
			h.Topology.Nodes[i].Memory, h.Topology.Nodes[i].Free = m, m
		}
		return h
	}
	busyBesideIdle := two()
	hold(busyBesideIdle, 0, 8, 8*gib).Seen.Load = &inventory.GuestLoad{CPU: 7.8, Wait: 0.2}
	hold(busyBesideIdle, 1, 9, 9*gib).Seen.Load = &inventory.GuestLoad{CPU: 0.05}
	busyBesideIdle.Load = []inventory.NodeLoad{{Node: 0, CPU: 8, Wait: 0.2}, {Node: 1, CPU: 0.05}}
	hostItself := two()
	hostItself.Load = []inventory.NodeLoad{{Node: 0, CPU: 8, Wait: 6}}
	thin := &inventory.Host{Name: "thin", Topology: made(shape{nodes: 4, cpus: 8, threads: 1, memory: 64 * gib,
		perSocket: 1})}
	slightly := nearPairs()
	for node := range topology.NodeID(4) {
		hold(slightly, node, 7, 4*gib)
	}
	full := nearPairs()
	for node, vcpus := range []int{12, 9, 14, 10} {
		hold(full, topology.NodeID(node), vcpus, 4*gib)
	}
	for _, c := range []struct {
		name     string
		host     *inventory.Host
		vcpus    int
		memory   topology.Bytes
		maxNodes int
		want     string // nodes
	}{
		{"capacity before nearness", busyNodeWithMemory(), 8, 20 * gib, 0, "2-3"},
		{"also for two vCPUs, where the node has twice the demand", overloaded(), 2, 20 * gib, 0, "2-3"},
		{"unless the spec asks for few nodes", busyNodeWithMemory(), 8, 20 * gib, 1, "0"},
		{"the idle node, not the one with fewer vCPUs promised", busyBesideIdle, 4, 4 * gib, 0, "1"},
		{"not where the host itself uses the CPUs", hostItself, 4, 4 * gib, 0, "1"},
		{"more memory than any node has for one vCPU", thin, 1, 100 * gib, 0, "two"},
		{"more memory than any node has for two vCPUs", thin, 2, 150 * gib, 0, "three"},
		{"more memory than an equal division leaves room for", two(48*gib, 16*gib), 8, 56 * gib, 0, "0-1"},
		{"one vCPU more than the node has CPUs does not tear two vCPUs", slightly, 2, 4 * gib, 0, "one"},
		{"nor four vCPUs into four parts", slightly, 4, 4 * gib, 0, "two"},
		{"the least busy of busy nodes", full, 4, 4 * gib, 0, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := guest.Spec{Name: "new", VCPUs: c.vcpus, Memory: c.memory,
				Limits: guest.Limits{MaxNodes: c.maxNodes}}
			placed, why := mustPlace(t, Request{Host: c.host, Spec: spec})
			got := why.Nodes.String()
			if count := map[string]int{"one": 1, "two": 2, "three": 3}[c.want]; count > 0 {
				if placed.Nodes.Len() != count {
					t.Errorf("placed on nodes %s, want %s nodes\n%s", got, c.want, why.Text())
				}
				return
			}
			if got != c.want {
				t.Errorf("placed on nodes %s, want %s\n%s", got, c.want, why.Text())
			}
		})
	}
}

// overloaded is the same host with twice as many vCPUs promised on node 0 as it has CPUs, less two.
func overloaded() *inventory.Host {
	h := busyNodeWithMemory()
	h.Guests[0].Placement.Reservations[0].VCPUs = 14
	h.Guests[1].Placement.Reservations[0].VCPUs = 14
	return h
}

func TestPlace_ExplainsOverload(t *testing.T) {
	_, why := mustPlace(t, Request{Host: busyNodeWithMemory(), Spec: guest.Spec{Name: "new", VCPUs: 8, Memory: 20 * gib}})
	want := "1 node is not enough: node 0 would be overloaded: its CPUs have room for 0 more vCPUs, the VM needs 8"
	if !strings.Contains(why.Text(), want) || why.Overload != 0 {
		t.Errorf("overload %d; no %q in\n%s", why.Overload, want, why.Text())
	}
	spec := guest.Spec{Name: "new", VCPUs: 8, Memory: 20 * gib, Limits: guest.Limits{MaxNodes: 1}}
	_, why = mustPlace(t, Request{Host: busyNodeWithMemory(), Spec: spec})
	if want := "demand exceeds the CPUs that the VM may use by 8 vCPUs"; !strings.Contains(why.Summary, want) || why.Overload != 8 {
		t.Errorf("overload %d; no %q in %s", why.Overload, want, why.Summary)
	}
}
