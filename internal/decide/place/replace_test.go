package place_test

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// fourNodes is an idle host of four equal nodes; loads are vCPUs of others on each node.
func fourNodes(loads ...int) *inventory.Host {
	h := &inventory.Host{Version: inventory.Version}
	for n := range topology.NodeID(4) {
		first := topology.CPUID(4 * n)
		node := topology.Node{
			ID:        n,
			CPUs:      topology.Range(first, first+3),
			Memory:    16 * topology.GiB,
			Free:      16 * topology.GiB,
			Distances: map[topology.NodeID]int{},
		}
		for m := range topology.NodeID(4) {
			node.Distances[m] = 20
		}
		node.Distances[n] = 10
		h.Topology.Nodes = append(h.Topology.Nodes, node)
		for c := first; c < first+4; c++ {
			h.Topology.CPUs = append(h.Topology.CPUs,
				topology.CPU{ID: c, Node: n, Core: topology.CoreID(c), Siblings: topology.SetOf(c)})
		}
	}
	h.Topology.Classify()
	for n, load := range loads {
		if load > 0 {
			id := topology.NodeID(n)
			h.Claims = append(h.Claims, inventory.Claim{Name: "other" + string(rune('0'+n)), Placement: guest.Placement{
				Nodes: topology.SetOf(id), CPUMode: guest.CPURange,
				Reservations: []guest.Reservation{{Node: id, Memory: topology.GiB, VCPUs: load}}}})
		}
	}
	return h
}

func TestAgainStaysOnTheNodesOfItsMemory(t *testing.T) {
	memoryOn := func(n topology.NodeID) topology.MemoryByNode {
		return topology.MemoryByNode{n: 2 * topology.GiB, 0: 10 * topology.MiB}
	}
	for _, c := range []struct {
		name   string
		host   *inventory.Host
		memory topology.NodeID
		want   topology.NodeID
	}{
		{"a tie is no reason to move", fourNodes(), 3, 3},
		{"a little more load is no reason to move", fourNodes(0, 0, 0, 1), 3, 3},
		{"too little memory is a reason to move", fourNodes(8, 8, 0, 8), 3, 2},
		{"an overloaded node is a reason to move", fourNodes(0, 6, 6, 6), 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, why, err := place.Again(
				place.Request{Host: c.host, Spec: guest.Spec{Name: "g", VCPUs: 2, Memory: 2 * topology.GiB}},
				memoryOn(c.memory))
			if err != nil {
				t.Fatal(err)
			}
			if !p.Nodes.Equal(topology.SetOf(c.want)) {
				t.Errorf("placed on %s, want %d: %s", p.Nodes, c.want, why.Text())
			}
		})
	}
}

func TestAgainKeepsToTheLimits(t *testing.T) {
	spec := guest.Spec{
		Name:   "g",
		VCPUs:  2,
		Memory: topology.GiB,
		Limits: guest.Limits{Nodes: topology.SetOf[topology.NodeID](1)},
	}
	p, _, err := place.Again(place.Request{Host: fourNodes(), Spec: spec}, topology.MemoryByNode{3: topology.GiB})
	if err != nil || !p.Nodes.Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("asked for node 1, got %s, %v", p.Nodes, err)
	}
}

func TestAgain_ExplainsWhyGuestStays(t *testing.T) {
	_, why, err := place.Again(
		place.Request{Host: fourNodes(0, 0, 0, 1), Spec: guest.Spec{Name: "g", VCPUs: 2, Memory: topology.GiB}},
		topology.MemoryByNode{3: topology.GiB})
	if err != nil || !strings.Contains(why.Summary, "its memory is there") {
		t.Errorf("no reason given: %q, %v", why.Summary, err)
	}
}
