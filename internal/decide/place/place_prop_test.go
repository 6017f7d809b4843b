package place

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// twin is the obviously correct search: every slot for every cell of every division.
func twin(p *problem) key {
	best := impossible
	for _, cells := range p.shapes() {
		if p.tears(cells[len(cells)-1].vcpus, len(cells)) {
			continue
		}
		at := make([]slot, 0, len(cells))
		kinds := p.kindsOf(cells)
		sol := solution{cells: cells, kinds: kinds}
		var try func()
		try = func() {
			if len(at) == len(cells) {
				if p.keepsConditions(at) {
					best = min(best, wholeKey(p, &sol, at))
				}
				return
			}
			for _, s := range p.slots {
				ok := true
				for _, other := range at {
					ok = ok && p.together(s, other)
				}
				if _, fits := p.fit(s, sol.demandOf(len(at))); ok && fits {
					at = append(at, s)
					try()
					at = at[:len(at)-1]
				}
			}
		}
		try()
	}
	return best
}

func wholeKey(p *problem, sol *solution, at []slot) key {
	total := key(0)
	for i, a := range at {
		d := sol.demandOf(i)
		total += p.single(a, d, len(at))
		for j, b := range at[:i] {
			total += key(p.between(a, d, b, sol.demandOf(j)))
		}
	}
	return total
}

func TestPlaceFindsTheOptimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 5)
		r := Request{Host: h, Spec: drawSpec(t, h), Policy: drawPolicy(t)}
		p, err := newProblem(r)
		if err != nil {
			t.Fatal(err)
		}
		sol, _ := p.solve()
		want := twin(p) // with the aim of the last search
		if sol != nil && p.aim == leastOverload {
			p.aim = noOverload
			if k := twin(p); k < impossible {
				t.Fatalf("overload of %d; there is a placement without, with key %d", p.overload(sol.slots, sol), k)
			}
			p.aim = leastOverload
		}
		switch {
		case sol == nil && want < impossible:
			t.Fatalf("found nothing; there is a placement with key %d", want)
		case sol != nil && sol.uneven: // the oracle compares those; equal cells must not be as good
			if headOf(sol.key) >= headOf(want) || wholeKey(p, sol, sol.slots) != sol.key {
				t.Fatalf("uneven cells with key %d, its slots have %d; equal ones have %d", sol.key,
					wholeKey(p, sol, sol.slots), want)
			}
		case sol != nil && p.aim != leastOverload && p.overload(sol.slots, sol) > 0:
			t.Fatalf("overload of %d, not least", p.overload(sol.slots, sol))
		case sol != nil && sol.key != want:
			t.Fatalf("found key %d (cost %v), the best is %d (cost %v)", sol.key, costOf(sol.key).Float(), want,
				costOf(want).Float())
		case sol != nil && wholeKey(p, sol, sol.slots) != want:
			t.Fatalf("slots %v have key %d, reported was %d", sol.slots, wholeKey(p, sol, sol.slots), want)
		case sol != nil && !sol.proven():
			t.Fatal("small search not proven")
		}
	})
}

func TestEveryPlacementIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 6)
		r := Request{Host: h, Spec: drawSpec(t, h), Policy: drawPolicy(t)}
		placed, why, err := Place(r)
		var none *NoFitError
		if errors.As(err, &none) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if vs := check.Placement(h, r.Policy, r.Spec, placed); len(vs) > 0 {
			t.Fatalf("%v\n%s", check.Error("new", vs), why.Text())
		}
		again, whyAgain, _ := Place(r)
		if diff := cmp.Diff(placed, again); diff != "" {
			t.Fatalf("the same request gave another placement (-first +second):\n%s", diff)
		}
		if !reflect.DeepEqual(why, whyAgain) { // has unexported fields, which cmp does not compare
			t.Fatal("the same request gave another explanation")
		}
	})
}

// Where the hypervisor allocates memory only near vCPUs, a guest that shares CPUs may run on all nodes of its memory
// that have CPUs for it.
func TestNearMemoryOnly_VCPUsMayRunWhereTheMemoryIs(t *testing.T) {
	widened := 0
	rapid.Check(t, func(t *rapid.T) {
		topo, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:%d memory:4G", rapid.IntRange(2, 4).Draw(t, "nodes"),
			rapid.IntRange(1, 4).Draw(t, "cores")))
		if err != nil {
			t.Fatal(err)
		}
		h := &inventory.Host{Topology: topo}
		for i := range h.Topology.Nodes {
			n := &h.Topology.Nodes[i]
			n.Free = topology.Bytes(rapid.IntRange(1, 8).Draw(t, "free")) * 256 * topology.MiB
		}
		spec, err := guest.Spec{Name: "new", VCPUs: rapid.IntRange(1, 2).Draw(t, "vcpus"),
			Memory:   topology.Bytes(rapid.IntRange(1, 4).Draw(t, "memory")) * topology.GiB,
			Topology: guest.TopologySpec{Mode: guest.TopologyOff}}.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Host: h, Spec: spec}
		narrow, _, err := Place(r)
		if err != nil {
			return
		}
		h.NearMemoryOnly = true
		got, why, err := Place(r)
		if err != nil || !got.Nodes.Equal(narrow.Nodes) {
			t.Fatalf("memory on nodes %s instead of %s: %v", got.Nodes, narrow.Nodes, err)
		}
		if vs := check.Placement(h, r.Policy, r.Spec, got); len(vs) > 0 {
			t.Fatalf("%v\n%s", check.Error("new", vs), why.Text())
		}
		p, err := newProblem(r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.nodes {
			n := &p.nodes[i]
			if got.Nodes.Contains(n.node.ID) && !n.usable.SubsetOf(got.VCPUs[0].CPUs) {
				t.Fatalf("memory on node %d, and vCPUs on CPUs %s", n.node.ID, got.VCPUs[0].CPUs)
			}
		}
		if !got.VCPUs[0].CPUs.Equal(narrow.VCPUs[0].CPUs) {
			widened++
		}
	})
	if widened == 0 {
		t.Error("no guest has memory on a node without its vCPUs: the test proves nothing")
	}
}

func TestNoFitProposesWhatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 4)
		r := Request{Host: h, Spec: drawSpec(t, h), Policy: drawPolicy(t)}
		_, _, err := Place(r)
		var none *NoFitError
		if !errors.As(err, &none) {
			return
		}
		if len(none.Nodes) == 0 && none.Reason == "" {
			t.Fatalf("no reason given: %v", none)
		}
		for _, c := range none.Changes {
			changed := r
			changed.Spec, changed.Policy = c.Spec, c.Policy
			placed, _, err := Place(changed)
			if err != nil {
				t.Fatalf("proposed %q does not fit: %v", c.Text, err)
			}
			if vs := check.Placement(h, c.Policy, c.Spec, placed); len(vs) > 0 {
				t.Fatalf("proposed %q is not legal: %v", c.Text, vs)
			}
		}
	})
}
