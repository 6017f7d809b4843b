package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
)

// giveWay ends the copying of a move of the balancer, if others have become degraded that need more CPUs than its
// guests: one job runs at a time, and a copy may take long. The next plan decides about all of them together.
func (c *Controller) giveWay() {
	r := c.jobs.running
	if r == nil || r.job.Kind != MoveJob || r.job.By != Balancer || r.stopped || r.cancelled || r.givesWay {
		return
	}
	others, own := c.demandsNow(r.job.Move.Names())
	switch {
	case others <= own:
		r.others = time.Time{}
	case r.others.IsZero():
		r.others = c.turn.now.Add(-c.host.sample.Window)
	}
	if r.others.IsZero() || c.turn.now.Sub(r.others) < time.Duration(c.rules.policy.Balance.DegradedFor) {
		return
	}
	r.givesWay, c.turn.ready.StopJob = true, StopGivesWay
	c.jobs.dropPlanned()
}

// demandsNow returns how many CPUs guests that are newly over a threshold use and wait for, and how many these guests.
func (c *Controller) demandsNow(these []string) (others, own float64) {
	over := balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance)
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		switch {
		case slices.Contains(these, g.Name):
			own += g.Load.Demand()
		case over[g.Name] && !c.when.over[g.Name] && !c.inQueue(g.Name):
			others += g.Load.Demand()
		}
	}
	return others, own
}

// inQueue reports whether a queued move is of a guest.
func (c *Controller) inQueue(guest string) bool {
	return slices.ContainsFunc(c.jobs.queue, func(j Job) bool { return slices.Contains(j.Move.Names(), guest) })
}
