package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// fence adds a guest with dedicated CPUs, starting with the given one.
func fence(h *inventory.Host, v vm, first topology.CPUID) {
	v.spec = func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }
	add(h, v)
	g := &h.Guests[len(h.Guests)-1]
	p := g.Placement
	p.CPUMode = guest.CPUExclusive
	for i := range p.VCPUs {
		cpu := topology.SetOf(first + topology.CPUID(i))
		p.VCPUs[i].CPUs, g.Seen.Threads[i].Affinity = cpu, cpu
	}
	p.Reservations[0].VCPUs = 0
	p.Reservations[0].Exclusive = topology.Range(first, first+topology.CPUID(v.vcpus-1))
}

// Twelve of the sixteen CPUs of node 0 are dedicated to another guest and idle.
// The guest a runs on the other four. b must not move to its memory there.
func TestPlan_DedicatedCPUsOfOthersAreNotFree(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 12, memory: gib, cpus: on(0), used: 0.1}, 0)
	add(h, vm{name: "a", vcpus: 4, memory: gib, cpus: on(0), used: 3.4})
	add(h, vm{name: "b", vcpus: 4, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 3.4})
	off := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "a": policy.ModeOff}},
	}
	if round := planned(t, h, off); !goesTo(round, "b").Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("b must get its memory where it runs: node 0 has four CPUs for 6.8\n%s", round.Text())
	}
}

// A guest that waits for the shared CPUs of a node moves away, although half of
// the node's CPUs are idle.
func TestPlan_WaitingGuestLeavesNodeWithIdleDedicatedCPUs(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 12, memory: gib, cpus: on(0), used: 0.1}, 0)
	for _, name := range []string{"a", "b"} {
		add(h, vm{name: name, vcpus: 4, memory: gib, cpus: on(0), used: 2, wait: 1.8})
	}
	add(h, vm{name: "c", vcpus: 8, memory: gib, cpus: on(1), used: 7})
	off := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "c": policy.ModeOff}},
	}
	round := planned(t, h, off)
	if len(round.Moves) != 1 || round.Moves[0].Benefit.WaitCPUs < 3 {
		t.Errorf("one of a and b must go to node 1, and 3.6 CPUs of waiting end\n%s", round.Text())
	}
}

// An exclusive guest moves to a node with enough free CPUs, regardless of how
// many others are dedicated there.
func TestPlan_ExclusiveGuestMovesToFreeCPUs(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 8, memory: gib, cpus: on(0), used: 0.1}, 0)
	fence(h, vm{name: "far", vcpus: 6, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 6}, 16)
	add(h, vm{name: "busy", vcpus: 10, memory: gib, cpus: on(1), used: 9})
	off := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "busy": policy.ModeOff}},
	}
	if round := planned(t, h, off); len(round.Moves) != 1 || goesTo(round, "far").IsEmpty() {
		t.Errorf("far must come to its memory, or it to far\n%s", round.Text())
	}
}

// An exclusive guest does not take the CPUs that others share: node 0 has four
// for a demand of 3.4, and the memory of far, which would need two of them.
func TestPlan_ExclusiveGuestDoesNotTakeSharedCPUs(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:64G")
	add(h, vm{name: "shares", vcpus: 2, memory: gib, cpus: on(0), used: 2})
	fence(h, vm{name: "far", vcpus: 2, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 0.9}, 4)
	add(h, vm{name: "strayed", vcpus: 2, memory: gib, cpus: on(0), memOn: bytesOn(1, gib), used: 1.2})
	off := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"shares": policy.ModeOff, "strayed": policy.ModeOff}},
	}
	if round := planned(t, h, off); !goesTo(round, "far").Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("far must get its memory where it runs: with it on node 0, two CPUs are left for 3.2\n%s",
			round.Text())
	}
}

// A dedicated emulator CPU reduces the CPUs that the other guests of the target
// node share.
func TestPlan_DedicatedEmulatorCPUIsNotFree(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 2, memory: gib, cpus: on(0), used: 1})
	add(
		h,
		vm{
			name:   "b",
			vcpus:  2,
			memory: 4 * gib,
			cpus:   on(0, 1),
			memOn:  bytesOn(0, 4*gib),
			used:   1.9,
			spec:   func(s *guest.Spec) { s.CPU.Emulator = guest.HelperExclusive },
		},
	)
	h.Guests[1].Placement.Reservations[1].Exclusive = topology.SetOf[topology.CPUID](4)
	add(h, vm{name: "c", vcpus: 1, memory: gib / 2, cpus: on(0), used: 1})
	add(h, vm{name: "full", vcpus: 1, memory: 12 * gib, cpus: on(1), used: 0.1})
	off := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"a": policy.ModeOff, "full": policy.ModeOff}},
	}
	round := planned(t, h, off)
	if b := goesTo(round, "b"); b.Contains(0) {
		t.Errorf("b must not go to node 0: its emulator takes one CPU of four, and four vCPUs ask for 2.9\n%s",
			round.Text())
	}
}

// If a guest uses two nodes, its dedicated emulator CPU is on the first, not half
// on each.
func TestLayout_FirstNodeHasDedicatedEmulatorCPU(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:16G distances:10,16,28 square")
	add(
		h,
		vm{
			name:   "wide",
			vcpus:  6,
			memory: 2 * gib,
			cpus:   on(0, 3),
			memOn:  topology.MemoryByNode{0: gib, 3: gib},
			used:   5,
			spec: func(s *guest.Spec) {
				s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
				s.CPU.Emulator = guest.HelperExclusive
			},
		},
	)
	m := newModel(Request{Host: h, Now: noon})
	for _, l := range m.guests[0].layouts[1:] {
		for _, s := range l.on {
			want := 0.0
			if m.nodes[s.node].id == l.homes[0] {
				want = 1
			}
			if s.dedicated != want {
				t.Errorf("at home on %v it has %v CPUs of node %d alone, want %v", l.homes, s.dedicated,
					m.nodes[s.node].id, want)
			}
		}
	}
}

// When a guest that shares CPUs replaces an exclusive one, total demand is
// unchanged but fewer CPUs are shared.
func TestModel_SharedGuestDoesNotReplaceExclusiveGuest(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	fence(h, vm{name: "alone", vcpus: 1, memory: gib, cpus: on(1), used: 1}, 4)
	add(
		h,
		vm{
			name:   "shares",
			vcpus:  1,
			memory: gib,
			cpus:   on(0),
			used:   1,
			spec:   func(s *guest.Spec) { s.CPU.Emulator = guest.HelperExclusive },
		},
	)
	h.Guests[1].Placement.Reservations[0].Exclusive = topology.SetOf[topology.CPUID](0)
	add(h, vm{name: "others", vcpus: 3, memory: gib, cpus: on(1), used: 2})
	m := newModel(Request{Host: h, Now: noon})
	if len(m.guests[0].layouts) != 2 || len(m.guests[1].layouts) != 2 {
		t.Fatalf("each has its own node and the other: %d and %d", len(m.guests[0].layouts), len(m.guests[1].layouts))
	}
	if _, ok := m.try(change{0, 1}, change{1, 1}); ok {
		t.Error("others ask for two CPUs of node 1; with shares it is three for three")
	}
}
