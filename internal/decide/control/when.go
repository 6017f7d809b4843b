package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// when says when plans are made.
type when struct {
	ticked      time.Time // the first tick
	plan        plan.Plan // the last one
	planned     time.Time // when it was made
	lacking     map[string]bool
	early       time.Time // when a plan was last made for a guest that newly lacked something
	waited      time.Time // when moves last waited for the degraded_for of another guest to end
	answered    time.Time // when competitors were last answered
	interrupted bool      // in mid-turn, until the journal was read
}

// moment is the time of the event, to a tenth of the time between samples since
// they began. A turn comes some milliseconds before or after a whole number of
// them, and what falls on it must not wait for the next.
func (c *Controller) moment() time.Time {
	return c.when.ticked.Add(c.turn.now.Sub(c.when.ticked).Round(c.options.Sample / 10))
}

// planDue reports whether it is time for a plan: the regular one, or one
// because a guest reached degraded_for or newly lacks something.
func (c *Controller) planDue() bool {
	return c.moment().Sub(c.when.planned) >= c.options.Plan || c.degradedLongEnough() || c.newlyLacking()
}

// degradedLongEnough reports whether a guest has been degraded long enough since the last plan.
func (c *Controller) degradedLongEnough() bool {
	now, degradedFor := c.moment(), time.Duration(c.rules.policy.Balance.DegradedFor)
	return slices.ContainsFunc(c.when.plan.Degraded, func(g plan.Degraded) bool {
		end := g.Since.Add(degradedFor)
		return end.After(c.when.planned) && !end.After(now)
	})
}

// newlyLacking reports whether the latest sample shows a guest short of
// something that the last plan did not know of: to wait for the next plan would
// count towards its degraded_for. There is at most one such plan between two regular ones.
func (c *Controller) newlyLacking() bool {
	if c.moment().Sub(c.when.early) < c.options.Plan {
		return false
	}
	for name := range balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance) {
		if !c.when.lacking[name] {
			c.when.early = c.moment()
			return true
		}
	}
	return false
}

// awaitsOthers reports whether the moves of this plan should wait for a guest
// that reaches degraded_for at the next sample, when there will be a plan with both.
// If one moved at once the other would wait until that is done, and find the
// host as the first has left it. No guest waits twice between two regular plans.
func (c *Controller) awaitsOthers() bool {
	if c.when.planned.Sub(c.when.waited) < c.options.Plan {
		return false
	}
	degradedFor := time.Duration(c.rules.policy.Balance.DegradedFor)
	soon := slices.ContainsFunc(c.when.plan.Degraded, func(g plan.Degraded) bool {
		left := g.Since.Add(degradedFor).Sub(c.when.planned)
		return left > 0 && left <= c.options.Sample
	})
	if soon {
		c.when.waited = c.when.planned
	}
	return soon
}

// plan decides which guests should move. While a job runs it decides nothing:
// the host is half in one state and half in another. Nor does it before the
// host was observed again.
func (c *Controller) plan() {
	if s := c.State(); s != Held && s != Idle {
		return
	}
	c.when.planned, c.when.lacking = c.moment(), balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance)
	h, _ := c.Inventory(c.turn.now)
	past := balance.Past{Moves: c.cooldown.moves, Degraded: c.when.plan.Degraded}
	p, err := balance.Plan(balance.Request{Host: &h, Policy: c.rules.policy, Past: past, Now: c.when.planned})
	c.turn.ready.Planned = true
	if err != nil {
		c.log(Error, "no plan could be made", "error", err)
		return
	}
	c.totals.Plans++
	c.log(Debug, "planned", "sample", c.host.sample.Cost, "degraded", len(p.Degraded), "moves", len(p.Moves))
	c.when.plan = p
	advised, moves := c.divide(p.Moves)
	if len(moves) > 0 && c.awaitsOthers() {
		moves = nil
	}
	for _, m := range plan.Join(moves, c.small(&h)) {
		c.queueMove(m, Balancer)
	}
	c.advise(advised)
}

// divide separates the moves that are only advised from those that are made.
// Guests of moves that were cut short are left out: those moves are finished first.
func (c *Controller) divide(all []plan.Move) (advised, made []plan.Move) {
	held := c.held() != ""
	for _, m := range all {
		switch {
		case slices.ContainsFunc(m.Names(), func(name string) bool { return c.recovery.cut[name] }):
		case m.Advised || held:
			advised = append(advised, m)
		default:
			made = append(made, m)
		}
	}
	return advised, made
}

// small is how much moves may copy together that are made as one: what takes a few seconds.
func (c *Controller) small(h *inventory.Host) topology.Bytes {
	const seconds = 4
	rate, _ := c.rules.policy.Balance.CopyRate(h.MoverBytesPerSecond)
	return seconds * rate
}
