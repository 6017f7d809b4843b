package control

import (
	"slices"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// mayPull reports whether the policy lets the kernel bring memory to vCPUs.
func mayPull(m policy.Movers) bool {
	return m.KernelCopies == policy.AnswerAuto && m.KernelBalancing != policy.AnswerOff
}

// canPull reports whether the kernel can bring the memory of all guests of a move to
// their vCPUs, by what is known before it begins: the move itself looks at the mappings
// of the guests, and at how fast a first slice is copied.
func (c *Controller) canPull(h *inventory.Host, m plan.Move) bool {
	p := c.rules.policy
	if !mayPull(p.Movers) || h.Kernel.NUMABalancing == "" {
		return false
	}
	over := balance.OverThreshold(c.host.sample.Guests, p.Balance)
	moved := func(name string) bool { return slices.Contains(m.Names(), name) }
	near := func(g *inventory.Guest) bool { return !over[g.Name] }
	if order.Exposed(h, p.Balance, moved, near) != "" {
		return false
	}
	var pulls []order.Pull
	for _, g := range m.Guests {
		seen, ok := h.Guest(g.Guest)
		if !ok {
			return false
		}
		pulls = append(pulls, order.PullOf(seen, g, &h.Topology))
	}
	order.Level(pulls)
	pulls = slices.DeleteFunc(pulls, func(p order.Pull) bool { return p.Bytes == 0 })
	if slices.ContainsFunc(pulls, func(each order.Pull) bool { return !each.Possible(p.Balance) }) {
		return false
	}
	return len(pulls) > 0 && (h.MoverBytesPerSecond == 0 || order.Pays(pulls, h.MoverBytesPerSecond))
}

// ownBalancing returns kernel.numa_balancing as it is without this daemon's moves,
// which enable it for a time: as last observed when no move ran.
func (c *Controller) ownBalancing() string {
	r := c.jobs.running
	if r != nil && r.job.Kind == MoveJob || c.host.knowledge == outdated {
		return c.competition.found
	}
	return c.host.inventory.Kernel.NUMABalancing
}
