package balance

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Eight VMs run next to their neighbour's memory, and every node has promised more than it
// has: memory counts where it is reserved and where it is. All are repinned without a copy.
func TestPlan_RepinsOnFullHostWhoseMemoryIsElsewhere(t *testing.T) {
	h := machine("nodes:4 cores:8 memory:32G distances:10,16,28 square")
	for i := range 8 {
		home := topology.NodeID(i % 4)
		add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 3, memory: 15 * gib, cpus: on(home),
			memOn: bytesOn((home+1)%4, 15*gib), used: 2.5})
	}
	round := planned(t, h, policy.Policy{})
	moved := map[string]bool{}
	for _, m := range round.Moves {
		if m.Cost.Bytes > 0 {
			t.Errorf("%s copies", m)
		}
		for _, g := range m.Guests {
			moved[g.Guest] = true
		}
	}
	if len(moved) != 8 {
		t.Errorf("%d of 8 VMs are repinned\n%s", len(moved), round.Text())
	}
}

// Others have promised 40 GiB on each node of 32 and touched 6. The VM with vCPUs on node 0
// and memory on node 1 is repinned; one that would need memory of node 1 stays.
func TestPlan_RepinsOnOverPromisedNodes(t *testing.T) {
	for _, c := range []struct {
		name  string
		memOn topology.MemoryByNode
		kind  plan.MoveKind
	}{
		{"its memory is there already", bytesOn(1, 4*gib), plan.Repin},
		{"half of its memory would have to come", topology.MemoryByNode{0: 2 * gib, 1: 2 * gib}, ""},
	} {
		h := machine("nodes:2 cores:8 memory:32G")
		for i := range topology.NodeID(2) {
			add(h, vm{name: fmt.Sprintf("fat%d", i), vcpus: 2, memory: 40 * gib, cpus: on(i), memOn: bytesOn(i, 6*gib),
				used: 0.5})
		}
		add(h, vm{name: "ours", vcpus: 4, memory: 4 * gib, cpus: on(1), memOn: c.memOn, used: 3})
		ours := &h.Guests[2]
		for i := range ours.Seen.Threads {
			ours.Seen.Threads[i].Affinity = h.Topology.Nodes[0].CPUs
		}
		if c.kind == "" { // reserved where it is
			ours.Placement.Reservations[0].Memory /= 2
			other := ours.Placement.Reservations[0]
			other.Node, other.VCPUs = 0, 0
			ours.Placement.Reservations = append(ours.Placement.Reservations, other)
		}
		round := planned(t, h, policy.Policy{})
		if c.kind == "" {
			if len(round.Moves) > 0 || len(round.Blocked) != 1 || round.Blocked[0].Kind != plan.BlockedRefused {
				t.Errorf("%s: moves %v, blocked %+v", c.name, round.Moves, round.Blocked)
			}
			continue
		}
		if len(round.Moves) != 1 || round.Moves[0].Kind != c.kind {
			t.Fatalf("%s\n%s", c.name, round.Text())
		}
		if err := Legal(h, policy.Policy{}, round.Moves[0].Guests); err != nil {
			t.Errorf("the daemon would refuse it: %v", err)
		}
	}
}

// With the credit, every guest may be placed as it is placed now, as far as memory is
// concerned; one more GiB on a node without room may not.
func TestWithCredit_AllowsThePresentStateAndNoMore(t *testing.T) {
	memory := func(broken []check.Violation) bool {
		for _, v := range broken {
			if v.Rule == check.RuleMemory || v.Rule == check.RuleHugePages {
				return true
			}
		}
		return false
	}
	rapid.Check(t, func(t *rapid.T) {
		h, p := drawState(t)
		eased := withCredit(h, h.Holdings(""), p)
		for i := range h.Guests {
			g := &h.Guests[i]
			if broken := check.Placement(&eased, p, *g.Spec, *g.Placement); memory(broken) {
				t.Fatalf("%s is not allowed to stay: %v", g.Name, broken)
			}
			for k := range h.Topology.Nodes {
				if eased.Topology.Nodes[k].Memory == h.Topology.Nodes[k].Memory {
					continue
				}
				more := *g.Placement
				more.Reservations = nil
				for _, r := range g.Placement.Reservations {
					if r.Node == h.Topology.Nodes[k].ID {
						r.Memory = max(r.Memory, g.Seen.MemoryByNode[r.Node]) + gib
					}
					more.Reservations = append(more.Reservations, r)
				}
				if more.MemoryOn(h.Topology.Nodes[k].ID) == 0 || g.Spec.PageSize > 0 {
					continue
				}
				if broken := check.Placement(&eased, p, *g.Spec, more); !memory(broken) {
					t.Fatalf("%s may have a GiB more on node %d, which lacks memory", g.Name, k)
				}
			}
		}
	})
}
