package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
)

// recovery is about moves that were cut short: by a crash, a pause, the end of a
// window, or a step that failed.
type recovery struct {
	cut map[string]bool // guests of such moves
	// failed is when a job last failed: a move may be without its end since then,
	// and is taken up after a while. Zero: none failed.
	failed time.Time
}

// moved takes over whether a move ended or is to be resumed.
func (r *recovery) moved(m *Moved) {
	for _, name := range m.Move.Names() {
		if delete(r.cut, name); m.End == "" {
			r.cut[name] = true
		}
	}
}

// recover has the moves finished first that the journal shows as cut short.
func (c *Controller) recover(entries []journal.Entry) {
	open := journal.CutShort(entries)
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

// readJournal looks for moves that were cut short, to be finished.
func (c *Controller) readJournal() { c.turn.ready.ReadJournal = true }

// retryRecovery looks again for moves that could not be finished, once things
// may have changed.
func (c *Controller) retryRecovery() bool {
	r := &c.recovery
	if r.failed.IsZero() || c.jobs.busy() || c.held() != "" || c.turn.now.Sub(r.failed) < c.options.Observe {
		return false
	}
	r.failed = time.Time{}
	c.readJournal()
	return true
}
