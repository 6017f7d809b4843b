package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// Recover handles every interrupted move: its process crashed, or it was
// stopped. Recover finishes the move, or continues its rollback; if its
// placements have become illegal (another guest has the room), or a step of it
// fails again, it rolls the move back; if its guests have ended, it records
// that. It leaves moves alone that another process is carrying out. Of r only
// By, Journal, Progress, Back and FullSpeed apply. Calling Recover again does nothing
// more. It also removes what killed processes have left in the ledger of claims.
func (h *Host) Recover(ctx context.Context, r Request) ([]Result, error) {
	entries, err := r.Journal.Entries()
	if err != nil {
		return nil, fmt.Errorf("looking for interrupted moves: %w", err)
	}
	var all []Result
	var errs []error
	for _, began := range journal.InterruptedMoves(entries) {
		if began.Move == nil || ctx.Err() != nil {
			continue
		}
		r.ID, r.Move, r.Undoes = began.ID, *began.Move, began.Undoes
		moved, ok, err := h.resume(ctx, r)
		if ok {
			all = append(all, moved)
		}
		errs = append(errs, err)
	}
	h.removeVoidClaims(ctx)
	return all, errors.Join(errs...)
}

// removeVoidClaims removes claims of processes that have ended. An error is no error of the recovery: every decision
// reports a ledger that it cannot read.
func (h *Host) removeVoidClaims(ctx context.Context) {
	_ = h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		_, err := tx.Claims()
		return err
	})
}

// resume continues one move; ok is false if there is nothing to continue.
func (h *Host) resume(ctx context.Context, r Request) (moved Result, ok bool, err error) {
	m := h.mover(r)
	var goOn func(context.Context) (Result, error)
	err = h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		open, undoing, err := m.isOpen()
		if err != nil || !open {
			return err
		}
		inv, err := m.observe(ctx, tx)
		if err != nil {
			return err
		}
		goOn, err = m.wayOn(ctx, tx, &inv, undoing)
		return err
	})
	switch {
	case errors.Is(err, operate.ErrBusy):
		return m.moved, false, nil // another process is carrying it out
	case err != nil:
		return m.moved, false, fmt.Errorf("resuming the move of %s: %w", strings.Join(r.Move.Names(), ", "), err)
	case goOn == nil:
		return m.moved, false, nil
	}
	moved, err = goOn(ctx)
	return moved, true, err
}

// isOpen checks again under the ledger's lock whether the move is unfinished,
// and returns the journal's entry of its rollback: nil, it has none.
func (m *mover) isOpen() (open bool, undoing *journal.Entry, err error) {
	entries, err := m.Journal.Entries()
	if err != nil {
		return false, nil, err
	}
	open = slices.ContainsFunc(journal.InterruptedMoves(entries), func(e journal.Entry) bool { return e.ID == m.ID })
	at := slices.IndexFunc(entries, func(e journal.Entry) bool { return e.ID == m.ID && e.Kind == journal.MoveUndoing })
	if at >= 0 {
		undoing = &entries[at]
	}
	return open, undoing, nil
}

// wayOn decides how to continue, and claims the resources for that.
func (m *mover) wayOn(
	ctx context.Context, tx claim.Locked, inv *inventory.Host, undoing *journal.Entry,
) (func(context.Context) (Result, error), error) {
	m.began, m.again = m.host.Clock(), true
	left, err := m.present(ctx, inv, m.Move.Guests)
	if err != nil {
		return nil, err
	}
	fail := func(why string) func(context.Context) (Result, error) {
		return func(context.Context) (Result, error) {
			return m.finish(ctx, m.close(journal.Entry{Kind: journal.MoveFailed, What: m.Move.String(), Why: why}))
		}
	}
	if len(left) == 0 {
		return fail("the VM has ended"), nil
	}
	if why := placedSince(inv, left); why != "" {
		return fail(why + "; it stays as it is"), nil
	}
	if m.Undoes != "" {
		m.moved.Cancelled = true
		return m.goBack(tx, inv, left, errors.New("undo of "+m.Undoes))
	}
	if undoing != nil {
		m.moved.Cancelled = undoing.Cancelled
		return m.goBack(tx, inv, left, errors.New(undoing.Why))
	}
	if err := balance.Fits(inv, m.host.Policy, left); err != nil {
		return m.goBack(tx, inv, left, fmt.Errorf("it cannot be finished: %w", err))
	}
	if err := m.ways(inv, left, m.there); err != nil {
		return nil, err
	}
	return m.run, m.begin(tx, inv, journal.Entry{Kind: journal.MoveStep, What: "resumed: " + m.Move.String()})
}

// placedSince names the guest that got another placement since the move began.
func placedSince(inv *inventory.Host, moves []plan.GuestMove) string {
	for _, g := range moves {
		if seen, ok := inv.Guest(g.Guest); ok {
			if err := recordedAs(seen, g); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// goBack begins to roll back an interrupted move.
func (m *mover) goBack(
	tx claim.Locked, inv *inventory.Host, left []plan.GuestMove, why error,
) (func(context.Context) (Result, error), error) {
	if err := m.ways(inv, left, m.backAgain); err != nil {
		return nil, err
	}
	back := func(ctx context.Context) (Result, error) {
		return m.finish(ctx, m.carryBack(m.backing(ctx), why))
	}
	return back, m.begin(tx, inv,
		journal.Entry{Kind: journal.MoveUndoing, What: "back: " + m.Move.String(), Why: why.Error()})
}
