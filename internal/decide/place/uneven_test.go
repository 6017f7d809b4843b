package place

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// randomUneven is a host of 2 to 6 nodes of any of the benchmark's kinds, and a
// guest of up to 5 cells for it. In one of three guests, all cells differ in vCPUs
// and memory; in the others some cells are equal.
func randomUneven(seed uint64) Request {
	r := rand.New(rand.NewPCG(seed, 5))
	nodes := 2 + r.IntN(5)
	h := &inventory.Host{Name: "host", Topology: made(shape{
		nodes: nodes, cpus: 8, threads: 2, memory: 32 * topology.GiB, perSocket: 1 + r.IntN(4), near: 12 +
			r.IntN(6), far: 20 + r.IntN(12),
	})}
	hostKinds[r.IntN(len(hostKinds))].make(h, r)
	spec := guest.Spec{Name: "sized", Topology: guest.TopologySpec{Mode: guest.TopologyCells}}
	for range 1 + r.IntN(min(5, nodes)) {
		c := guest.CellSpec{VCPUs: 1 + r.IntN(8), Memory: topology.Bytes(1+r.IntN(24)) * topology.GiB}
		if len(spec.Topology.Cells) > 0 && r.IntN(3) < int(seed%3) {
			c = spec.Topology.Cells[0]
		}
		spec.Topology.Cells = append(spec.Topology.Cells, c)
		spec.VCPUs, spec.Memory = spec.VCPUs+c.VCPUs, spec.Memory+c.Memory
	}
	if r.IntN(4) == 0 { // memory-only nodes take part if the spec names them
		var ids []topology.NodeID
		for i := range h.Topology.Nodes {
			ids = append(ids, h.Topology.Nodes[i].ID)
		}
		spec.Limits.Nodes = topology.SetOf(ids...)
	}
	if r.IntN(4) == 0 {
		spec.Limits.MaxNodes = len(spec.Topology.Cells) + r.IntN(2)
	}
	return Request{Host: h, Spec: spec, Policy: policy.Policy{SearchSteps: []int{0, 0, 1, 2, 5, 20}[r.IntN(6)]}}
}

// exhaust tries every slot for every cell, and returns the least key.
func exhaust(p *problem, cells []cellSize) key {
	sol := solution{cells: cells, kinds: p.kindsOf(cells)}
	best := impossible
	var try func(at []slot, sum key)
	try = func(at []slot, sum key) {
		if len(at) == len(cells) {
			if p.keepsConditions(at) {
				best = min(best, sum)
			}
			return
		}
		d := sol.demandOf(len(at))
		for _, s := range p.slots {
			more := p.single(s, d, len(cells))
			for i, other := range at {
				if more >= impossible || !p.together(s, other) {
					more = impossible
					break
				}
				more += key(p.between(s, d, other, sol.demandOf(i)))
			}
			if more < impossible {
				try(append(at, s), sum+more)
			}
		}
	}
	try(make([]slot, 0, len(cells)), 0)
	return best
}

func TestUnevenCellsAgainstExhaustion(t *testing.T) {
	found, cut := 0, 0
	for seed := range uint64(3000) {
		r := randomUneven(seed)
		p, err := newProblem(r)
		if err != nil {
			t.Fatal(err)
		}
		sol, refused := p.solve()
		want := exhaust(p, p.shapes()[0]) // with the aim of the last search
		switch {
		case sol == nil && want < impossible && !refused[0].unproven:
			t.Fatalf("host %d: found nothing, there is key %d", seed, want)
		case sol == nil:
			continue
		case sol.key < want || wholeKey(p, sol, sol.slots) != sol.key:
			t.Fatalf("host %d: reported key %d, the slots have %d, the best is %d", seed, sol.key,
				wholeKey(p, sol, sol.slots), want)
		case sol.proven() && sol.key != want:
			t.Fatalf("host %d: key %d (cost %v) is reported as the best, %d (cost %v) is", seed, sol.key,
				costOf(sol.key).Float(), want, costOf(want).Float())
		case !sol.proven() && sol.open > want:
			t.Fatalf("host %d: reported that nothing is below key %d, %d is", seed, sol.open, want)
		case !sol.proven() && r.Policy.SearchSteps == 0:
			t.Fatalf("host %d: not proven, of %d nodes", seed, len(p.nodes))
		}
		found++
		if !sol.proven() {
			cut++
		}
	}
	if found < 2000 || cut < 20 {
		t.Errorf("%d of 3000 hosts had room, %d searches were cut off: the test misses its point", found, cut)
	}
}

// TestBoundsKeepTheOptimum searches when only the optimum is left to find: if a
// bound excludes it by mistake, no first answer can hide the mistake.
func TestBoundsKeepTheOptimum(t *testing.T) {
	searched := 0
	for seed := range uint64(6000) {
		p, err := newProblem(randomUneven(seed))
		if err != nil {
			t.Fatal(err)
		}
		cells := p.shapes()[0]
		want := exhaust(p, cells)
		if want == impossible || len(cells) == 1 {
			continue
		}
		d := p.divide(cells)
		s := newSearch(p, d.kinds, d.slots, d.single, policy.DefaultSearchSteps)
		s.best = want + 1
		s.branch(0)
		if s.found == nil || s.best != want || s.open < want {
			t.Fatalf("host %d: found %v with key %d, open from %d; the best is %d", seed, s.found, s.best, s.open, want)
		}
		if got := wholeKey(p, &solution{cells: cells, kinds: d.kinds}, d.solution(s).slots); got != want {
			t.Fatalf("host %d: the slots have key %d, the search says %d", seed, got, want)
		}
		searched++
	}
	if searched < 3000 {
		t.Errorf("only %d of 6000 hosts had room for more than one cell: the test misses its point", searched)
	}
}

// TestSearchIsBounded counts steps on hosts where the proof takes long.
func TestSearchIsBounded(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 64))
		h := &inventory.Host{
			Name:     "host",
			Topology: made(shape{nodes: 64, cpus: 16, threads: 2, memory: 64 * topology.GiB, perSocket: 4}),
		}
		busy(h, r)
		measured(&h.Topology, r, 0.2)
		request := Request{Host: h, Spec: sizedCells(8, true), Policy: policy.Policy{SearchSteps: 300}}
		placed, why, err := Place(request)
		if err != nil {
			t.Fatal(err)
		}
		if why.Considered > 64+300+8*64/stepSize {
			t.Errorf("%d steps, the policy allows 300", why.Considered)
		}
		if why.Optimal || why.Gap == nil || why.Gap.Figure != "cost" || why.Gap.Most <= 0 || why.Gap.Most > why.Cost {
			t.Errorf("optimal %v, gap %+v of cost %v", why.Optimal, why.Gap, why.Cost)
		}
		if !strings.Contains(why.Text(), fmt.Sprintf("a better placement may exist (cost up to %.4f lower)",
			why.Gap.Most)) {
			t.Errorf("the text does not contain the gap:\n%s", why.Text())
		}
		again, _, _ := Place(request)
		if diff := cmp.Diff(placed, again); diff != "" {
			t.Errorf("the same request gave another answer (-first +second):\n%s", diff)
		}
	}
}

func TestGapNamesTheFirstFigure(t *testing.T) {
	of := func(sharing, nodes, cost key) key { return sharing<<sharingBit + nodes<<nodesBit + cost }
	for _, c := range []struct {
		best, open key
		want       *Gap
	}{
		{of(2, 3, 500), of(0, 4, 900), &Gap{"shared cores", 2}},
		{of(2, 3, 500), of(2, 2, 900), &Gap{"nodes", 1}},
		{of(2, 3, 500_000), of(2, 3, -250_000), &Gap{"cost", 0.75}},
		{of(2, 3, -500_000), of(2, 3, -750_000), &Gap{"cost", 0.25}},
	} {
		if diff := cmp.Diff(c.want, gapOf(c.best, c.open)); diff != "" {
			t.Errorf("gap of %d and %d (-want +got):\n%s", c.best, c.open, diff)
		}
	}
	if got := gapOf(of(1, 1, 1), of(1, 1, 1)); got != nil {
		t.Errorf("nothing is better, and the gap is %+v", got)
	}
}

// TestUneven_ExclusiveOn64NodesIsProven: fewer nodes than the eight that have a core for
// each vCPU cannot hold the guest without sharing cores, so they are not searched.
func TestUneven_ExclusiveOn64NodesIsProven(t *testing.T) {
	spec := guest.Spec{Name: "wide", VCPUs: 60, Memory: 64 * topology.GiB, CPU: guest.CPUSpec{Binding: guest.CPUExclusive}}
	_, why, err := Place(Request{Host: benchHost(64, true, 0.03), Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	if !why.Optimal {
		t.Errorf("not proven optimal after %d steps: %+v", why.Considered, *why.Gap)
	}
}
