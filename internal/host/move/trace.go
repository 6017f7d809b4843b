package move

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/journal"
)

// progressText says what a part of a move does to a VM, in the report of progress.
var progressText = map[journal.TraceStep]string{
	journal.TracePrepare:  "preparing",
	journal.TracePin:      "moving the vCPUs of",
	journal.TraceRestrict: "restricting to its nodes:",
}

// elapsed is the time since the move began.
func (m *mover) elapsed() time.Duration { return m.host.Clock().Sub(m.began) }

// traceSteps records the steps of a guest that were carried out from began on.
func (m *mover) traceSteps(guest string, began time.Duration, part journal.TraceStep, outcomes []apply.Outcome) {
	for _, o := range outcomes {
		if o.Status == apply.Skipped {
			continue
		}
		step := part
		if o.Step.Pins() {
			step = journal.TracePin
		}
		m.trace.Add(guest, step, began, began+o.Took, 0)
		began += o.Took
	}
}

// traceSlice records the slice that has just been copied, and the wait before it.
func (m *mover) traceSlice(t *apply.Turn) {
	at := slices.IndexFunc(m.guests, func(g *moving) bool { return g.turn == t })
	guest, end := m.guests[at].Guest, m.elapsed()
	began := end - m.pace.took
	if m.pace.waited > 0 {
		m.trace.Add(guest, journal.TracePace, began-m.pace.waited, began, 0)
	}
	m.trace.Add(guest, journal.TraceCopy, began, end, m.pace.slice)
}
