package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrStale means that the host is not any more as it was when a move was
// planned: plan anew. Nothing was touched.
var ErrStale = errors.New("the plan is stale")

// ErrUndo as the cause of a context's end (context.WithCancelCause) has a move
// undone. Any other end leaves what was moved in place, to be resumed.
var ErrUndo = errors.New("it is to be undone")

// ErrStopped means that a move was stopped half-way, or a step of it failed: its
// guests run on, and Recover finishes it.
var ErrStopped = errors.New("stopped half-way")

// Host is one host whose guests can be moved.
type Host struct {
	operate.Host
	// Meter reads how the guests bear a move, which sets its pace; nil: only
	// bandwidth and the policy's cap set it.
	Meter Meter
	// Traffic returns how much of a node's memory bandwidth is in use, in MB
	// (10^6 bytes) a second, 0 where that is unknown; nil: unknown everywhere.
	Traffic func(topology.NodeID) float64
}

// Request is one move to be carried out.
type Request struct {
	ID   string // names it in the journal; never used before
	Move plan.Move
	By   string // who wants it: "balancer", "operator", or a user
	// Undoes is the ID of the effect or move whose Move is taken back: the guests
	// go back to how they were before it.
	Undoes string
	Keep   operate.Journal
	// Told is called now and then with how far it is; may be nil.
	Told func(status.Moving)
	// FullSpeed copies without regard to how the guests bear it.
	FullSpeed bool
	// Back ends undoing, within a slice: it is left for Recover to go on with.
	// Nil: what ends the move ends that, too, but for the ErrUndo that asked for it.
	Back context.Context
}

// Result is what became of a move.
type Result struct {
	ID   string    `json:"id"`
	Move plan.Move `json:"move"`
	// End is how it ended; empty: it did not begin, or was stopped and is to be resumed.
	End journal.Kind `json:"end,omitempty"`
	Why string       `json:"why,omitempty"` // why it was not done, or undone
	// Cancelled: it was to be undone because somebody wanted that (ErrUndo).
	Cancelled bool `json:"cancelled,omitempty"`
	// Guests are those that were touched, in the order of the move, each as Bind reports it.
	Guests []operate.Bound `json:"guests,omitempty"`
	Bytes  topology.Bytes  `json:"moved_bytes"`
	Took   time.Duration   `json:"took_ns"`
	// Copied is for how long memory was copied: Took without pauses and other steps.
	Copied time.Duration `json:"copied_ns"`
}

// Begun reports whether the move was begun at all; if not, nothing was touched.
func (m *Result) Begun() bool { return len(m.Guests) > 0 || m.End != "" }

// Complete reports whether all of the move was done and verified.
func (m *Result) Complete() bool { return m.End == journal.MoveDone }

// Shortfalls lists in words what was not achieved.
func (m *Result) Shortfalls() []string {
	var all []string
	for i := range m.Guests {
		for _, s := range m.Guests[i].Shortfalls() {
			all = append(all, m.Guests[i].Plan.Guest+": "+s)
		}
	}
	return all
}

// mover carries out one move.
type mover struct {
	host *Host
	Request
	began  time.Time
	guests []*moving // those of the move that are still there
	gone   int       // how many are not
	again  bool      // it was cut short, and is taken up
	moved  Result
	pace   *pacer
	unkept error // steps that could not be kept in the journal
}

// moving is one guest of a move. Its plan is cut in three parts, see plan.Steps.Parts.
type moving struct {
	plan.GuestMove
	intent                guest.Intent
	bound                 operate.Bound
	before, copies, after []plan.Step
	turn                  *apply.Turn
	err                   error // why it did not come to its end
	unprepared            bool  // err is from before anything was copied
	counted               bool  // what it copied is in the sum
	forget                bool  // nobody placed it before: after its way back it has no intent
}

// Move carries out one move of one guest, or of a few that make room for each
// other: all of them are claimed, then all vCPUs moved, then the memory copied
// in turns, then policies and limits narrowed, and the truth read back.
//
// It refuses a move whose guests are not any more as its plan says (ErrStale),
// are claimed by somebody (operate.ErrBusy), or whose placements have become illegal;
// nothing is touched then. Before anything is, the move is in the journal with
// what it takes to undo it. Where ctx ends the move stops within a slice and is
// left to be resumed (ErrStopped), or undone where that is the cause (ErrUndo).
// Where a step fails it is left, too; where the first steps do, it is undone.
// What could not be moved is no error: see Shortfalls.
func (h *Host) Move(ctx context.Context, r Request) (Result, error) {
	if err := r.Move.Validate(); err != nil {
		return Result{ID: r.ID, Move: r.Move}, fmt.Errorf("moving %s: %w", strings.Join(r.Move.Names(), ", "), err)
	}
	m := h.mover(r)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		inv, err := m.look(ctx, tx)
		if err != nil {
			return err
		}
		for _, g := range m.Move.Guests {
			if err := still(&inv, g); err != nil {
				return err
			}
		}
		if err := balance.Legal(&inv, h.Policy, m.Move.Guests); err != nil {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
		if err := m.ways(&inv, m.Move.Guests, m.there); err != nil {
			return err
		}
		m.Move.Guests = slices.Clone(m.Move.Guests) // the caller's has no basis
		for i, g := range m.guests {
			m.Move.Guests[i].Basis = g.Basis
		}
		m.moved.Move = m.Move
		return m.begin(tx, &inv,
			journal.Entry{Kind: journal.MoveBegan, What: m.Move.String(), Why: m.Move.Why, Move: &m.Move})
	})
	if err != nil {
		return m.moved, fmt.Errorf("moving %s: %w", strings.Join(r.Move.Names(), ", "), err)
	}
	return m.run(ctx)
}

func (h *Host) mover(r Request) *mover {
	return &mover{host: h, Request: r, moved: Result{ID: r.ID, Move: r.Move}}
}

// look observes the guests of the move closely, all unclaimed, while nobody else decides.
func (m *mover) look(ctx context.Context, tx claim.Locked) (inventory.Host, error) {
	claims, err := tx.Claims()
	if err != nil {
		return inventory.Host{}, err
	}
	names := make([]string, len(m.Move.Guests))
	for i, g := range m.Move.Guests {
		names[i] = g.Guest
		for _, c := range claims {
			if c.Name == g.Guest {
				return inventory.Host{}, fmt.Errorf("guest %s: %w; wait for that to end", g.Guest, operate.ErrBusy)
			}
		}
	}
	inv, err := m.host.Observe(ctx, names...)
	if err == nil {
		err = operate.RoomIsKnown(&inv)
	}
	return inv, err
}

// begin claims the room that the guests have and that they go to, and keeps
// that in the journal.
func (m *mover) begin(tx claim.Locked, inv *inventory.Host, e journal.Entry) error {
	m.began = m.host.Clock()
	for _, g := range m.guests {
		if err := tx.Put(claim.Claim{Name: g.Guest, Holder: m.host.Self, By: m.By, Since: m.began.UTC(),
			Placement: both(inv, g.Placement)}); err != nil {
			return errors.Join(err, m.release())
		}
	}
	if err := m.keep(e); err != nil {
		return errors.Join(fmt.Errorf("keeping in the journal that it begins: %w", err), m.release())
	}
	return nil
}

// ways plans how each guest comes from where it was seen to where it shall be.
func (m *mover) ways(
	inv *inventory.Host, moves []plan.GuestMove, way func(*inventory.Host, *inventory.Guest, *moving),
) error {
	m.guests = nil
	for _, move := range moves {
		seen, ok := inv.Guest(move.Guest)
		if !ok {
			return operate.Missing(*inv, move.Guest)
		}
		if len(seen.Seen.Threads) == 0 || len(seen.Seen.Ranges) == 0 {
			return operate.Unseen(*inv, move.Guest)
		}
		g := &moving{GuestMove: move}
		var err error
		if g.Basis, err = apply.Basis(m.host.Kernel, *seen); err != nil {
			return err
		}
		before := operate.TruthOf(*seen, &inv.Topology)
		g.bound.Before = &before
		way(inv, seen, g)
		g.turn = apply.NewTurn(g.bound.Plan, g.copies)
		m.guests = append(m.guests, g)
	}
	m.pace = m.pacer(inv)
	return nil
}

// there is the way to the move's placement.
func (m *mover) there(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	g.intent = guest.Intent{
		Host:      inv.Identity(),
		Spec:      balance.SpecOf(seen),
		Placement: g.Placement,
		Adopted:   !seen.Created(),
	}
	g.bound.Plan = bind.Steps(
		bind.Request{
			Guest:      *seen,
			Topology:   &inv.Topology,
			Placement:  g.Placement,
			Basis:      g.Basis,
			Persistent: seen.Persistent,
			CutShort:   m.again,
		},
	)
	g.before, g.copies, g.after = g.bound.Plan.Parts()
}

// both is a placement that holds what a guest has and what it is going to
// have, for as long as it is between them.
func both(inv *inventory.Host, to guest.Placement) guest.Placement {
	to.Reservations = slices.Clone(to.Reservations)
	for _, h := range inv.Holdings("") {
		if h.Name != to.Guest {
			continue
		}
		at := -1
		for i, r := range to.Reservations {
			if r.Node == h.Node && r.PageSize == h.PageSize {
				at = i
			}
		}
		if at < 0 {
			to.Reservations = append(to.Reservations, guest.Reservation{Node: h.Node, PageSize: h.PageSize})
			at = len(to.Reservations) - 1
		}
		r := &to.Reservations[at]
		r.Memory = max(r.Memory, h.Reserved)
		r.VCPUs = max(r.VCPUs, int(h.VCPUs+0.5))
		r.Exclusive = r.Exclusive.Union(h.Exclusive)
	}
	return to
}

func (m *mover) release() error {
	var errs []error
	for _, g := range m.Move.Guests {
		errs = append(errs, m.host.Ledger.Release(g.Guest))
	}
	return errors.Join(errs...)
}

// keep writes an entry of this move.
func (m *mover) keep(e journal.Entry) error {
	e.At, e.ID, e.By, e.Undoes, e.Cancelled = m.host.Clock().UTC(), m.ID, m.By, m.Undoes, m.moved.Cancelled
	for _, g := range m.Move.Guests {
		e.Guests = append(e.Guests, g.Guest)
	}
	return m.Keep.Append(e)
}
