package balance

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// confinedHost returns two nodes of 8 CPUs with some VMs that may use only the first four CPUs of
// their node, and the same VMs on nodes of four CPUs.
func confinedHost(t *rapid.T) (confined, small *inventory.Host) {
	confined, small = machine("nodes:2 cores:8 memory:64G"), machine("nodes:2 cores:4 memory:64G")
	first := topology.SetOf[topology.CPUID](0, 1, 2, 3, 8, 9, 10, 11)
	for i := range rapid.IntRange(1, 6).Draw(t, "guests") {
		v := vm{name: fmt.Sprintf("g%d", i), vcpus: rapid.IntRange(1, 4).Draw(t, "vcpus"), memory: gib,
			cpus: on(topology.NodeID(rapid.IntRange(0, 1).Draw(t, "node")))}
		demand := float64(v.vcpus) * rapid.Float64Range(0.1, 1).Draw(t, "demand")
		v.wait = demand * rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "wait")
		v.used = demand - v.wait
		add(small, v)
		v.spec = func(s *guest.Spec) { s.Limits.CPUs = first }
		v.change = func(g *inventory.Guest) {
			for k := range g.Seen.Threads {
				g.Seen.Threads[k].Affinity = g.Seen.Threads[k].Affinity.Intersect(first)
			}
		}
		add(confined, v)
	}
	return confined, small
}

// VMs confined to some CPUs of a node wait as on a node that has only these, also after moves.
func TestModel_ConfinedGuestsWaitAsOnASmallNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		confined, small := confinedHost(t)
		a, b := newModel(Request{Host: confined, Now: noon}), newModel(Request{Host: small, Now: noon})
		total := a.total()
		for range 4 {
			g := rapid.IntRange(0, len(a.guests)-1).Draw(t, "moves")
			demand := 0.0
			for i := range a.guests {
				demand += a.guests[i].demand
				if x, y := a.waits(&a.guests[i]), b.waits(&b.guests[i]); math.Abs(x-y) > 0.005 {
					t.Fatalf("g%d waits %v instead of %v", i, x, y)
				}
			}
			if x, y := a.lost().wait, b.lost().wait; math.Abs(x-y) > 0.005*demand {
				t.Fatalf("%v CPUs wait instead of %v", x, y)
			}
			if len(a.guests[g].layouts) < 2 || len(b.guests[g].layouts) < 2 {
				continue
			}
			to := change{g, 1 - a.guests[g].at}
			rise, _ := a.try(to)
			if a.apply(to); math.Abs(a.total()-total-rise) > 1e-6 {
				t.Fatalf("the cost rises by %v instead of %v", a.total()-total, rise)
			}
			b.apply(change{g, 1 - b.guests[g].at})
			total = a.total()
		}
	})
}
