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
	"github.com/numavisor/numavisor/internal/decide/order"
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

// ErrStale means that the host has changed since a move was planned: make a new
// plan. Nothing was changed.
var ErrStale = errors.New("the plan is stale")

// ErrUndo as the cause of a context's end (context.WithCancelCause) makes the
// move roll back. Any other end leaves moved memory in place, to be resumed.
var ErrUndo = errors.New("the move is to be undone")

// ErrStopped means that a move was stopped before its end, or a step of it
// failed: its guests keep running, and Recover finishes it.
var ErrStopped = errors.New("stopped before its end")

// Host is one host whose guests can be moved.
type Host struct {
	operate.Host
	// Meter measures how a move affects the guests, which sets its pace; nil:
	// only bandwidth and the policy's cap set it.
	Meter Meter
	// Traffic returns how much of a node's memory bandwidth is in use, in MB
	// (10^6 bytes) a second, 0 where that is unknown; nil: unknown everywhere.
	Traffic func(topology.NodeID) float64
}

// Request is one move to carry out.
type Request struct {
	ID   string // its name in the journal; must be new
	Move plan.Move
	By   string // who asked for it: "balancer", "operator", or a user
	// Undoes is the ID of the effect or move that Move reverts: the guests go
	// back to their state before it.
	Undoes  string
	Journal operate.Journal
	// Progress is called now and then with the progress; may be nil.
	Progress func(status.Moving)
	// FullSpeed copies without regard to the effect on the guests.
	FullSpeed bool
	// Later leaves for another time what the guests do not wait for: copying the
	// memory of their processes themselves, and the limit to their nodes. These are
	// small pages: the kernel interrupts all CPUs of the guest for each, and copies
	// libraries that guests share once for each of them. The result lists the
	// guests in Left; operate.Bind does what is left.
	Later bool
	// Pull lets the kernel bring memory to the vCPUs, by NUMA balancing, where that
	// is the better mover. The caller restores a setting that is held when this
	// process is killed.
	Pull bool
	// Idle are guests that do not prevent Pull, wherever they may run: they hardly use
	// CPUs, so kernel balancing hardly moves their memory, or it is to move that as well.
	Idle []string
	// Held is kernel balancing that the caller has enabled for the move already; nil: it has not. The move takes it
	// over: it restores it, or reports it in Result.Held.
	Held *journal.SettingChange
	// Served are guests to whose vCPUs the kernel has just brought memory, until it brought hardly any: with Later, a
	// little that is elsewhere waits for a quiet time.
	Served []string
	// Drifts says that the kernel was bringing memory to vCPUs, for moves of this host, some seconds ago: pages that it
	// has made inaccessible still move when they are used, also once kernel balancing is disabled.
	Drifts bool
	// Known is the host as it was last observed, if the same guests have run since; nil: not known. Mappings of guests
	// that it has are not read again.
	Known *inventory.Host
	// CopyRate is how fast the host copies memory where nothing disturbs it, in bytes a second; 0: not known.
	CopyRate topology.Bytes
	// GiveWay, once closed, ends copying: the rest waits for a quiet time, as other guests need a move more. If the
	// kernel brings memory, kernel balancing stays on (Result.Held). Nil: the move does not give way.
	GiveWay <-chan struct{}
	// Back ends a rollback within a slice: Recover continues it later. Nil:
	// what ends the move also ends its rollback, except for the ErrUndo that
	// asked for it.
	Back context.Context
}

// Result is the outcome of a move.
type Result struct {
	ID   string    `json:"id"`
	Move plan.Move `json:"move"`
	// End is the result; empty: the move did not begin, or was stopped and is
	// to be resumed.
	End journal.Kind `json:"end,omitempty"`
	Why string       `json:"why,omitempty"` // why it was not done, or was undone
	// Cancelled: it was undone on request (ErrUndo).
	Cancelled bool `json:"cancelled,omitempty"`
	// Guests are those that were changed, in the order of the move, each as
	// Bind reports it.
	Guests []operate.Bound `json:"guests,omitempty"`
	// Left are the guests of which Request.Later left something to do.
	Left []string `json:"left,omitempty"`
	// GaveWay: it left memory because of Request.GiveWay.
	GaveWay bool `json:"gave_way,omitempty"`
	// Pauses: kernel balancing stays on (Held) because none of the guests works any more.
	Pauses bool `json:"pauses,omitempty"`
	// Idle are guests in Left that worked when the move was planned, and hardly do now: their memory was not copied.
	Idle  []string       `json:"idle,omitempty"`
	Bytes topology.Bytes `json:"moved_bytes"`
	// Pulled is the memory that the kernel brought to the vCPUs (Request.Pull).
	Pulled topology.Bytes `json:"pulled_bytes,omitempty"`
	// Seen is the host when the move was verified, as Observe without names shows it; nil: it
	// could not be observed.
	Seen *inventory.Host `json:"-"`
	// Held is the kernel setting that could not be restored, or that brings memory of the guests in Left when
	// they use it; nil: none. The caller restores it.
	Held *journal.SettingChange `json:"held_setting,omitempty"`
	Took time.Duration          `json:"took_ns"`
	// Copied is the time in which memory was copied: Took without pauses and
	// other steps.
	Copied time.Duration `json:"copied_ns"`
}

// Begun reports whether the move began; if not, nothing was changed.
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
	began      time.Time
	guests     []*moving // guests of the move that still exist
	order      []*moving // the same, in the order in which they are completed
	gone       int       // number of guests that do not
	again      bool      // it was interrupted, and is being resumed
	moved      Result
	pace       *pacer
	trace      journal.Trace
	unrecorded error // steps that could not be recorded in the journal
	pulling    pulling
}

// moving is one guest of a move. Its plan is cut in three parts, see
// plan.Steps.Parts.
type moving struct {
	plan.GuestMove
	intent                guest.Intent
	bound                 operate.Bound
	before, copies, after []plan.Step
	// pins move the vCPUs, if these follow their memory: once switchAt bytes have
	// been copied. Otherwise before has these steps.
	pins       []plan.Step
	switchAt   topology.Bytes
	turn       *apply.Turn
	seen       inventory.Guest // when the steps were planned
	pull       order.Pull
	cold       bool // the kernel has left a little memory that is hardly used
	partly     bool // its memory was left before it had come: the move gave way, or the guest hardly works
	use        vcpuUse
	idle       bool   // its memory was left because it hardly works
	err        error  // why it did not complete
	left       bool   // Request.Later left something to do
	unprepared bool   // err occurred before anything was copied
	counted    bool   // its copied memory is in the sum
	forget     bool   // it had no placement before: after the rollback it has no intent
	digest     string // of the binding in its stored configuration, when verified
}

// Move carries out one move of one guest, or of a few that make room for each
// other: it claims all of them, then copies the memory of one after the other
// (in turns where they exchange room), moves the vCPUs of each when that makes
// its accesses faster, then narrows policies and limits, and verifies the result.
//
// It refuses a move whose guests are no longer as its plan says (ErrStale), are
// claimed by another process (operate.ErrBusy), or whose placements have become
// illegal; nothing is changed then. Before the first change, the move is in the
// journal with all that undoing it needs. If ctx ends, the move stops within a
// slice and is left to be resumed (ErrStopped), or rolls back if the cause is
// ErrUndo. If a step fails, the move is left, too; if one of the first steps
// fails, it rolls back. Memory that could not be moved is no error: see
// Shortfalls.
func (h *Host) Move(ctx context.Context, r Request) (Result, error) {
	if err := r.Move.Validate(); err != nil {
		return Result{ID: r.ID, Move: r.Move}, fmt.Errorf("moving %s: %w", strings.Join(r.Move.Names(), ", "), err)
	}
	m := h.mover(r)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		inv, err := m.observe(ctx, tx)
		if err != nil {
			return err
		}
		for _, g := range m.Move.Guests {
			if err := still(&inv, g, m.Drifts); err != nil {
				return err
			}
		}
		if err := balance.Legal(&inv, h.Policy, m.Move.Guests); err != nil {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
		if err := m.ways(&inv, m.Move.Guests, m.asked); err != nil {
			return err
		}
		m.watchUse(&inv)
		if err := m.former(ctx, &inv); err != nil {
			return err
		}
		return m.begin(tx, &inv,
			journal.Entry{Kind: journal.MoveBegan, What: m.Move.String(), Why: m.Move.Why, Move: &m.Move})
	})
	if err != nil {
		return m.moved, fmt.Errorf("moving %s: %w", strings.Join(r.Move.Names(), ", "), err)
	}
	return m.run(ctx)
}

// former adds to the move what its way back needs and a plan does not have: the
// processes of its guests, and the bindings of their next start.
func (m *mover) former(ctx context.Context, inv *inventory.Host) error {
	m.Move.Guests = slices.Clone(m.Move.Guests)
	for i, g := range m.guests {
		seen, _ := inv.Guest(g.Guest)
		binding, err := m.host.FormerBinding(ctx, seen)
		if err != nil {
			return fmt.Errorf("VM %s: %w", g.Guest, err)
		}
		g.Undo.StoredBinding = binding
		m.Move.Guests[i] = g.GuestMove
	}
	m.moved.Move = m.Move
	return nil
}

func (h *Host) mover(r Request) *mover {
	return &mover{host: h, Request: r, moved: Result{ID: r.ID, Move: r.Move, Held: r.Held}}
}

// observe observes the guests of the move closely, all of them unclaimed, under
// the ledger's lock.
func (m *mover) observe(ctx context.Context, tx claim.Locked) (inventory.Host, error) {
	claims, err := tx.Claims()
	if err != nil {
		return inventory.Host{}, err
	}
	names := make([]string, len(m.Move.Guests))
	for i, g := range m.Move.Guests {
		names[i] = g.Guest
		for _, c := range claims {
			if c.Name == g.Guest {
				return inventory.Host{}, fmt.Errorf("VM %s: %w; wait until that has ended", g.Guest, operate.ErrBusy)
			}
		}
	}
	inv, err := m.seeGuests(ctx, tx, names)
	if err == nil {
		err = operate.RoomIsKnown(&inv)
	}
	return inv, err
}

// seeGuests observes the host, the guests of the move closely. If no process has changed anything since
// Request.Known, that and the guests themselves are enough: to observe all of a host takes longer than to
// decide, and the guests wait for it.
func (m *mover) seeGuests(ctx context.Context, tx claim.Locked, names []string) (inventory.Host, error) {
	if m.Known != nil && tx.UnchangedSince(m.Known.Taken) {
		inv, ok, err := m.host.ObserveAgain(ctx, *m.Known, names...)
		if ok || err != nil {
			return inv, err
		}
	}
	return m.host.Observe(ctx, names...)
}

// begin claims the resources that the guests have and those of their targets,
// and records the beginning in the journal.
func (m *mover) begin(tx claim.Locked, inv *inventory.Host, e journal.Entry) error {
	m.began = m.host.Clock()
	for _, g := range m.guests {
		if err := tx.Put(claim.Claim{Name: g.Guest, Holder: m.host.Self, By: m.By, Since: m.began.UTC(),
			Placement: both(inv, g.Placement)}); err != nil {
			return errors.Join(err, m.release())
		}
	}
	if err := m.record(e); err != nil {
		return errors.Join(fmt.Errorf("recording its beginning in the journal: %w", err), m.release())
	}
	return nil
}

// ways plans the steps of each guest from its observed placement to its target.
func (m *mover) ways(
	inv *inventory.Host, moves []plan.GuestMove, way func(*inventory.Host, *inventory.Guest, *moving),
) error {
	m.guests = nil
	for _, move := range moves {
		seen, ok := inv.Guest(move.Guest)
		if !ok {
			return operate.Missing(*inv, move.Guest)
		}
		if !seen.ReadClosely() {
			return operate.Unseen(*inv, move.Guest)
		}
		g := &moving{GuestMove: move, seen: *seen}
		var err error
		if g.Basis, err = apply.Basis(m.host.Kernel, *seen); err != nil {
			return err
		}
		before := operate.TruthOf(*seen, &inv.Topology)
		g.bound.Before = &before
		way(inv, seen, g)
		g.turn = apply.NewTurn(g.bound.Plan, g.copies)
		g.turn.Threads = g.threads(m.host.Policy.Balance)
		m.guests = append(m.guests, g)
	}
	m.schedule(inv)
	m.canPull(inv)
	m.pace = m.newPacer(inv)
	return nil
}

// there plans the steps to the move's placement.
func (m *mover) there(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	g.intent = guest.Intent{
		Host:      inv.Identity(),
		Spec:      balance.SpecOf(seen),
		Placement: g.Placement,
		Adopted:   !seen.Created(),
	}
	g.bound.Plan = bind.Steps(
		bind.Request{
			Guest:       *seen,
			Topology:    &inv.Topology,
			Placement:   g.Placement,
			Basis:       g.Basis,
			Persistent:  seen.Persistent,
			Interrupted: m.again,
		},
	)
	g.before, g.copies, g.after = g.bound.Plan.Parts()
}

// both is a placement that contains what a guest has and what it will have,
// while it is between the two.
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

// releaseTime limits the wait for the ledger's lock at the end of a move.
const releaseTime = 5 * time.Second

// releaseSeen releases the claims. If the move has observed the host after its last change, that is the host's state
// until another process changes it.
func (m *mover) releaseSeen(ctx context.Context) error {
	if m.moved.Seen == nil {
		return m.release()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return m.host.Ledger.ReleaseSeen(ctx, m.moved.Seen.Taken, m.Move.Names()...)
}

func (m *mover) release() error {
	var errs []error
	for _, g := range m.Move.Guests {
		errs = append(errs, m.host.Ledger.Release(g.Guest))
	}
	return errors.Join(errs...)
}

// record writes an entry of this move.
func (m *mover) record(e journal.Entry) error {
	e.At, e.ID, e.By, e.Undoes, e.Cancelled = m.host.Clock().UTC(), m.ID, m.By, m.Undoes, m.moved.Cancelled
	for _, g := range m.Move.Guests {
		e.Guests = append(e.Guests, g.Guest)
	}
	if e.Ends() {
		e.StoredBindings = m.digests()
	}
	return m.Journal.Append(e)
}

// digests identify the bindings that the move left in stored configurations.
func (m *mover) digests() map[string]string {
	all := map[string]string{}
	for _, g := range m.guests {
		if g.digest != "" {
			all[g.Guest] = g.digest
		}
	}
	return all
}
