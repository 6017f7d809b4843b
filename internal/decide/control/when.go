package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// when is the state that decides when to plan.
type when struct {
	ticked      time.Time          // the first tick
	plan        plan.Plan          // the last one
	planned     time.Time          // when it was made
	over        map[string]float64 // demand of guests over a threshold at the last plan, in CPUs
	early       time.Time          // when a plan was last made for a guest newly over a threshold
	noted       map[string]float64 // demand of guests over a threshold then, in CPUs
	confirm     time.Time          // when to plan again, as that plan did not find all of them degraded; zero: it did
	waited      time.Time          // when moves last waited for another guest
	answered    time.Time          // when competitors were last answered
	interrupted bool               // a turn that waits for the journal
	stale       int                // moves in a row that were stale
	again       bool               // plan as soon as the host has been observed: the last plan was stale
}

// moment returns the time of the event, rounded to a tenth of the time between
// samples, and to a tenth of a second at most. A turn begins some milliseconds before or after a multiple of that
// time; without rounding, decisions due at the multiple could wait for the next.
func (c *Controller) moment() time.Time {
	return c.when.ticked.Add(c.turn.now.Sub(c.when.ticked).Round(min(c.options.Sample, time.Second) / 10))
}

// degradedFor is how long a guest must have been degraded before it moves.
func (c *Controller) degradedFor() time.Duration {
	return time.Duration(c.rules.policy.Balance.DegradedFor)
}

// planDue reports whether to plan now: Options.Plan after the last plan, and earlier if
//   - a guest has reached degraded_for, or is newly over a threshold,
//   - the last plan was stale, or did not find a guest degraded that is over a threshold,
//   - a refused copy is repaid now,
//   - loads since a job are known,
//   - the kernel has brought the memory for which moves wait, or guests that it serves may move.
func (c *Controller) planDue() bool {
	if c.allServed() {
		return c.roundDue()
	}
	return c.when.again || c.aheadEnded() || c.moment().Sub(c.when.planned) >= c.options.Plan ||
		c.reachedDegradedFor() || c.repaid() || c.reachedLoads() || c.confirms() || c.newlyOverThreshold()
}

// confirms reports whether the plan for guests newly over a threshold is to be confirmed by another one. That plan
// decides by means, so it may not find a guest degraded that the next sample still shows over the threshold.
func (c *Controller) confirms() bool {
	return !c.when.confirm.IsZero() && !c.when.confirm.After(c.moment()) && c.overUnexplained()
}

// overUnexplained reports whether the latest sample shows a guest over a threshold that the last plan did not find
// degraded.
func (c *Controller) overUnexplained() bool {
	for name := range c.overThreshold() {
		if !c.isDegraded(name) {
			return true
		}
	}
	return false
}

// reachedLoads reports whether loads have been measured for long enough after a job since the last plan, which found
// degraded guests: it could not decide about those on the nodes of the job.
func (c *Controller) reachedLoads() bool {
	end := c.loads.settled.Add(least)
	return len(c.when.plan.Degraded) > 0 && end.After(c.when.planned) && !end.After(c.moment())
}

// reachedDegradedFor reports whether a guest has reached degraded_for since the
// last plan.
func (c *Controller) reachedDegradedFor() bool {
	now, degradedFor := c.moment(), c.degradedFor()
	return slices.ContainsFunc(c.when.plan.Degraded, func(g plan.Degraded) bool {
		end := g.Since.Add(degradedFor)
		return end.After(c.when.planned) && !end.After(now)
	})
}

// repaid reports whether a guest has been degraded for long enough since the last plan, so that a copy which that plan
// refused is expected to be repaid.
func (c *Controller) repaid() bool {
	return slices.ContainsFunc(c.when.plan.Blocked, func(b plan.Blocked) bool {
		return b.Kind == plan.BlockedNotRepaid && !c.repaidAt(b).After(c.moment())
	})
}

// repaidAt returns when to plan again for a guest whose copy was not repaid yet. Loads vary, and so does that time: it
// is some time after the last plan at least.
func (c *Controller) repaidAt(b plan.Blocked) time.Time {
	return latest(b.Until, c.when.planned.Add(least))
}

// newlyOverThreshold reports whether the latest sample shows a guest over a
// threshold that was not at the last plan, or needs much more. A guest is degraded only from the plan
// that finds it, so waiting for the regular plan would prolong its degraded_for.
// Guests that begin to work are often idle again for a moment: there are at most two such plans in the time between two
// regular ones, and one more each time a guest needs much more than at the last of them.
func (c *Controller) newlyOverThreshold() bool {
	recent := c.moment().Sub(c.when.early) < c.options.Plan/2
	over := c.overThreshold()
	for name, demand := range over {
		if c.began(name, demand) && (!recent || balance.Grown(c.when.noted[name], demand)) {
			c.when.early, c.when.noted = c.moment(), over
			return true
		}
	}
	return false
}

// overThreshold returns the demands of the guests that the latest sample shows over a threshold, in CPUs.
func (c *Controller) overThreshold() map[string]float64 {
	demands := map[string]float64{}
	over := balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance)
	for i := range c.host.sample.Guests {
		if g := &c.host.sample.Guests[i]; over[g.Name] {
			demands[g.Name] = g.Load.Demand()
		}
	}
	return demands
}

// began reports whether a guest over a threshold was not at the last plan, or needs much more than then.
func (c *Controller) began(name string, demand float64) bool {
	before, was := c.when.over[name]
	return !was || balance.Grown(before, demand)
}

// othersBegan reports whether the latest sample shows guests over a threshold that were not at the last plan and are
// in no queued move: they may need a move more than those that wait.
func (c *Controller) othersBegan() bool {
	for name := range c.overThreshold() {
		if _, was := c.when.over[name]; !was && !c.inQueue(name) {
			return true
		}
	}
	return false
}

// allRelieved reports whether guests were over a threshold at the last plan, and the latest sample shows none: queued
// moves were planned for loads that have ended, or that the moves before them have relieved.
func (c *Controller) allRelieved() bool { return len(c.when.over) > 0 && len(c.overThreshold()) == 0 }

// atOnce is a SampleIn that does not wait.
const atOnce = time.Millisecond

// soon returns the time until a decision needs a sample before the regular one: a
// degraded guest reaches degraded_for, loads have been measured for long enough
// after a job, the load of a guest can be measured for the first time, or a move is to give way. 0: the regular sample
// comes first.
func (c *Controller) soon() time.Duration {
	next, moment := c.options.Sample, c.moment()
	due := func(at time.Time) {
		if at.After(moment) { // decisions use the rounded time
			next = min(next, max(at.Sub(moment), at.Sub(c.turn.now)))
		}
	}
	switch {
	case c.State() == Moving && c.mayGiveWay() && !c.jobs.running.others.IsZero():
		due(c.jobs.running.others.Add(c.degradedFor()))
	case c.State() != Idle:
		return 0
	case c.when.again:
		return atOnce
	default:
		c.dueWhenIdle(due)
	}
	if next == c.options.Sample {
		return 0
	}
	return max(next, atOnce)
}

// dueWhenIdle names the times at which decisions need a sample while no job runs.
func (c *Controller) dueWhenIdle(due func(time.Time)) {
	for _, g := range c.when.plan.Degraded {
		due(g.Since.Add(c.degradedFor()))
	}
	for _, b := range c.when.plan.Blocked {
		if b.Kind == plan.BlockedNotRepaid {
			due(c.repaidAt(b))
		}
	}
	due(c.loads.settled.Add(least))
	due(c.when.confirm)
	if len(c.host.fresh) > 0 {
		due(c.moment().Add(least))
	}
	if c.awaitsRound() {
		due(c.roundAt())
		due(c.steadyAt())
	}
}

// Surge returns from how many CPUs on, used by all guests together, the next sample should be taken at once, as guests
// have begun to work. 0: no decision needs that sooner, or the guests have no vCPUs for it.
func (c *Controller) Surge() float64 {
	if c.State() != Idle && !c.mayGiveWay() || !c.looks() {
		return 0
	}
	used, most := 0.0, 0.0
	for i := range c.host.sample.Guests {
		used += c.host.sample.Guests[i].Load.CPU
	}
	for i := range c.host.inventory.Guests {
		if g := &c.host.inventory.Guests[i]; g.State == "running" && c.modeOf(g) == policy.ModeAuto {
			most += float64(g.Config.VCPUs)
		}
	}
	if from := max(leastSurge, used*surgeShare) + used; from <= most {
		return from
	}
	return 0
}

// looks reports whether guests that begin to work are looked for between samples. Where degraded_for has many samples,
// a part of one more delays nothing much.
func (c *Controller) looks() bool {
	const few = 5
	return c.degradedFor() <= few*c.options.Sample
}

// A surge is as much more than in the last sample as one guest that begins to work adds on a small host, in CPUs and
// as a share. Noise of 15 % does not reach that.
const leastSurge, surgeShare = 0.25, 0.25

// awaitsOthers reports whether the moves of this plan should wait one sample for
// another guest to reach degraded_for, or until its copy is repaid. The next plan then covers both. If the
// first moved at once, the other would have to wait until the move has ended, on a
// host that was planned without it. Moves wait at most once between two regular
// plans.
func (c *Controller) awaitsOthers() bool {
	if c.when.planned.Sub(c.when.waited) < c.options.Plan {
		return false
	}
	degradedFor := c.degradedFor()
	soon := slices.ContainsFunc(c.when.plan.Degraded, func(g plan.Degraded) bool {
		left := g.Since.Add(degradedFor).Sub(c.when.planned)
		return left > 0 && left <= c.options.Sample
	})
	if soon = soon || c.repaidSoon(); soon {
		c.when.waited = c.when.planned
	}
	return soon
}

// copySoon is how long moves wait for the copy of another guest to be repaid at most: about as long as a move without a
// copy takes on a slow host.
const copySoon = 2 * time.Second

// repaidSoon reports whether a copy that the last plan refused is repaid before the next sample, and soon.
func (c *Controller) repaidSoon() bool {
	most := min(c.options.Sample, copySoon)
	return slices.ContainsFunc(c.when.plan.Blocked, func(b plan.Blocked) bool {
		g, ok := c.host.inventory.Guest(b.Guest)
		return ok && c.modeOf(g) == policy.ModeAuto && b.Kind == plan.BlockedNotRepaid &&
			c.repaidAt(b).Sub(c.when.planned) <= most
	})
}

// plan decides which guests should move. It decides nothing while a job runs or
// before the next observation, because the host may be between two states, nor while a
// slow source has not measured all guests.
func (c *Controller) plan() {
	if s := c.State(); s != Held && s != Idle || c.host.sample.Unmeasured {
		return
	}
	find, round := balance.Plan, c.roundDue()
	if round { // it replaces the moves of a plan, and VMs wait for it
		find = balance.Degraded
	}
	c.when.planned, c.when.over = c.moment(), c.overThreshold()
	c.when.again = false
	h, _ := c.Inventory(c.turn.now)
	r := c.request(&h)
	p, err := find(r)
	c.turn.ready.Planned = true
	if err != nil {
		c.log(Error, "planning failed", "error", err)
		return
	}
	c.totals.Plans++
	c.log(Debug, "planned", "sample", c.host.sample.Cost, "degraded", len(p.Degraded), "moves", len(p.Moves),
		"blocked", reasons(p.Blocked))
	c.when.plan, c.competition.served, c.when.confirm = p, nil, time.Time{}
	if c.when.early.Equal(c.when.planned) && c.overUnexplained() {
		c.when.confirm = c.when.planned.Add(least)
	}
	advised, moves := c.divide(p.Moves)
	switch {
	case c.aheadEnded():
		placed := c.allPlaced(&h)
		if moves = c.withServed(r, moves); placed && len(moves) == 0 { // their memory has come
			c.endAhead()
		}
	case round:
		advised = c.advised()
		if moves = c.oneRound(r); len(moves) == 0 {
			c.when.plan.Blocked = servedFirst(p.Degraded)
		}
	case c.awaitsKernel(moves) || len(moves) > 0 && c.awaitsOthers():
		moves = nil
	case len(moves) == len(p.Moves):
		moves = c.withExposed(r, moves)
	}
	for _, m := range c.join(&h, inOrder(&h, c.rules.policy, moves)) {
		c.queueMove(m, Balancer)
	}
	c.advise(advised)
}

// servedFirst says why degraded guests do not move as long as the kernel brings their memory.
func servedFirst(degraded []plan.Degraded) (all []plan.Blocked) {
	for i := range degraded {
		all = append(all, plan.Blocked{Guest: degraded[i].Guest, Kind: plan.BlockedNotYet,
			Why: "kernel balancing brings its memory to its vCPUs first"})
	}
	return all
}

// reasons returns why degraded guests do not move.
func reasons(blocked []plan.Blocked) (all []string) {
	for _, b := range blocked {
		all = append(all, b.Guest+": "+string(b.Kind)+": "+b.Why)
	}
	return all
}

// request is what a plan is made of.
func (c *Controller) request(h *inventory.Host) balance.Request {
	last := &c.when.plan
	past := balance.Past{Moves: c.cooldown.moves, Degraded: last.Degraded, Waiting: last.Waiting, Worked: c.worked(),
		Unmeasured: c.host.fresh}
	return balance.Request{Host: h, Policy: c.rules.policy, Past: past, Now: c.moment()}
}

// whole is the share of its vCPUs' time from which a guest was busy throughout a sample. One that was less
// busy may have begun in the midst of it, so that its demand is greater than the sample shows.
const whole = 0.8

// worked returns for how long, at least, the latest sample shows guests at work. A sample
// is a mean over its window: a guest that was idle until it began to use all its vCPUs used as much of their time
// as one that used this share throughout. So it has worked for that share of the window. A plan
// waits for one more sample if the guest may have begun in the midst of the window.
func (c *Controller) worked() map[string]time.Duration {
	s, b, worked := &c.host.sample, c.rules.policy.Balance, map[string]time.Duration{}
	for i := range s.Guests {
		demand := s.Guests[i].Load.Demand()
		g, ok := c.host.inventory.Guest(s.Guests[i].Name)
		if !ok || demand < b.MinCPUDemand || g.Config.VCPUs == 0 {
			continue
		}
		share := min(1, demand/float64(g.Config.VCPUs))
		worked[g.Name] = time.Duration(share * float64(s.Window))
		if share < whole {
			worked[g.Name] = min(worked[g.Name], time.Duration(b.DegradedFor)/2)
		}
	}
	return worked
}

// divide separates the moves that are only advised from those that are made. It
// leaves out guests of interrupted moves, which are finished first.
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

// join joins moves that are small together, and moves of VMs whose memory the kernel can
// bring to their vCPUs at the same time.
func (c *Controller) join(h *inventory.Host, moves []plan.Move) []plan.Move {
	moves = plan.Join(moves, c.small(h))
	joined := plan.JoinPulled(moves)
	if slices.ContainsFunc(joined, func(m plan.Move) bool { return !c.canPull(h, m) }) {
		return moves
	}
	return joined
}

// small returns the bytes that moves may copy together to be made as one batch: as
// much as the host copies in 4 s. Where nothing was copied yet, no amount is known to be small.
func (c *Controller) small(h *inventory.Host) topology.Bytes {
	const seconds = 4
	if h.MoverBytesPerSecond == 0 {
		return 0
	}
	rate, _ := c.rules.policy.Balance.CopyRate(h.MoverBytesPerSecond)
	return seconds * rate
}
