package control

import (
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/status"
)

// pause is what suspends moves that the mode allows.
type pause struct {
	order *status.Pause // of an operator; nil: none
	open  bool          // a maintenance window was open at the last tick
}

func (p *pause) remember(e journal.Entry) {
	switch e.Kind {
	case journal.Paused:
		p.order = &status.Pause{Since: e.At, Until: e.Until, Why: e.Why}
	case journal.Resumed:
		p.order = nil
	default: // no other entry pauses
	}
}

// held returns why automatic moves are suspended although the mode allows them;
// empty: they are not.
func (c *Controller) held() string { return c.heldAt(c.turn.now) }

func (c *Controller) heldAt(now time.Time) string {
	if p := c.pause.order; p != nil {
		if p.Why == "" {
			return "paused"
		}
		return "paused: " + p.Why
	}
	b := c.rules.policy.Balance
	if b.Open(now) {
		return ""
	}
	windows := make([]string, len(b.Windows))
	for i, w := range b.Windows {
		windows[i] = w.String()
	}
	return "outside the maintenance windows " + strings.Join(windows, ", ")
}

// pauseMoves suspends moves until they are resumed, or for a time. This takes
// effect at once, even if it cannot be made persistent.
func (c *Controller) pauseMoves(e Pause) {
	if e.For < 0 {
		const text = "cannot pause for %v: the duration must be positive, or 0 for a pause until 'numavisor resume'"
		c.refuse(e.Order, ErrMalformed, text, e.For)
		return
	}
	p := status.Pause{Since: c.turn.now, Why: e.Why}
	if e.For > 0 {
		p.Until = p.Since.Add(e.For)
	}
	c.pause.order = &p
	c.stopJob(StopPaused)
	c.noteFor(e.Order, journal.Entry{
		Kind: journal.Paused, What: "balancing paused", Why: p.Why, Until: p.Until, By: string(Operator),
	})
}

// resumeMoves ends a pause.
func (c *Controller) resumeMoves(order OrderID) {
	if c.pause.order == nil {
		c.refuse(order, ErrConflict, "balancing is not paused")
		return
	}
	c.pause.order = nil
	c.readJournal()
	c.noteFor(order, journal.Entry{Kind: journal.Resumed, What: "balancing resumed", By: string(Operator)})
}

// endPause ends a pause whose time is over.
func (c *Controller) endPause() {
	if p := c.pause.order; p != nil && !p.Until.IsZero() && !c.turn.now.Before(p.Until) {
		c.pause.order = nil
		c.note(journal.Entry{Kind: journal.Resumed, What: "balancing resumed: the pause has ended", By: "clock"})
		c.readJournal()
	}
}

// checkWindows stops the running job when its maintenance window ends, and
// resumes it when the next one begins. Moves that an operator ordered, or ordered
// to roll back, continue.
func (c *Controller) checkWindows() {
	open := c.rules.policy.Balance.Open(c.turn.now)
	if r := c.jobs.running; r != nil && !open && r.job.By != Operator && !r.cancelled {
		c.stopJob(StopWindowClosed)
	}
	if open && !c.pause.open && c.pause.order == nil {
		c.readJournal()
	}
	c.pause.open = open
}
