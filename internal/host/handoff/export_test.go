package handoff

import (
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
)

// Watched is what those who watch see of hands, as Run feeds it.
type Watched struct{ tally }

// See takes the present state, as Run does after each step and each stored record.
func (w *Watched) See(h *Hands, now time.Time) {
	w.record(h.Record(), now)
	w.guests(h)
}

// Holdings returns what each guest has.
func (w *Watched) Holdings(now time.Time) map[string]handoff.Holding { return w.holdings(now) }
