package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	judge "github.com/numavisor/numavisor/internal/decide/alarm"
	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// alarms is the state of the alarms of the host.
type alarms struct {
	state alarm.State
	saved time.Time // by this daemon; zero: not yet
}

// judge compares the latest figures with the thresholds and records the alarms
// that changed.
func (c *Controller) judge() {
	var changes []alarm.Alarm
	c.alarms.state, changes = judge.Judge(c.rules.policy.Alarms, c.readings(), c.alarms.state, c.turn.now)
	for _, a := range changes {
		what := string(a.Severity) + ": " + a.Object.String() + ": " + string(a.Quantity)
		e := journal.Entry{Kind: journal.Raised, Guests: a.Guests, What: what, Why: a.Why, By: "thresholds"}
		if !a.Active() {
			e.Kind = journal.Cleared
		}
		c.note(e)
	}
	if len(changes) > 0 || c.turn.now.Sub(c.alarms.saved) >= c.options.SaveAlarms {
		c.saveAlarms(changes)
	}
}

func (c *Controller) saveAlarms(changes []alarm.Alarm) {
	c.alarms.saved = c.turn.now
	c.turn.ready.SaveAlarms = &Alarms{c.alarms.state, changes}
}

// readings collects the input of the alarms. A host without a means to measure
// accesses raises no alarm for that, nor for what its hypervisor never reports.
func (c *Controller) readings() judge.Input {
	sample, h := c.host.sample, &c.host.inventory
	sample.Gaps = slices.DeleteFunc(slices.Clone(sample.Gaps), func(g inventory.Gap) bool {
		return g.Kind == inventory.AccessUnmeasured || g.Kind == inventory.NotReported
	})
	in := judge.Input{
		Sample: sample, Topology: &h.Topology, Competitors: c.competition.seen,
		Gaps: slices.Concat(h.Gaps, c.host.damaged), FailedMoves: map[string]int{},
	}
	if why := c.host.failure; why != "" {
		in.Gaps = slices.Insert(
			in.Gaps,
			0,
			inventory.Gap{
				Kind:   inventory.HostUnread,
				Object: inventory.HostRef(),
				What:   "its VMs and settings",
				Why:    why,
			},
		)
	}
	for i := range h.Guests {
		if g := &h.Guests[i]; g.State == "running" {
			in.Guests = append(in.Guests, c.reading(g))
		}
	}
	for name, times := range c.cooldown.failed {
		in.FailedMoves[name] = len(times)
	}
	return in
}

// reading returns the figures of a running guest that its sample does not contain.
func (c *Controller) reading(g *inventory.Guest) judge.Guest {
	known := judge.Guest{Name: g.Name, PageSize: g.Config.PageSize}
	if len(g.Seen.Threads) > 0 {
		known.LocalShare = drift.LocalShare(*g, &c.host.inventory.Topology)
	}
	if g.Placement != nil && !c.onTheMove(g.Name) {
		known.Nodes = g.Placement.Nodes
		if there, _ := drift.OnIntended(*g); there != nil && !c.rest.left[g.Name] { // what a move left counts, too
			away := 1 - *there
			known.DriftShare = &away
		}
	}
	return known
}
