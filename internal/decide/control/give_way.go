package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// giveWay ends the copying of a move of the balancer, if others have become degraded that need more CPUs than its
// guests: one job runs at a time, and a copy may take long. The next plan decides about all of them together. While the
// kernel brings the memory, any other guest is a reason: the kernel goes on without the move.
func (c *Controller) giveWay() {
	r := c.jobs.running
	if !c.mayGiveWay() {
		return
	}
	others, own := c.demandsNow(&r.job.Move)
	switch {
	case others == 0, others <= own && !r.pulled:
		r.others = time.Time{}
	case r.others.IsZero():
		r.others = c.turn.now.Add(-c.host.sample.Window)
	}
	if r.others.IsZero() || c.turn.now.Sub(r.others) < c.degradedFor() {
		return
	}
	r.givesWay, c.turn.ready.StopJob = true, StopGivesWay
	c.jobs.dropPlanned()
}

// mayGiveWay reports whether a move of the balancer runs that has not been stopped.
func (c *Controller) mayGiveWay() bool {
	r := c.jobs.running
	return r != nil && r.job.Kind == MoveJob && r.job.By == Balancer && !r.stopped && !r.cancelled && !r.givesWay
}

// demandsNow returns how many CPUs guests need that the move does not help any more, and how many those need whose
// memory it copies. The first are guests that the next plan may move and that have begun to work since the last one,
// and among them guests of the move itself that copy nothing and wait for CPUs: the move was planned for another load.
func (c *Controller) demandsNow(m *plan.Move) (others, own float64) {
	over := c.overThreshold()
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		at := slices.IndexFunc(m.Guests, func(each plan.GuestMove) bool { return each.Guest == g.Name })
		demand, is := over[g.Name]
		waits := g.Load.Wait >= c.rules.policy.Balance.Wait*demand
		switch {
		case at >= 0 && m.Guests[at].Bytes > 0:
			own += g.Load.Demand()
		case !is || !c.began(g.Name, demand):
		case at >= 0 && waits, at < 0 && !c.inQueue(g.Name) && c.mayMove(g.Name, demand):
			others += demand
		}
	}
	return others, own
}

// mayMove reports whether a plan may move a guest with this demand, in CPUs: it is in mode auto, and in no cooldown.
func (c *Controller) mayMove(guest string, demand float64) bool {
	g, ok := c.host.inventory.Guest(guest)
	if !ok || c.modeOf(g) != policy.ModeAuto {
		return false
	}
	past := balance.Past{Moves: c.cooldown.moves}
	return past.Cooldown(guest, min(demand, float64(g.Config.VCPUs)), c.turn.now, c.rules.policy.Balance).IsZero()
}

// inQueue reports whether a queued move is of a guest.
func (c *Controller) inQueue(guest string) bool {
	return slices.ContainsFunc(c.jobs.queue, func(j Job) bool { return slices.Contains(j.Move.Names(), guest) })
}
