package operate

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// onSharedCPUs returns a placement that was decided elsewhere, or before the guest was stopped, with the CPUs that the
// guest may share now. Since then, other guests may have got CPUs of their own or given some back:
//
//   - CPUs that are dedicated to others are left out;
//   - if fewer are left than the guest has vCPUs on them, they may run on all CPUs that guests share on these nodes
//     within the guest's limits, as package place decides;
//   - if no shared CPU is left, the emulator and I/O threads of a guest with CPUs of its own run on these.
//
// CPUs that nothing would be left of stay, for the check to refuse them.
func (h *Host) onSharedCPUs(inv *inventory.Host, s guest.Spec, p guest.Placement) guest.Placement {
	var taken, shared, own topology.CPUSet
	for _, n := range capacity.Available(inv, h.Policy, p.Guest) {
		taken, shared = taken.Union(n.Exclusive), shared.Union(n.Shared)
	}
	shared = shared.Minus(p.Exclusive())
	if limits, err := inv.WithinPool(s.Limits); err == nil && !limits.CPUs.IsEmpty() { // the check reports the error
		shared = shared.Intersect(limits.CPUs)
	}
	if p.CPUMode == guest.CPUExclusive {
		for _, v := range p.VCPUs {
			own = own.Union(v.CPUs)
		}
	}
	now := func(cpus topology.CPUSet, threads int) topology.CPUSet {
		left := cpus.Minus(taken)
		if cpus.IsEmpty() || left.Len() >= threads {
			return left
		}
		all := inv.Topology.CPUsOf(inv.Topology.NodesOf(cpus)).Intersect(shared)
		switch {
		case all.Len() > left.Len():
			return all
		case !left.IsEmpty():
			return left
		case !own.IsEmpty():
			return own
		}
		return cpus
	}
	if p.CPUMode == guest.CPURange {
		before := p.VCPUs
		p.VCPUs = slices.Clone(before)
		for i := range before {
			together := 0
			for _, v := range before {
				if v.CPUs.Equal(before[i].CPUs) {
					together++
				}
			}
			p.VCPUs[i].CPUs = now(before[i].CPUs, together)
		}
	}
	if p.CPUMode != guest.CPUHandoff {
		p.Emulator, p.IOThread = now(p.Emulator, 1), now(p.IOThread, 1)
	}
	return p
}

// given checks a placement that was decided elsewhere.
func (h *Host) given(inv *inventory.Host, s guest.Spec, p guest.Placement) error {
	if p.Guest != s.Name {
		return fmt.Errorf("%w: it is for VM %q, not %q", ErrPlacement, p.Guest, s.Name)
	}
	if err := h.legal(inv, s, p); err != nil {
		return fmt.Errorf("%w: %w", ErrPlacement, err)
	}
	return nil
}
