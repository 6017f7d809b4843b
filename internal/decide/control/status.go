package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
)

// Status returns the state of the host at a time. Self, the daemon's own use of
// resources, is unknown here. Later steps do not change the result.
func (c *Controller) Status(now time.Time) status.Status {
	h := &c.host.inventory
	r := status.Status{
		Host: h.Name, Started: c.turn.started, Topology: h.Topology, Sample: c.host.sample,
		Mode: c.rules.policy.Balance.Mode, Policy: status.Policy{Digest: c.rules.policy.Digest()}, Held: c.heldAt(now),
		Pause:   c.pause.order,
		Planned: c.when.planned, Degraded: c.when.plan.Degraded, Blocked: c.when.plan.Blocked,
		Advice: slices.Clone(c.advice.current), Competitors: c.competition.seen, Totals: c.totals,
		MoverBytesPerSecond: c.loads.copies.BytesPerSecond(), Alarms: c.alarms.state.Active(),
	}
	r.Topology.Nodes = slices.Clone(r.Topology.Nodes) // samples change them
	for i := range h.Guests {
		r.Guests = append(r.Guests, c.guest(&h.Guests[i]))
	}
	if c.jobs.running != nil {
		r.Moving = append(r.Moving, c.jobs.running.shown)
	}
	for _, j := range c.jobs.queue {
		if j.Kind == MoveJob {
			r.Moving = append(r.Moving, status.Moving{ID: j.ID, Move: j.Move, Step: "waits", Total: total(j.Move)})
		}
	}
	return r
}

func (c *Controller) guest(g *inventory.Guest) status.Guest {
	r := status.Guest{
		Name: g.Name, State: g.State, Managed: g.Managed, Adopted: g.Adopted, Mode: c.modeOf(g),
		VCPUs: g.Config.VCPUs, Memory: g.Config.Memory, Drift: c.differences(g),
	}
	if g.Placement != nil {
		r.Nodes = g.Placement.Nodes
	}
	if len(g.Seen.Threads) > 0 {
		if r.LocalShare = drift.LocalShare(*g, &c.host.inventory.Topology); r.LocalShare != nil {
			r.LocalSource = string(drift.LocalBy(g, &c.host.inventory.Topology))
		}
	}
	for _, b := range c.when.plan.Blocked {
		if b.Guest == g.Name && b.Kind == plan.BlockedCooldown {
			r.CooldownUntil = b.Until
		}
	}
	return r
}
