package capacity_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// served returns how much of the demand of VMs the CPUs that each may use can serve: the least of all sums of the CPUs
// that some of the VMs may use and the demand of the others.
func served(cpus []topology.CPUSet, demand []float64) float64 {
	least := math.Inf(1)
	for some := range 1 << len(cpus) {
		sum, of := 0.0, topology.CPUSet{}
		for i := range cpus {
			if some>>i&1 == 1 {
				of = of.Union(cpus[i])
			} else {
				sum += demand[i]
			}
		}
		least = min(least, sum+float64(of.Len()))
	}
	return least
}

// The demand for a node is what its CPUs can serve of confined VMs, and all that others want. Idle CPUs of a set
// are those that can serve more.
func TestAvailable_ConfinedDemand(t *testing.T) {
	sets := []string{"0-7", "0-7", "0-3", "4-7", "0-1", "2-3", "5-7", "6"} // of any two, one has the other, or no CPU of it
	draw := rapid.Custom(func(t *rapid.T) topology.CPUSet {
		return topology.MustParseSet[topology.CPUID](rapid.SampledFrom(sets).Draw(t, "set"))
	})
	rapid.Check(t, func(t *rapid.T) {
		topo, err := topology.Synthetic("nodes:1 cores:8 memory:16G")
		if err != nil {
			t.Fatal(err)
		}
		h := &inventory.Host{Topology: topo}
		var cpus []topology.CPUSet
		var demand []float64
		for i := range rapid.IntRange(0, 6).Draw(t, "guests") {
			vcpus := rapid.IntRange(1, 6).Draw(t, "vcpus")
			cpus, demand = append(cpus, draw.Draw(t, "cpus")), append(demand, float64(vcpus))
			p := guest.Placement{Guest: fmt.Sprint(i), VCPUs: []guest.VCPU{{CPUs: cpus[i]}},
				Reservations: []guest.Reservation{{Node: 0, VCPUs: vcpus}}}
			h.Claims = append(h.Claims, inventory.Claim{Name: p.Guest, Placement: p})
		}
		n := &capacity.Available(h, policy.Policy{}.WithDefaults(), "")[0]
		all := served(cpus, demand)
		if got := min(n.Demand, 8); math.Abs(got-min(all, 8)) > 1e-9 {
			t.Fatalf("%v want %v: %v instead of %v", cpus, demand, got, all)
		}
		of := draw.Draw(t, "of")
		more := served(append(cpus, of), append(demand, 100)) - all
		if got := max(0, n.Idle(of)); math.Abs(got-more) > 1e-9 {
			t.Fatalf("%v want %v: %v of CPUs %v are idle instead of %v", cpus, demand, got, of, more)
		}
		if got := n.DemandFor(n.Shared); math.Abs(got-n.Demand) > 1e-9 {
			t.Fatalf("%v want %v: %v for all CPUs instead of %v", cpus, demand, got, n.Demand)
		}
	})
}

// Four VMs want these CPUs: another one gets what they leave.
func TestNode_Idle(t *testing.T) {
	topo, err := topology.Synthetic("nodes:1 cores:8 memory:16G")
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Topology: topo}
	for _, c := range []struct {
		cpus  string
		vcpus int
	}{{"0-1", 3}, {"0-3", 1}, {"4-5", 1}, {"0-7", 2}} {
		p := guest.Placement{Guest: c.cpus, VCPUs: []guest.VCPU{{CPUs: topology.MustParseSet[topology.CPUID](c.cpus)}},
			Reservations: []guest.Reservation{{Node: 0, VCPUs: c.vcpus}}}
		h.Claims = append(h.Claims, inventory.Claim{Name: p.Guest, Placement: p})
	}
	n := &capacity.Available(h, policy.Policy{}.WithDefaults(), "")[0]
	for cpus, want := range map[string]float64{
		"0-7": 2, "4-7": 2, "4-5": 1, "0-3": 1, "2-3": 1, // 2-3 also serve the VM on 0-3
		"0-1": -1,
	} {
		if got := n.Idle(topology.MustParseSet[topology.CPUID](cpus)); got != want {
			t.Errorf("%v of CPUs %s are idle, want %v", got, cpus, want)
		}
	}
}
