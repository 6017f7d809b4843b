package balance

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// strayed returns a host with three guests that have their memory on node 0 and
// may run anywhere.
func strayed(vcpus int, used, mbps float64) *inventory.Host {
	return strayedOn(machine(square), gib, vcpus, used, mbps)
}

func strayedOn(h *inventory.Host, memory topology.Bytes, vcpus int, used, mbps float64) *inventory.Host {
	for i := range 3 {
		add(
			h,
			vm{
				name:    fmt.Sprintf("w%d", i),
				vcpus:   vcpus,
				memory:  memory,
				cpus:    on(0, 1, 2, 3),
				memOn:   bytesOn(0, memory),
				used:    used,
				mbps:    mbps,
				notOurs: true,
				change: func(g *inventory.Guest) {
					g.Config.NUMATune = &inventory.NUMATune{
						Mode:  "restrictive",
						Nodes: topology.MustParseSet[topology.NodeID]("0-3"),
					}
				},
			},
		)
	}
	return h
}

// copied returns how many guests a plan moves and of how many it copies memory.
func copied(t *testing.T, h *inventory.Host, p policy.Policy) (guests, copying int) {
	t.Helper()
	round := planned(t, h, p)
	for _, m := range round.Moves {
		for _, g := range m.Guests {
			guests++
			if g.Bytes > 0 {
				copying++
			}
		}
	}
	return guests, copying
}

func auto(names ...string) policy.Policy {
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{}}}
	for _, n := range names {
		p.Balance.Guests[n] = policy.ModeAuto
	}
	return p
}

func TestPlan_PrefersRepinToCopy(t *testing.T) {
	p := auto("w0", "w1", "w2")
	if guests, copying := copied(t, strayed(1, 1, 0), p); guests != 3 || copying != 0 {
		t.Errorf("%d guests move, %d are copied; node 0 has CPUs for all", guests, copying)
	}
	if guests, copying := copied(t, strayed(2, 2, 0), p); guests != 3 || copying != 1 {
		t.Errorf("%d guests move, %d are copied; node 0 has CPUs for two of them", guests, copying)
	}
	small := strayedOn(machine("nodes:4 cores:2 memory:1G distances:10,16,28 square"), 160*topology.MiB, 1, 0.27, 0)
	if guests, copying := copied(t, small, p); guests != 3 || copying == 0 {
		t.Errorf("%d guests move, %d are copied; node 0 has two CPUs for three vCPUs that may want to run at once",
			guests, copying)
	}
}

func TestPlan_CopiesWhereBandwidthIsShort(t *testing.T) {
	h := strayed(1, 1, 9000)
	ids := on(0, 1, 2, 3)
	h.Topology.Measured = &topology.Measured{Nodes: ids}
	for i := range ids {
		near, wide := []float64{140, 140, 140, 140}, []float64{9000, 9000, 9000, 9000}
		near[i], wide[i] = 85, 20000
		h.Topology.Measured.LatencyNanos = append(h.Topology.Measured.LatencyNanos, near)
		h.Topology.Measured.BandwidthMBps = append(h.Topology.Measured.BandwidthMBps, wide)
	}
	if guests, copying := copied(t, h, auto("w0", "w1", "w2")); guests != 3 || copying == 0 {
		t.Errorf("%d guests move, %d are copied; node 0 has no bandwidth for all", guests, copying)
	}
}

// A guest helped by an earlier move does not justify copying another guest's
// memory: w2 is not degraded, and another node would only be emptier.
func TestPlan_HelpedGuestJustifiesNoFurtherCopy(t *testing.T) {
	h := strayed(1, 1, 0)
	w2 := &h.Guests[2]
	for i := range w2.Seen.Threads {
		w2.Seen.Threads[i].Affinity = h.Topology.CPUsOf(topology.SetOf(topology.NodeID(0)))
	}
	if guests, copying := copied(t, h, auto("w0", "w1", "w2")); guests != 2 || copying != 0 {
		t.Errorf("%d guests move, %d are copied; w0 and w1 must come, and w2 must stay", guests, copying)
	}
}

// Node 0 has four cores of two threads: a keeps the cores busy. A gibibyte is
// cheaper than two vCPUs on one core while those of node 1 are idle.
func TestPlan_DoesNotRepinToBusyCores(t *testing.T) {
	for count, want := range map[policy.Capacity]topology.NodeID{policy.CountCores: 1, policy.CountThreads: 0} {
		h := machine("nodes:2 cores:4 threads:2 memory:32G distances:10,16")
		add(h, vm{name: "a", vcpus: 4, memory: gib, cpus: on(0), used: 3.9})
		add(h, vm{name: "far", vcpus: 3, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 2.9})
		round := planned(t, h, policy.Policy{Count: count})
		if !goesTo(round, "far").Equal(topology.SetOf(want)) {
			t.Errorf("counting %s, far belongs on node %d\n%s", count, want, round.Text())
		}
	}
}
