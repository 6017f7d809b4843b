package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/room"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
)

// Mover makes the moves of running guests that make room for a new one.
type Mover interface {
	// Move makes one move. After an error its guests are back, or the error says where
	// they are.
	Move(ctx context.Context, m plan.Move) error
	// Back undoes the moves made, the last one first, even if ctx has ended. The error
	// lists each guest that is not back, and why.
	Back(ctx context.Context) error
}

// roomPlan plans the moves that make room for a guest that does not fit. Its room is on
// nodes that other guests still use.
func (h *Host) roomPlan(inv *inventory.Host, spec guest.Spec, refused error, c *Created) (guest.Intent, error) {
	var noFit *place.NoFitError
	if !errors.As(refused, &noFit) {
		return guest.Intent{}, refused
	}
	p := room.Find(room.Request{Host: inv, Spec: spec, Policy: h.Policy})
	if len(p.Moves) == 0 {
		return guest.Intent{}, &room.RefusalError{NoFitError: noFit, MakeRoom: p}
	}
	c.MakeRoom, c.Placement, c.Why = &p, *p.Placement, *p.Why
	return guest.Intent{Host: inv.Identity(), Spec: spec, Placement: c.Placement}, nil
}

// makeRoom makes the moves for a guest whose room is claimed, and checks that the room
// is free then. It returns the huge pages that the pools lack.
func (h *Host) makeRoom(ctx context.Context, r CreateRequest, c *Created) (short []plan.Step, err error) {
	for _, m := range c.MakeRoom.Moves {
		if err := r.Mover.Move(ctx, m); err != nil {
			return nil, fmt.Errorf("making room for VM %s: %w", r.Spec.Name, err)
		}
	}
	err = h.Ledger.Locked(ctx, func(claim.Locked) error {
		inv, err := h.Observe(ctx)
		if err == nil {
			err = errors.Join(RoomIsKnown(&inv), h.legal(&inv, r.Spec, c.Placement))
		}
		short = poolShortages(capacity.Available(&inv, h.Policy, r.Spec.Name), c.Placement)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the room for VM %s is not free after the moves: %w", r.Spec.Name, err)
	}
	return short, nil
}

// giveRoomBack undoes the moves for a guest that was not started. Its claim must end
// first: it holds the nodes to which the others return.
func (h *Host) giveRoomBack(ctx context.Context, r CreateRequest, c *Created) error {
	err := errors.Join(h.Ledger.Release(r.Spec.Name), r.Mover.Back(ctx))
	c.roomTaken = err != nil
	return err
}

// afterMoves returns the host once the moves are made.
func afterMoves(inv inventory.Host, p *room.Plan) inventory.Host {
	for _, m := range p.Moves {
		inv = balance.After(&inv, m.Guests)
	}
	return inv
}
