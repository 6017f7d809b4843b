package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// The move of a to b's node helps only after b has left it. The move of b is
// only advised, so the move of a must be only advised, too.
func TestPlan_MoveAfterAdvisedMoveIsAdvised(t *testing.T) {
	h := machine("nodes:3 cores:4 memory:16G distances:10,16,28 flat")
	add(h, vm{name: "a", vcpus: 3, memory: 2 * gib, cpus: on(2), used: 2, wait: 1,
		spec: func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf(on(0, 2)...) }})
	add(h, vm{name: "b", vcpus: 3, memory: 4 * gib, cpus: on(0), memOn: bytesOn(1, 4*gib), used: 3})
	add(h, vm{name: "c", vcpus: 3, memory: gib, cpus: on(2), used: 2, wait: 1})
	p := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"b": policy.ModeAdvise, "c": policy.ModeOff}},
	}
	round := planned(t, h, p)
	if len(round.Moves) < 2 || round.Moves[0].Names()[0] != "b" || round.Moves[1].Names()[0] != "a" {
		t.Fatalf("no move depends on an advised one: the test proves nothing\n%s", round.Text())
	}
	for _, m := range round.Moves {
		if !m.Advised {
			t.Errorf("%s depends on a move that is only advised\n%s", m, round.Text())
		}
	}
}
