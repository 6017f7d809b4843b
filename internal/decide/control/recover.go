package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
)

// recovery is the state of moves that were interrupted by a crash, a pause, the
// end of a window, or a failed step.
type recovery struct {
	cut map[string]bool // guests of such moves
	// failed is when a job last failed. Since then a move may be without its end,
	// and the daemon retries it after a while. Zero: none failed.
	failed time.Time
}

// moved records whether a move ended or must be resumed.
func (r *recovery) moved(m *Moved) {
	for _, name := range m.Move.Names() {
		if delete(r.cut, name); m.End == "" {
			r.cut[name] = true
		}
	}
}

// recover queues a job that finishes the moves that the journal shows as
// interrupted, before all other jobs.
func (c *Controller) recover(entries []journal.Entry) {
	open := journal.InterruptedMoves(entries)
	clear(c.recovery.cut)
	for _, e := range open {
		for _, name := range e.Guests {
			c.recovery.cut[name] = true
		}
	}
	if len(open) > 0 && !slices.ContainsFunc(c.jobs.queue, func(j Job) bool { return j.Kind == RecoverJob }) {
		c.jobs.queue = slices.Insert(c.jobs.queue, 0, Job{Kind: RecoverJob})
	}
}

// readJournal requests the journal, to find interrupted moves.
func (c *Controller) readJournal() { c.turn.ready.ReadJournal = true }

// retryRecovery retries moves that could not be finished, after one observation
// interval.
func (c *Controller) retryRecovery() bool {
	r := &c.recovery
	if r.failed.IsZero() || c.jobs.busy() || c.held() != "" || c.turn.now.Sub(r.failed) < c.options.Observe {
		return false
	}
	r.failed = time.Time{}
	c.readJournal()
	return true
}
