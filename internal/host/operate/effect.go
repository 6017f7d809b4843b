package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// ErrNotBegun means that nothing was changed: the effect was refused, or its
// beginning could not be recorded.
var ErrNotBegun = errors.New("not begun")

var errNoJournal = errors.New("this host was opened without a journal")

// Journal is the journal of the host (record.Journal is one in files).
type Journal interface {
	// Append returns once the entry survives a crash.
	Append(journal.Entry) error
	// Entries returns the entries, oldest first, always including all that
	// journal.Lasting names.
	Entries() ([]journal.Entry, error)
}

// effect is a change in progress whose beginning is in the journal.
type effect struct {
	host  *Host
	entry journal.Entry // its beginning
	// inPart says that part of it was carried out, in case it fails.
	inPart bool
	guest  *inventory.Guest // that is being bound; nil for other effects
}

// begin records that an effect begins, with what undo needs. It is called
// before anything is changed; if it fails, nothing may be changed: after a kill
// the former state would be unknown.
func (h *Host) begin(e journal.Entry) (*effect, error) {
	if h.Journal == nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, errNoJournal)
	}
	e.At, e.ID, e.Kind, e.By = h.Clock().UTC(), NewEffectID(h.Clock()), e.Effect.Began(), h.By
	e.Process = &journal.Process{PID: h.Self.PID, StartTicks: h.Self.StartTicks}
	if err := h.Journal.Append(e); err != nil {
		return nil, fmt.Errorf("%w: its beginning cannot be recorded in the journal: %w", ErrNotBegun, err)
	}
	return &effect{host: h, entry: e}, nil
}

// end records the result of the effect: failed, partial, or done.
func (x *effect) end(failed error, shortfalls []string) error {
	e := x.entry
	e.At, e.Took = x.host.Clock().UTC(), x.host.Clock().Sub(x.entry.At)
	e.Kind, e.Why, e.Process, e.Move = e.Effect.Done(), "", nil, nil
	e.Reasons, e.Request = nil, nil
	e.Shortfalls = shortfalls
	switch {
	case failed != nil && !x.inPart:
		e.Kind, e.Why = e.Effect.Failed(), failed.Error()
	case failed != nil:
		e.Kind, e.Why = e.Effect.Partial(), failed.Error()
	case len(shortfalls) > 0:
		e.Kind = e.Effect.Partial()
	}
	return x.host.append(e)
}

// append records that an effect has ended.
func (h *Host) append(e journal.Entry) error {
	if err := h.Journal.Append(e); err != nil {
		return fmt.Errorf("recording in the journal how it ended: %w", err)
	}
	return nil
}

// CloseInterrupted records an end for every effect whose process ended without
// one: the process was killed, or the host stopped. A guest that is between its
// old and its new placement shows as drift. Migrations stay open: the process had no
// part in the copy, and package migrate resumes them.
func (h *Host) CloseInterrupted(ctx context.Context) error {
	return h.Ledger.Locked(ctx, func(claim.Locked) error {
		entries, err := h.Journal.Entries()
		if err != nil {
			return fmt.Errorf("looking for effects that were interrupted: %w", err)
		}
		for _, e := range journal.Open(entries) {
			if e.Migration != nil || e.Process != nil && h.Ledger.Alive(claim.Process(*e.Process)) {
				continue
			}
			e.At, e.Kind, e.Process, e.Move = h.Clock().UTC(), e.Effect.Interrupted(), nil, nil
			e.Reasons, e.Request = nil, nil
			e.Why = "its process ended before the effect was complete"
			if err := h.append(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// NewEffectID returns an ID that is unique on the host and easy to type.
func NewEffectID(at time.Time) string {
	return at.UTC().Format("20060102T150405-") + strings.ToLower(rand.Text()[:6])
}
