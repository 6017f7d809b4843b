package place

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// VMs with many cells are placed on 64 nodes with a proof where the ways are nested.
func TestPlace_ProvesManyCellsOn64Nodes(t *testing.T) {
	for _, cells := range []int{8, 12, 16, 24, 32, 48} {
		for _, more := range []int{0, 3} { // three cells with a vCPU more
			spec := guest.Spec{Name: "wide", VCPUs: cells*7 + more, Memory: topology.Bytes(cells) * 2 * topology.GiB,
				Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: cells}}
			_, why, err := Place(Request{Host: benchHost(64, true, 0.03), Spec: spec})
			if err != nil || !why.Optimal {
				t.Errorf("%d cells, %d vCPUs: error %v, gap %v", cells, spec.VCPUs, err, why.Gap)
			}
		}
	}
}

// The search over nests finds as good an answer as branch and bound, and counts the cost right.
func TestSearch_NestedEqualsBranchAndBound(t *testing.T) {
	nested := 0
	rapid.Check(t, func(t *rapid.T) {
		s, again := drawNested(t)
		if !s.solveNested() {
			t.Skip("the ways are not nested")
		}
		nested++
		again.descend()
		again.improve()
		again.branch(0)
		if again.open < impossible {
			t.Skip("branch and bound used up its steps")
		}
		if s.best != again.best || (s.found == nil) != (again.found == nil) {
			t.Fatalf("%d, branch and bound %d", s.best, again.best)
		}
		if s.found != nil && s.total(s.found) != s.best {
			t.Fatalf("the answer %v costs %d, not %d", s.found, s.total(s.found), s.best)
		}
	})
	if nested < 10 {
		t.Errorf("%d nested cases prove little", nested)
	}
}

// drawNested returns two equal searches on a random host whose distances have three levels, some
// of them different in both directions.
func drawNested(t *rapid.T) (s, again *search) {
	h := &inventory.Host{Name: "nested", Topology: made(
		shape{nodes: rapid.IntRange(3, 16).Draw(t, "nodes"), cpus: 8, threads: 2, memory: 32 * topology.GiB, perSocket: 2})}
	board, far := rapid.IntRange(1, 8).Draw(t, "board"), rapid.IntRange(17, 60).Draw(t, "far")
	back := rapid.IntRange(17, 60).Draw(t, "back")
	for i := range h.Topology.Nodes {
		for j := range h.Topology.Nodes {
			switch {
			case i/board < j/board:
				h.Topology.Nodes[i].Distances[topology.NodeID(j)] = far
			case i/board > j/board:
				h.Topology.Nodes[i].Distances[topology.NodeID(j)] = back
			}
		}
	}
	busy(h, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "load"), 1)))
	spec := guest.Spec{Name: "wide", Topology: guest.TopologySpec{Mode: guest.TopologyCells}}
	sizes := rapid.SliceOfN(rapid.IntRange(1, 3), 2, 6).Draw(t, "cells")
	for _, size := range sizes {
		c := guest.CellSpec{VCPUs: size, Memory: topology.Bytes(size*size) * topology.GiB}
		spec.Topology.Cells = append(spec.Topology.Cells, c)
		spec.VCPUs, spec.Memory = spec.VCPUs+c.VCPUs, spec.Memory+c.Memory
	}
	if rapid.Bool().Draw(t, "limited") {
		spec.Limits.MaxDistance = rapid.IntRange(17, 60).Draw(t, "limit")
	}
	p, err := newProblem(Request{Host: h, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	d := p.divide(slices.Clone(p.shapes()[0]))
	if len(d.slots) < len(d.cells) {
		t.Skip("too few slots")
	}
	start := func() *search { return newSearch(p, d.kinds, d.slots, d.single, 10*policy.DefaultSearchSteps) }
	return start(), start()
}

// Two nests are twins only if each way to and from every other one is the same.
func TestSearch_TwinsHaveEqualWays(t *testing.T) {
	const a, b, other, n = 0, 1, 2, 3
	for name, change := range map[string]func(*search){
		"":                     func(*search) {},
		"way to the other":     func(s *search) { s.way[a*n+other] = 9 },
		"way from the other":   func(s *search) { s.way[other*n+b] = 9 },
		"apart from the other": func(s *search) { s.apart[a*n+other] = true },
		"way to each other":    func(s *search) { s.way[a*n+b] = 9 },
	} {
		s := &search{groups: groups{count: n, way: slices.Repeat([]int64{5}, n*n), apart: make([]bool, n*n)}}
		change(s)
		alike := name == "" || name == "way to each other"
		if got := s.twin([]*nest{{group: a}, {group: b}, {group: other}}, a, b); got != alike {
			t.Errorf("%q differs: twins are %v", name, got)
		}
	}
}
