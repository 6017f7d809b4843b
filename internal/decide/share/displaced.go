package share

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Displaced returns, by guest, CPUs that a managed guest shares although they are dedicated to others now, and that it
// can leave: binding it to Recorded does that. VMs that do not run are left out: they leave these CPUs when they start.
func Displaced(h *inventory.Host, p policy.Policy) map[string]topology.CPUSet {
	all, own := p.Handoff.CPUs, map[string]topology.CPUSet{}
	for _, held := range h.Holdings("") {
		all = all.Union(held.Exclusive)
		own[held.Name] = own[held.Name].Union(held.Exclusive)
	}
	displaced := map[string]topology.CPUSet{}
	if all.IsEmpty() {
		return displaced
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.State != "running" || g.Placement == nil || g.Spec == nil {
			continue
		}
		if !shares(g.Placement).Intersects(all.Minus(own[g.Name])) {
			continue
		}
		now := Recorded(h, p, g)
		if cpus := given(g.Placement, &now); !cpus.IsEmpty() {
			displaced[g.Name] = cpus
		}
	}
	return displaced
}

// shares returns the CPUs that a placement shares with other guests.
func shares(p *guest.Placement) (all topology.CPUSet) {
	if p.CPUMode == guest.CPUHandoff {
		return all
	}
	all = p.Emulator.Union(p.IOThread)
	if p.CPUMode == guest.CPURange {
		for _, v := range p.VCPUs {
			all = all.Union(v.CPUs)
		}
	}
	return all
}

// given returns the CPUs that some thread gives up.
func given(before, now *guest.Placement) topology.CPUSet {
	all := before.Emulator.Minus(now.Emulator).Union(before.IOThread.Minus(now.IOThread))
	for i, v := range before.VCPUs {
		all = all.Union(v.CPUs.Minus(now.VCPUs[i].CPUs))
	}
	return all
}
