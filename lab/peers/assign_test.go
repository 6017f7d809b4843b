package peers

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/topology"
)

// Each plan can be checked by hand.
func TestCheapestPlan(t *testing.T) {
	const mib = topology.MiB
	one := func(memory topology.Bytes, start ...int) VM { return VM{VCPUs: 1, Memory: memory, Start: start} }
	idle := VM{VCPUs: 1, Memory: 300 * mib, Start: []int{0}, Phases: []Phase{{}}}
	for _, c := range []struct {
		name   string
		layout Layout
		want   uint64
	}{
		{"all fit where their memory is", Layout{NodeCPUs: 3, VMs: times(3, one(300*mib, 0))}, 0},
		{"two of four fit there", Layout{NodeCPUs: 2, VMs: times(4, one(300*mib, 0))}, 600},
		{"the smallest moves", Layout{NodeCPUs: 2, VMs: []VM{one(300*mib, 0), one(200*mib, 0), one(100*mib, 0)}}, 100},
		{"spread over four nodes: three quarters of each", Layout{NodeCPUs: 1, VMs: times(2, one(400*mib, 0, 1, 2, 3))},
			600},
		{"each goes where half of its memory is", Layout{NodeCPUs: 1, VMs: []VM{one(400*mib, 0, 1), one(400*mib, 0, 1)}},
			400},
		{"the wide VM stays, both narrow ones move",
			Layout{NodeCPUs: 2, VMs: []VM{{VCPUs: 2, Memory: 500 * mib, Start: []int{0}}, one(200*mib, 0),
				one(200*mib, 0)}}, 400},
		{"one wide VM is cheaper than two narrow ones",
			Layout{NodeCPUs: 2, VMs: []VM{{VCPUs: 2, Memory: 300 * mib, Start: []int{0}}, one(200*mib, 0),
				one(200*mib, 0)}}, 300},
		{"an idle VM needs no CPU and stays", Layout{NodeCPUs: 1, VMs: []VM{one(200*mib, 0), idle}}, 0},
		// All nodes but node 1 are full; both VMs with half of their memory on node 0 and 1
		// need one node each: one gathers on node 1, the other on node 0, whose idle VM must go to node 1.
		{"an idle VM makes room", Layout{NodeCPUs: 1, NodeRoom: 500 * mib, VMs: []VM{one(400*mib, 0), one(400*mib, 1),
			{VCPUs: 1, Memory: 100 * mib, Start: []int{0}, Phases: []Phase{{}}}, one(200*mib, 2, 3),
			{VCPUs: 1, Memory: 400 * mib, Start: []int{2}, Phases: []Phase{{}}}}}, 100},
	} {
		l := c.layout.completed()
		if got, ok := l.cheapest(l.nominal()); !ok || got != c.want {
			t.Errorf("%s: %d MiB, %v; want %d", c.name, got, ok, c.want)
		}
	}
}

func TestCheapestPlan_OfMeasuredMemory(t *testing.T) {
	l := Layout{NodeCPUs: 1, VMs: times(2, VM{VCPUs: 1, Memory: 300 * topology.MiB, Start: []int{0}})}.completed()
	if got, ok := l.cheapest([][]uint64{{290, 11, 0, 0}, {250, 0, 0, 51}}); !ok || got != 261 {
		t.Errorf("%d MiB, %v; want 11 of the first VM and 250 of the second", got, ok)
	}
}

func TestNoAssignment(t *testing.T) {
	l := Layout{NodeCPUs: 1, VMs: times(5, VM{VCPUs: 1, Memory: 64 * topology.MiB, Start: []int{0}})}.completed()
	if got, ok := l.cheapest(l.nominal()); ok {
		t.Errorf("five VMs on four CPUs: a plan of %d MiB", got)
	}
}

// naive tries all assignments without any bound; all VMs work and have one vCPU.
func naive(l Layout, memory [][]uint64) (least uint64, ok bool) {
	all, rooms := 1, l.rooms()
	for range l.VMs {
		all *= l.Nodes
	}
	for code := range all {
		vcpus, bytes, copied, fits := make([]int, l.Nodes), make([]topology.Bytes, l.Nodes), uint64(0), true
		for vm, rest := 0, code; vm < len(l.VMs); vm, rest = vm+1, rest/l.Nodes {
			node := rest % l.Nodes
			vcpus[node] += l.VMs[vm].VCPUs
			bytes[node] += l.VMs[vm].Memory
			fits = fits && vcpus[node] <= l.NodeCPUs && bytes[node] <= rooms[node]
			for n, part := range memory[vm] {
				if n != node {
					copied += part
				}
			}
		}
		if fits && (!ok || copied < least) {
			least, ok = copied, true
		}
	}
	return least, ok
}

func TestCheapestPlan_IsThatOfANaiveSearch(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := Layout{Nodes: 4, NodeCPUs: rapid.IntRange(1, 4).Draw(r, "CPUs"),
			NodeRoom: topology.Bytes(rapid.IntRange(200, 900).Draw(r, "room")) * topology.MiB}
		var memory [][]uint64
		for range rapid.IntRange(1, 4).Draw(r, "VMs") {
			l.VMs = append(l.VMs, VM{VCPUs: rapid.IntRange(1, 3).Draw(r, "vCPUs"),
				Memory: topology.Bytes(rapid.IntRange(64, 512).Draw(r, "MiB")) * topology.MiB, Start: []int{0}})
			memory = append(memory, rapid.SliceOfN(rapid.Uint64Range(0, 300), 4, 4).Draw(r, "memory"))
		}
		got, ok := l.cheapest(memory)
		if want, possible := naive(l, memory); got != want || ok != possible {
			r.Fatalf("%d MiB, %v; the naive search says %d, %v", got, ok, want, possible)
		}
	})
}
