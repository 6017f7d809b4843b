package balance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// handing names half of the CPUs of each of two nodes for hand-over.
var handing = policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("4-7,12-15")}}

// addMirror adds a running mirrored guest that uses some CPUs now; node 0 has its minimum.
func addMirror(t *testing.T, h *inventory.Host, name string, least int, used float64) {
	t.Helper()
	home := topology.NodeID(0)
	s, err := guest.Spec{Name: name, Memory: 2 * gib, CPU: guest.CPUSpec{Sharing: guest.SharingHandoff,
		MinVCPUs: least, Home: &home}}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := place.Place(place.Request{Host: h, Spec: s, Policy: handing})
	if err != nil {
		t.Fatal(err)
	}
	s = s.Resolve(&p)
	g := inventory.Guest{Name: name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State: "running", Managed: true, Spec: &s, Placement: &p,
		Config: inventory.Config{VCPUs: s.VCPUs, Memory: s.Memory, Source: "memfd"}}
	g.Seen.MemoryByNode = topology.MemoryByNode{0: gib, 1: gib}
	for i := range p.VCPUs {
		id := p.VCPUs[i].ID
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id,
			Affinity: p.StartPin(p.VCPUs[i])})
	}
	g.Seen.Load = &inventory.GuestLoad{Window: time.Minute, CPU: used, Ungranted: 3}
	h.Guests = append(h.Guests, g)
}

// granted gives a mirrored guest as many CPUs as it uses, half of them on each node; without daemons that
// measure what vCPUs use on each node, that follows from where they may run.
func granted(h *inventory.Host, used int) {
	g := &h.Guests[0]
	var open topology.CPUSet
	for i := range used {
		open = open.With([]topology.CPUID{4, 12, 5, 13, 6, 14, 7, 15}[i])
	}
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity = open
		if own := g.Placement.VCPUs[i].CPUs; own.SubsetOf(open) {
			g.Seen.Threads[i].Affinity = own
		}
	}
}

// However busy a mirrored guest is, it takes no CPU from others: their plan is the same, and the mirrored
// guest does not move.
func TestPlan_AMirroredGuestTakesNoSharedCPUs(t *testing.T) {
	var first plan.Plan
	for _, c := range []struct {
		used     float64
		measured bool
	}{{0, true}, {4, true}, {8, true}, {4, false}, {8, false}} {
		used := c.used
		h := machine("nodes:2 cores:8 memory:64G")
		addMirror(t, h, "a-mirror", 2, used)
		granted(h, max(2, int(used)))
		add(h, vm{name: "b", vcpus: 4, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 3.4})
		h.Load = []inventory.NodeLoad{{Node: 0, CPU: used / 2, VCPUs: used / 2},
			{Node: 1, CPU: used/2 + 3.4, VCPUs: used/2 + 3.4}}
		if !c.measured {
			h.Load[0].VCPUs, h.Load[1].VCPUs = 0, 0
		}
		round := planned(t, h, handing)
		if goesTo(round, "b").IsEmpty() || !goesTo(round, "a-mirror").IsEmpty() {
			t.Fatalf("b must come to its memory, or it to b, and the mirrored VM stays\n%s", round.Text())
		}
		for _, d := range round.Degraded {
			if d.Guest == "a-mirror" {
				t.Errorf("with %v CPUs used, the mirrored VM counts as degraded: %+v", used, d)
			}
		}
		if first.Moves == nil {
			first = round
		}
		if diff := cmp.Diff(first.Moves, round.Moves, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("with %v CPUs used, by node: %v (-idle +busy):\n%s", used, c.measured, diff)
		}
	}
}

// The CPUs of hand-over are not free for others, also if the mirrored guest is idle: node 0 has four
// CPUs for the 5.4 that both VMs demand.
func TestPlan_CPUsOfHandOverAreNotFree(t *testing.T) {
	h := machine("nodes:2 cores:8 memory:64G")
	addMirror(t, h, "a-mirror", 2, 0)
	add(h, vm{name: "b", vcpus: 4, memory: gib, cpus: on(0), used: 3.4})
	add(h, vm{name: "c", vcpus: 4, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 2})
	off := handing
	off.Balance.Guests = map[string]policy.Mode{"b": policy.ModeOff}
	round := planned(t, h, off)
	if goesTo(round, "c").Equal(topology.SetOf[topology.NodeID](0)) {
		t.Errorf("c must not come to node 0\n%s", round.Text())
	}
}
