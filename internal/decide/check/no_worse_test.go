package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM with CPUs of its own that leaves another one too few starts again after a stop, and no other VM gets them.
func TestPlacement_ExclusiveCPUsThatItHasAlready(t *testing.T) {
	topo, err := topology.Synthetic("nodes:1 cores:4 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	shared := guest.Placement{Guest: "shared", CPUMode: guest.CPURange, Reservations: []guest.Reservation{{VCPUs: 2}}}
	alone := guest.Placement{Guest: "alone", CPUMode: guest.CPUExclusive}
	reserved := guest.Reservation{VCPUs: 3}
	for v := range 3 {
		one := topology.SetOf(topology.CPUID(v))
		alone.VCPUs = append(alone.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: one})
		reserved.Exclusive = reserved.Exclusive.Union(one)
	}
	alone.Reservations = []guest.Reservation{reserved}
	h := inventory.Host{Topology: topo, Guests: []inventory.Guest{
		{Name: "shared", State: "running", Managed: true, Placement: &shared}}}
	starved := func(h *inventory.Host) bool {
		spec := guest.Spec{Name: "alone", VCPUs: 3}
		spec.CPU.Binding = guest.CPUExclusive
		return slices.ContainsFunc(Placement(h, policy.Policy{}, spec, alone), func(v Violation) bool {
			return v.Rule == RuleExclusive && strings.HasSuffix(v.Object, "shared")
		})
	}
	if !starved(&h) {
		t.Error("a new VM may take the CPUs")
	}
	with := func(had guest.Placement) *inventory.Host {
		more := h
		more.Guests = append([]inventory.Guest{{Name: "alone", State: "shutoff", Managed: true, Placement: &had}},
			h.Guests...)
		return &more
	}
	if starved(with(alone)) {
		t.Error("a VM that has these CPUs already may not start on them again")
	}
	fewer := alone
	fewer.Reservations = []guest.Reservation{{VCPUs: 2, Exclusive: topology.Range(topology.CPUID(0), topology.CPUID(1))}}
	if !starved(with(fewer)) {
		t.Error("a VM may take one more CPU")
	}
}
