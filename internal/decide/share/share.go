// Package share decides on which CPUs guests run that share CPUs, after other guests got CPUs of their own or gave some
// back. A placement names the CPUs that its nodes shared when it was decided; the reservations of the placement, which
// count vCPUs by node, stay as they are.
package share

import (
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Now returns a placement with the CPUs that the guest may share now:
//
//   - CPUs that are dedicated to others are left out;
//   - if fewer are left than the guest has vCPUs on them, the vCPUs may run on all CPUs that guests share on these
//     nodes within the guest's limits, as package place decides;
//   - if no shared CPU is left, the emulator and I/O threads of a guest with CPUs of its own run on these.
//
// A set of CPUs that has no substitute stays as it is, and so does one without dedicated CPUs.
func Now(h *inventory.Host, p policy.Policy, limits guest.Limits, placed guest.Placement) guest.Placement {
	c := available(h, p, limits, &placed)
	if placed.CPUMode == guest.CPURange {
		before := placed.VCPUs
		placed.VCPUs = slices.Clone(before)
		for i := range before {
			together := 0
			for _, v := range before {
				if v.CPUs.Equal(before[i].CPUs) {
					together++
				}
			}
			placed.VCPUs[i].CPUs = c.instead(before[i].CPUs, together)
		}
	}
	if placed.CPUMode != guest.CPUHandoff {
		placed.Emulator, placed.IOThread = c.instead(placed.Emulator, 1), c.instead(placed.IOThread, 1)
	}
	return placed
}

// Recorded returns the placement that a guest with a spec was bound to, with the CPUs that it may share now.
func Recorded(h *inventory.Host, p policy.Policy, g *inventory.Guest) guest.Placement {
	limits := g.Spec.Limits
	limits.Pool = g.Pool // an operator may have moved it to another one since
	return Now(h, p, limits, *g.Placement)
}

// cpus are the CPUs of a host, as a guest may use them.
type cpus struct {
	topology *topology.Topology
	taken    topology.CPUSet // dedicated to others
	shared   topology.CPUSet // within the guest's limits
	own      topology.CPUSet // of its vCPUs, if each has one for itself
}

func available(h *inventory.Host, p policy.Policy, limits guest.Limits, placed *guest.Placement) cpus {
	c := cpus{topology: &h.Topology}
	for _, n := range capacity.Available(h, p, placed.Guest) {
		c.taken, c.shared = c.taken.Union(n.Exclusive), c.shared.Union(n.Shared)
	}
	c.shared = c.shared.Minus(placed.Exclusive())
	// A pool that does not exist is an error that the check of the placement reports.
	if limits, err := h.WithinPool(limits); err == nil && !limits.CPUs.IsEmpty() {
		c.shared = c.shared.Intersect(limits.CPUs)
	}
	if placed.CPUMode == guest.CPUExclusive {
		for _, v := range placed.VCPUs {
			c.own = c.own.Union(v.CPUs)
		}
		c.own = c.own.Minus(c.taken)
	}
	return c
}

// instead returns the CPUs on which a number of threads run that were bound to former.
func (c *cpus) instead(former topology.CPUSet, threads int) topology.CPUSet {
	if !former.Intersects(c.taken) {
		return former
	}
	left := former.Minus(c.taken)
	if left.Len() >= threads {
		return left
	}
	all := c.topology.CPUsOf(c.topology.NodesOf(former)).Intersect(c.shared)
	switch {
	case all.Len() > left.Len():
		return all
	case !left.IsEmpty():
		return left
	case !c.own.IsEmpty():
		return c.own
	}
	return former
}
