package move

import (
	"context"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// Preview is what a plan would do.
type Preview struct {
	// Interrupted are the moves that would be finished, or rolled back, first.
	Interrupted []plan.Move `json:"interrupted,omitempty"`
	Moves       []WouldMove `json:"moves"`
}

// WouldMove is what one move would do: the steps of each guest from its present
// state. Before is set, Outcomes and Truth are not.
type WouldMove struct {
	Move   plan.Move       `json:"move"`
	Guests []operate.Bound `json:"guests"`
}

// Would checks the moves as Move does, each as if those before it were made, and
// changes nothing. The error says which move would be refused; the moves before
// it are in the result.
func (h *Host) Would(ctx context.Context, moves []plan.Move, j operate.Journal) (Preview, error) {
	p := Preview{Moves: []WouldMove{}}
	entries, err := j.Entries()
	if err != nil {
		return p, fmt.Errorf("looking for interrupted moves: %w", err)
	}
	for _, began := range journal.InterruptedMoves(entries) {
		if began.Move != nil {
			p.Interrupted = append(p.Interrupted, *began.Move)
		}
	}
	var names []string
	for _, m := range moves {
		names = append(names, m.Names()...)
	}
	seen, err := h.Observe(ctx, names...)
	if err == nil {
		err = operate.RoomIsKnown(&seen)
	}
	if err != nil {
		return p, err
	}
	now := seen
	for _, m := range moves {
		would, err := h.would(&seen, &now, m)
		if err != nil {
			return p, fmt.Errorf("moving %s: %w", strings.Join(m.Names(), ", "), err)
		}
		p.Moves = append(p.Moves, would)
		now = balance.After(&now, m.Guests)
	}
	return p, nil
}

// would checks one move on the host as it is now, and plans its steps from the
// observed state.
func (h *Host) would(seen, now *inventory.Host, move plan.Move) (WouldMove, error) {
	w := WouldMove{Move: move}
	if err := move.Validate(); err != nil {
		return w, err
	}
	for _, g := range move.Guests {
		if _, held := seen.Claim(g.Guest); held {
			return w, fmt.Errorf("VM %s: %w; wait until that has ended", g.Guest, operate.ErrBusy)
		}
		if err := still(now, g, false); err != nil {
			return w, err
		}
	}
	if err := balance.Legal(now, h.Policy, move.Guests); err != nil {
		return w, fmt.Errorf("%w: %w", ErrStale, err)
	}
	m := h.mover(Request{Move: move})
	if err := m.ways(seen, move.Guests, m.there); err != nil {
		return w, err
	}
	for _, g := range m.guests {
		w.Guests = append(w.Guests, g.bound)
	}
	return w, nil
}
