package migrate

import (
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// open is the beginning of the VM's part on this host that has no end; nil: there is none.
func (h *Host) open(name string) (*journal.Entry, error) {
	entries, err := h.Journal.Entries()
	if err != nil {
		return nil, fmt.Errorf("looking for the migration of VM %s: %w", name, err)
	}
	for _, e := range slices.Backward(journal.OpenMigrations(entries)) {
		if e.Migration.Guest == name {
			return &e, nil
		}
	}
	return nil, nil //nolint:nilnil // no part is no failure
}

// ended is the end of this host's part as source or as target, if it has one: it is not begun again.
func (h *Host) ended(name string, leave bool, began time.Time) (*journal.Entry, error) {
	entries, err := h.Journal.Entries()
	if err != nil {
		return nil, fmt.Errorf("looking for the migration of VM %s: %w", name, err)
	}
	for _, e := range slices.Backward(entries) {
		if m := e.Migration; m != nil && m.Leave == leave && m.Guest == name && m.Began.Equal(began) && e.Closes() {
			return &e, nil
		}
	}
	return nil, nil //nolint:nilnil // as above
}

// begin records that a part begins.
func (h *Host) begin(effect journal.Effect, m *plan.Migration, what, why string) (*journal.Entry, error) {
	e := journal.Entry{At: h.Clock().UTC(), ID: operate.NewEffectID(h.Clock()), Kind: effect.Began(), Effect: effect,
		Guests: []string{m.Guest}, What: what, Why: why, By: h.By, Migration: m,
		Process: &journal.Process{PID: h.Self.PID, StartTicks: h.Self.StartTicks}}
	if err := h.Journal.Append(e); err != nil {
		return nil, fmt.Errorf("%w: its beginning cannot be recorded in the journal: %w", operate.ErrNotBegun, err)
	}
	return &e, nil
}

// close records the end of a part that failed or is complete.
func (h *Host) close(open *journal.Entry, failed error, short []string) error {
	kind := open.Effect.Done()
	if failed != nil {
		kind = open.Effect.Failed()
	}
	return h.end(open, kind, failed, short)
}

// closeInPart records the end of a part by which the VM has arrived.
func (h *Host) closeInPart(open *journal.Entry, failed error, short []string) error {
	kind := open.Effect.Done()
	if failed != nil || len(short) > 0 {
		kind = open.Effect.Partial()
	}
	return h.end(open, kind, failed, short)
}

func (h *Host) end(open *journal.Entry, kind journal.Kind, failed error, short []string) error {
	e := *open
	e.At, e.Took, e.Kind, e.Why, e.Process, e.Shortfalls = h.Clock().UTC(), h.Clock().Sub(open.At), kind, "", nil, short
	if failed != nil {
		e.Why = failed.Error()
	}
	if err := h.Journal.Append(e); err != nil {
		return fmt.Errorf("recording in the journal how it ended: %w", err)
	}
	return nil
}
