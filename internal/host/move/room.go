package move

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// CreateMakingRoom creates a guest as operate.Create does, and moves others first if it
// does not fit otherwise. If a move or the start fails, or ctx ends before the start,
// the moves are undone; the error says which are not, and what to do. Of how only
// Progress and FullSpeed apply. The results are those of the moves begun, in their
// order, with the Undo of each that was undone.
func (h *Host) CreateMakingRoom(ctx context.Context, r operate.CreateRequest, how Request) (
	operate.Created, []RoomMove, error,
) {
	m := roomMaker{host: h, how: how}
	r.MakeRoom, r.Mover = true, &m
	made, err := h.Create(ctx, r)
	return made, m.moves, err
}

// RoomMove is a move that made room for a new guest.
type RoomMove struct {
	Result
	// Back is the result of its undo, which followed a failure; nil: it was not undone.
	Back *Undone `json:"back,omitempty"`
}

// roomMaker implements operate.Mover.
type roomMaker struct {
	host  *Host
	how   Request
	moves []RoomMove
}

// Move implements operate.Mover. A move whose step fails is resumed once, as the next
// command would do: it is finished then, or rolled back.
func (m *roomMaker) Move(ctx context.Context, move plan.Move) error {
	r := m.how
	r.ID, r.Move, r.By, r.Journal = operate.NewEffectID(m.host.Clock()), move, m.host.By, m.host.Journal
	moving, end := backAtEnd(ctx)
	defer end()
	moved, err := m.host.Move(moving, r)
	if errors.Is(err, ErrStopped) {
		moved, err = m.resume(context.WithoutCancel(ctx), r, moved, err)
	}
	if moved.Begun() {
		m.moves = append(m.moves, RoomMove{Result: moved})
	}
	switch {
	case err == nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && !tookEffect(journal.Entry{Kind: moved.End}):
		return fmt.Errorf("%s: %s", moved.Move, moved.Why)
	}
	return err
}

// backAtEnd returns a context that asks a move to roll back when ctx ends.
func backAtEnd(ctx context.Context) (context.Context, func()) {
	moving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(ErrUndo) })
	return moving, func() { stop(); cancel(nil) }
}

// resume finishes a move that stopped, or rolls it back.
func (m *roomMaker) resume(ctx context.Context, r Request, stopped Result, why error) (Result, error) {
	r.By = "restart"
	all, err := m.host.Recover(ctx, r)
	for _, moved := range all {
		if moved.ID != r.ID || moved.End == "" {
			continue
		}
		if tookEffect(journal.Entry{Kind: moved.End}) {
			return moved, nil
		}
		return moved, why
	}
	return stopped, errors.Join(why, err, fmt.Errorf("'numavisor apply --resume' finishes the move of %s or rolls "+
		"it back", strings.Join(r.Move.Names(), ", ")))
}

// Back implements operate.Mover.
func (m *roomMaker) Back(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for i := len(m.moves) - 1; i >= 0; i-- {
		moved := &m.moves[i]
		if !tookEffect(journal.Entry{Kind: moved.End}) {
			continue
		}
		u, err := m.host.Undo(ctx, UndoRequest{ID: moved.ID, Move: Request{Progress: m.how.Progress,
			FullSpeed: m.how.FullSpeed}})
		moved.Back = &u
		switch {
		case errors.Is(err, apply.ErrGone):
			err = nil // a guest that has ended uses no room
		case err == nil && u.Moved != nil && u.Moved.End != journal.MoveUndone:
			err = fmt.Errorf("%s", strings.Join(u.Moved.Shortfalls(), "; "))
		}
		if err != nil {
			g := &moved.Move.Guests[0]
			errs = append(errs, fmt.Errorf("VM %s stays on nodes %s, where it made room: %w; 'numavisor undo %s' "+
				"moves it back", g.Guest, g.Placement.Nodes, err, moved.ID))
		}
	}
	return errors.Join(errs...)
}
