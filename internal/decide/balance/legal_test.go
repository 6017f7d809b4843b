package balance

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Every move of a plan is legal on the host for which it was made. Half of a swap
// is not, nor is a move whose target another guest has taken.
func TestLegal_ChecksAllGuestsOfMove(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:8G distances:10,21")
	add(h, vm{name: "a", vcpus: 2, memory: 5 * gib, cpus: on(0), memOn: topology.MemoryByNode{0: 5 * gib}})
	add(h, vm{name: "b", vcpus: 2, memory: 5 * gib, cpus: on(1), memOn: topology.MemoryByNode{1: 5 * gib}})
	to := func(name string, node topology.NodeID) plan.GuestMove {
		for i := range h.Guests {
			if g := &h.Guests[i]; g.Name == name {
				p := handmade(h, *g.Spec, on(node))
				p.Emulator = h.Topology.CPUsOf(p.Nodes)
				return plan.GuestMove{Guest: name, Placement: p}
			}
		}
		t.Fatalf("no guest %s", name)
		return plan.GuestMove{}
	}
	if err := Legal(h, policy.Policy{}, []plan.GuestMove{to("a", 1), to("b", 0)}); err != nil {
		t.Errorf("an exchange: %v", err)
	}
	if err := Legal(h, policy.Policy{}, []plan.GuestMove{to("a", 0)}); err != nil {
		t.Errorf("a guest that stays: %v", err)
	}
	for name, moves := range map[string][]plan.GuestMove{
		"half of it":              {to("a", 1)},
		"both on one node":        {to("a", 1), to("b", 1)},
		"a guest that is no more": {{Guest: "c"}},
		"no placement":            {{Guest: "a"}},
	} {
		if err := Legal(h, policy.Policy{}, moves); err == nil {
			t.Errorf("%s is said to be legal", name)
		}
	}
	if err := Legal(h, policy.Policy{}, []plan.GuestMove{to("a", 1)}); err == nil ||
		!strings.Contains(err.Error(), "VM a") ||
		!strings.Contains(err.Error(), "node 1") {
		t.Errorf("error %v", err)
	}
	if h.Guests[0].Name != "a" || h.Guests[0].Seen.MemoryByNode[0] != 5*gib {
		t.Error("the host was changed")
	}
}
