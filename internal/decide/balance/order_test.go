package balance

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// With identical guests many plans are equally good. The choice does not depend
// on the order of the guests in the inventory.
func TestTheOrderOfGuestsDoesNotMatter(t *testing.T) {
	moves := 0
	rapid.Check(t, func(t *rapid.T) {
		h := machine("nodes:4 cores:8 memory:64G distances:10,16,28 square")
		for i := range rapid.IntRange(2, 16).Draw(t, "guests") {
			node := rapid.SampledFrom([]topology.NodeID{0, 0, 0, 1, 2, 3})
			v := vm{
				name:   fmt.Sprintf("g%d", i),
				vcpus:  2,
				memory: gib,
				cpus:   on(node.Draw(t, "runs")),
				used:   1,
				wait:   0.5,
			}
			v.memOn = bytesOn(node.Draw(t, "lies"), gib)
			add(h, v)
		}
		p := policy.Policy{Overcommit: 8}
		round := drawnPlan(t, h, p)
		moves += len(round.Moves)
		other := *h
		other.Guests = rapid.Permutation(h.Guests).Draw(t, "order")
		before := slices.Clone(other.Guests)
		if again := drawnPlan(t, &other, p); again.Text() != round.Text() {
			t.Fatalf("in another order:\n%s\n%s", round.Text(), again.Text())
		}
		for i := range before {
			if before[i].Name != other.Guests[i].Name {
				t.Fatal("the inventory was changed")
			}
		}
	})
	if moves == 0 {
		t.Error("nothing had to move: the test proves nothing")
	}
}

// A plan names its guests, so it cannot move a guest whose name another one has.
func TestPlan_BlocksGuestsWithSameName(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G distances:10,21 flat")
	for _, name := range []string{"twin", "other", "twin"} {
		add(h, vm{name: name, vcpus: 4, memory: gib, cpus: on(0), used: 1, wait: 2})
	}
	round := planned(t, h, policy.Policy{})
	if !goesTo(round, "twin").IsEmpty() || goesTo(round, "other").IsEmpty() {
		t.Errorf("the only one of its name must go\n%s", round.Text())
	}
}

func drawnPlan(t *rapid.T, h *inventory.Host, p policy.Policy) plan.Plan {
	round, err := Plan(Request{Host: h, Policy: p, Now: noon, Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	legal(t, h, p, round)
	return round
}
