package control

import (
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/inventory"
)

// quietTime is how long no job may have run and no guest may have been degraded
// or over a threshold before the rest of a move is finished. That copies small
// pages, for each of which the kernel interrupts the guest's CPUs. A host that has
// been calm for some minutes can bear it, and nothing depends on it: the guests'
// vCPUs and the memory that they access are on their nodes.
const quietTime = 5 * time.Minute

// restLatest is how long after the last move the rest waits for a quiet time: a
// guest that cannot be relieved may stay degraded for ever.
const restLatest = time.Hour

// rest is what moves left for a quiet time: the limit of guests' memory to their
// nodes, and the memory of their processes. After a restart of the daemon, the
// missing limit is drift, and is repaired as such.
type rest struct {
	left  map[string]bool // guests, by name
	moved time.Time       // when the last move ended
	quiet time.Time       // the host has been quiet since
}

func (r *rest) add(m *Moved, now time.Time) {
	r.moved, r.quiet = now, now
	for _, name := range m.Move.Names() {
		delete(r.left, name)
	}
	for _, name := range m.Left {
		r.left[name] = true
	}
}

func (r *rest) forgetGone(guests []inventory.Guest) {
	maps.DeleteFunc(r.left, func(name string, _ bool) bool {
		return !slices.ContainsFunc(guests, func(g inventory.Guest) bool { return g.Name == name && g.PID > 0 })
	})
}

// finishRest queues the rest of one move once the host is quiet.
func (c *Controller) finishRest() {
	if len(c.rest.left) == 0 || c.jobs.busy() || c.State() != Idle {
		return
	}
	over := balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance)
	if len(c.when.plan.Degraded) > 0 || len(over) > 0 {
		c.rest.quiet = c.turn.now
	}
	if c.turn.now.Sub(c.rest.quiet) < quietTime && c.turn.now.Sub(c.rest.moved) < restLatest {
		return
	}
	name := slices.Min(slices.Collect(maps.Keys(c.rest.left)))
	c.jobs.queue = append(c.jobs.queue, Job{ID: "rest-" + name, Kind: RestJob, Guest: name, By: Balancer,
		Why: "its move left this for a quiet time"})
}

// restEnded handles the end of a rest. One that failed is not tried again: the
// missing limit is drift from now on.
func (c *Controller) restEnded(j Job, e JobEnded) {
	if e.Stopped {
		c.log(Info, "the rest of a move was interrupted", "guest", j.Guest)
		return
	}
	delete(c.rest.left, j.Guest)
	if e.Err != nil || len(e.Shortfalls) > 0 {
		c.log(Warn, "the rest of a move was not done in full", "guest", j.Guest, "error", e.Err,
			"shortfalls", e.Shortfalls)
	}
}
