package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
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
	not := slices.Concat(m.Names(), c.idle(h))
	if len(order.Exposed(h, func(name string) bool { return slices.Contains(not, name) })) > 0 {
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

// idle returns the guests whose measured demand is below min_cpu_demand. The kernel takes
// the mapping of a process's memory away in proportion to the CPU time that it uses, and
// moves only what it touches then.
func (c *Controller) idle(h *inventory.Host) (names []string) {
	least := c.rules.policy.Balance.WithDefaults().MinCPUDemand
	for i := range h.Guests {
		if g := &h.Guests[i]; g.Seen.Load != nil && g.Seen.Load.Demand() < least {
			names = append(names, g.Name)
		}
	}
	return names
}

// withExposed returns the moves of a plan. If the kernel could bring memory to vCPUs, but
// for VMs in mode auto that have no reason to move now and may run far from their
// memory, which kernel balancing would then move, it plans again with these as if they
// were degraded: by where they may run, not by where they happened to run. A plan that
// pins all of them and copies no more replaces the first one.
func (c *Controller) withExposed(r balance.Request, first []plan.Move) []plan.Move {
	p := c.rules.policy
	pulls := func(m plan.Move) bool { return m.Cost.Bytes > 0 && m.Benefit.AccessCPUs > m.Benefit.WaitCPUs }
	if !mayPull(p.Movers) || r.Host.Kernel.NUMABalancing == "" || !slices.ContainsFunc(first, pulls) {
		return first
	}
	idle := c.idle(r.Host)
	exposed := order.Exposed(r.Host, func(name string) bool {
		return moves(first, name) || slices.Contains(idle, name)
	})
	h := *r.Host
	h.Guests = slices.Clone(h.Guests)
	r.Host, r.Past.Degraded = &h, slices.Clone(r.Past.Degraded)
	for _, name := range exposed {
		g, ok := h.Guest(name)
		if !ok || g.Seen.Load == nil || c.modeOf(g) != policy.ModeAuto {
			return first
		}
		load := *g.Seen.Load
		load.Remote, g.Seen.Load = nil, &load
		since := r.Now.Add(-time.Duration(p.Balance.DegradedFor))
		r.Past.Degraded = slices.DeleteFunc(r.Past.Degraded, func(d plan.Degraded) bool { return d.Guest == name })
		r.Past.Degraded = append(r.Past.Degraded, plan.Degraded{Guest: name, Since: since})
	}
	if len(exposed) == 0 {
		return first
	}
	second, err := balance.Plan(r)
	pinned := func(name string) bool { return moves(second.Moves, name) }
	advised := slices.ContainsFunc(second.Moves, func(m plan.Move) bool { return m.Advised })
	out := slices.ContainsFunc(exposed, func(name string) bool { return !pinned(name) })
	if err != nil || advised || out || copied(second.Moves) > copied(first) {
		return first
	}
	return second.Moves
}

// moves reports whether one of the moves is of a guest.
func moves(all []plan.Move, guest string) bool {
	return slices.ContainsFunc(all, func(m plan.Move) bool { return slices.Contains(m.Names(), guest) })
}

// copied is what moves copy in all.
func copied(all []plan.Move) (sum topology.Bytes) {
	for _, m := range all {
		sum += m.Cost.Bytes
	}
	return sum
}

// holds reports whether kernel balancing is on because a move of this daemon has enabled it.
func (c *competition) holds() bool {
	return c.balancing != "" && c.set != "" && c.set != competitors.Off(c.balancing)
}

// pulls reports whether kernel balancing, which a move has left on, is to stay on: the move has left memory behind
// that its guests did not use. The kernel brings it once they do. It ends when the rest of the moves has been
// finished, or if another guest would be exposed.
func (c *Controller) pulls() bool {
	if !c.competition.holds() || len(c.rest.left) == 0 || c.held() != "" || c.turn.stopping {
		return false
	}
	if c.host.knowledge == outdated {
		return true // the guests that the move has placed seem exposed until the next observation
	}
	h, known := c.Inventory(c.turn.now)
	if !known || !mayPull(c.rules.policy.Movers) || c.rules.policy.Balance.Mode != policy.ModeAuto {
		return false
	}
	idle := c.idle(&h)
	return len(order.Exposed(&h, func(name string) bool { return slices.Contains(idle, name) })) == 0
}

// ownBalancing returns kernel.numa_balancing as it is without this daemon's moves,
// which enable it for a time: as last observed when no move ran.
func (c *Controller) ownBalancing() string {
	r := c.jobs.running
	if c.competition.holds() {
		return c.competition.balancing
	}
	if r != nil && r.job.Kind == MoveJob || c.host.knowledge == outdated {
		return c.competition.found
	}
	return c.host.inventory.Kernel.NUMABalancing
}
