package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
)

// Recover takes up moves that were cut short (journal.CutShort): by kill -9, a
// power cut, or a pause. Each is finished where that is still right; where its
// room is gone by now, guests go back to where they were. What has ended or
// was bound otherwise meanwhile is left alone. Every move gets its end in the
// journal, which are returned; those that ctx stops again do not.
func (h *Host) Recover(ctx context.Context, cut []journal.Entry, keep Journal, progress func(status.Moving), pace Pacer) ([]journal.Entry, error) {
	var ends []journal.Entry
	var failed []error
	for _, begin := range cut {
		if begin.Move == nil {
			failed = append(failed, fmt.Errorf("move %s: the journal does not say what it was", begin.ID))
			continue
		}
		m := *begin.Move
		end, err := h.Move(ctx, MoveRequest{ID: begin.ID, Move: m, By: "restart", Journal: keep, Progress: progress, Pace: pace, again: true})
		switch {
		case ctx.Err() != nil:
			return ends, errors.Join(append(failed, err)...)
		case errors.Is(err, ErrBusy):
			failed = append(failed, err) // somebody binds it now: next time
			continue
		case end.Kind == "":
			end, err = h.unmake(ctx, begin, keep, err)
		}
		if end.Kind != "" {
			ends = append(ends, end)
		}
		failed = append(failed, err)
	}
	return ends, errors.Join(failed...)
}

// unmake ends a move that cannot be finished: its guests that are still under
// way go back to where they were.
func (h *Host) unmake(ctx context.Context, begin journal.Entry, keep Journal, why error) (journal.Entry, error) {
	inv, err := h.Observe(ctx)
	if err != nil {
		return journal.Entry{}, errors.Join(why, err)
	}
	end := journal.Entry{Kind: journal.MoveUndone, ID: begin.ID, Guests: begin.Guests, By: "restart", Why: why.Error(), Move: begin.Move}
	var failed error
	for _, gm := range begin.Move.Guests {
		said, err := h.sendBack(ctx, &inv, gm)
		end.What += ", " + said
		failed = errors.Join(failed, err)
	}
	end.What = end.What[2:]
	if failed != nil {
		end.Kind, end.Why = journal.MoveFailed, errors.Join(why, failed).Error()
	}
	end.At = h.Clock()
	return end, keep.Append(end)
}

// sendBack binds a guest to what it had before a move, and says how it is left.
func (h *Host) sendBack(ctx context.Context, inv *inventory.Host, gm plan.GuestMove) (string, error) {
	i := slices.IndexFunc(inv.Guests, func(g inventory.Guest) bool { return g.Name == gm.Guest })
	if i < 0 || inv.Guests[i].State == "shutoff" {
		return gm.Guest + " has ended", nil
	}
	g := &inv.Guests[i]
	target := adopt.Align(gm.Placement, g.Config)
	switch {
	case samePlacement(g.Placement, gm.Undo.Placement):
		return gm.Guest + " is bound as before", nil
	case !samePlacement(g.Placement, &target):
		return gm.Guest + " was bound otherwise meanwhile, and is left so", nil
	case gm.Undo.Placement == nil:
		return gm.Guest + " was not bound before: it is left with the placement it was to get", nil
	}
	b, err := h.bindTo(ctx, gm.Guest, guest.Intent{Spec: *g.Spec, Placement: *gm.Undo.Placement, Adopted: g.Adopted})
	if err != nil {
		return gm.Guest + " could not go back", fmt.Errorf("guest %s: going back: %w", gm.Guest, err)
	}
	return gm.Guest + " is back: " + b.Truth.Verdict(), nil
}
