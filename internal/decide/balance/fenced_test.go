package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// fence adds a guest that has the CPUs from the first one on for itself.
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

// Twelve of the sixteen CPUs of node 0 are somebody's alone, and idle: four are
// left, on which a runs. The memory of b is there, and b must not follow.
func TestCPUsThatOthersHaveAloneAreNoRoom(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 12, memory: gib, cpus: on(0), used: 0.1}, 0)
	add(h, vm{name: "a", vcpus: 4, memory: gib, cpus: on(0), used: 3.4})
	add(h, vm{name: "b", vcpus: 4, memory: gib, cpus: on(1), lies: lies(0, gib), used: 3.4})
	off := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "a": policy.ModeOff}}}
	if round := planned(t, h, off); !goesTo(round, "b").Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("b must get its memory where it runs: node 0 has four CPUs for 6.8\n%s", round.Text())
	}
}

// Who waits on what others left goes where CPUs are free, though the node looks
// half idle.
func TestWhoWaitsBesideIdleExclusiveCPUsLeaves(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 12, memory: gib, cpus: on(0), used: 0.1}, 0)
	for _, name := range []string{"a", "b"} {
		add(h, vm{name: name, vcpus: 4, memory: gib, cpus: on(0), used: 2, wait: 1.8})
	}
	add(h, vm{name: "c", vcpus: 8, memory: gib, cpus: on(1), used: 7})
	off := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "c": policy.ModeOff}}}
	round := planned(t, h, off)
	if len(round.Moves) != 1 || round.Moves[0].Benefit.WaitCPUs < 3 {
		t.Errorf("one of a and b must go to node 1, and 3.6 CPUs of waiting end\n%s", round.Text())
	}
}

// CPUs that are free for an exclusive guest are room for it, however many
// others are taken there.
func TestAnExclusiveGuestComesToFreeCPUs(t *testing.T) {
	h := machine("nodes:2 cores:16 memory:64G")
	fence(h, vm{name: "idle", vcpus: 8, memory: gib, cpus: on(0), used: 0.1}, 0)
	fence(h, vm{name: "far", vcpus: 6, memory: gib, cpus: on(1), lies: lies(0, gib), used: 6}, 16)
	add(h, vm{name: "busy", vcpus: 10, memory: gib, cpus: on(1), used: 9})
	off := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"idle": policy.ModeOff, "busy": policy.ModeOff}}}
	if round := planned(t, h, off); len(round.Moves) != 1 || goesTo(round, "far").IsEmpty() {
		t.Errorf("far must come to its memory, or it to far\n%s", round.Text())
	}
}
