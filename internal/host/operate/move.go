package operate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrStale means that a move was planned on a state that is no more.
var ErrStale = errors.New("the plan is stale: the host has changed since it was made; plan again")

// Journal takes down what is done. An entry is on disk when Append returns.
type Journal interface {
	Append(journal.Entry) error
}

// MoveRequest is one move of a plan, to be made now.
type MoveRequest struct {
	ID      string
	Move    plan.Move
	By      string // who wants it: "balancer", "operator", "restart"
	Journal Journal
	// Progress is told what the move is doing; nil: nobody.
	Progress func(status.Moving)
	// Pace bounds how fast memory is copied; nil: as fast as it goes.
	Pace Pacer
	// again says that the move was cut short: guests may be anywhere between
	// how they were and how they shall be.
	again bool
}

// Move makes one move of a plan: of one guest, or of a few that only help
// together. Nothing is touched where the plan is stale (ErrStale) or breaks a
// rule by now. Otherwise the move's begin is in the journal first, and its end
// last, which is returned; a move that ctx stops has no end: Recover takes it
// up. First all guests' vCPUs go, then their memory in turns, so that each
// makes room for the next; last, where memory is, its limits are set.
func (h *Host) Move(ctx context.Context, r MoveRequest) (journal.Entry, error) {
	m := &mover{host: h, MoveRequest: r, began: h.Clock()}
	if err := h.Ledger.Locked(ctx, func(tx claim.Locked) error { return m.prepare(ctx, tx) }); err != nil {
		return journal.Entry{}, fmt.Errorf("move %s: %w", r.ID, err)
	}
	defer m.release()
	if !r.again {
		begin := journal.Entry{Kind: journal.MoveBegan, What: r.Move.String(), Why: r.Move.Why, Move: &r.Move}
		if err := m.note(begin); err != nil {
			return journal.Entry{}, fmt.Errorf("move %s is not begun, for the journal cannot be written: %w", r.ID, err)
		}
	}
	m.phase(ctx, (*part).prelude)
	m.copy(ctx)
	m.phase(ctx, (*part).postlude)
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrCancelled) {
		return journal.Entry{}, fmt.Errorf("move %s: stopped on its way: %w", r.ID, context.Cause(ctx))
	}
	m.verify(ctx)
	return m.end(ctx)
}

// ErrCancelled is the cause to end a context with where a move shall be given
// up: its end is journalled, and nothing takes it up later.
var ErrCancelled = errors.New("cancelled by the operator")

// mover is one move on its way.
type mover struct {
	MoveRequest
	host    *Host
	began   time.Time
	parts   []*part
	claimed []string
	done    topology.Bytes // of all copies, dealt with
}

// part is one guest of a move.
type part struct {
	*mover
	want     guest.Intent
	bound    Bound
	steps    struct{ before, copies, after []plan.Step }
	slices   []slice // of copies, what is left to do in this turn
	again    []slice // and in the next
	bytes    topology.Bytes
	executor apply.Executor
	failed   error // why its steps ended early
}

// prepare checks the move against the host as it is, and claims its targets.
func (m *mover) prepare(ctx context.Context, tx claim.Locked) error {
	claims, err := tx.Claims()
	if err != nil {
		return err
	}
	names := make([]string, len(m.MoveRequest.Move.Guests))
	for i, g := range m.MoveRequest.Move.Guests {
		names[i] = g.Guest
		if slices.ContainsFunc(claims, func(c inventory.Claim) bool { return c.Name == g.Guest }) {
			return fmt.Errorf("guest %s: %w", g.Guest, ErrBusy)
		}
	}
	inv, err := m.host.Observe(ctx, names...)
	if err != nil {
		return err
	}
	if err := m.plan(&inv); err != nil {
		return err
	}
	for _, p := range m.parts {
		if err := tx.Put(claim.Claim{Name: p.want.Placement.Guest, Holder: m.host.Self, Placement: p.want.Placement}); err != nil {
			m.release()
			return err
		}
		m.claimed = append(m.claimed, p.want.Placement.Guest)
	}
	return nil
}

// plan computes the steps of every guest, and refuses what is stale or illegal.
func (m *mover) plan(inv *inventory.Host) error {
	for _, gm := range m.MoveRequest.Move.Guests {
		i := slices.IndexFunc(inv.Guests, func(g inventory.Guest) bool { return g.Name == gm.Guest })
		if i < 0 {
			return fmt.Errorf("%w: %w", ErrStale, missing(*inv, gm.Guest))
		}
		g := &inv.Guests[i]
		if err := m.fresh(g, gm); err != nil {
			return err
		}
		p, err := m.newPart(inv, g, gm)
		if err != nil {
			return err
		}
		m.parts = append(m.parts, p)
	}
	for _, p := range m.parts {
		after := *inv
		for _, other := range m.parts {
			if other != p {
				after = balance.After(after, other.bound.Plan.Guest, other.want.Spec, other.want.Placement)
			}
		}
		if err := check.Error(p.want.Spec.Name, check.Placement(&after, m.host.Policy, p.want.Spec, p.want.Placement)); err != nil {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
	}
	return nil
}

// fresh refuses a guest that is not as it was when the move was planned.
func (m *mover) fresh(g *inventory.Guest, gm plan.GuestMove) error {
	if g.State != "running" && g.State != "paused" {
		return fmt.Errorf("%w: guest %s is %s", ErrStale, g.Name, g.State)
	}
	if samePlacement(g.Placement, gm.Undo.Placement) || m.again && samePlacement(g.Placement, m.aligned(g, gm)) {
		return nil
	}
	return fmt.Errorf("%w: guest %s was placed otherwise meanwhile", ErrStale, g.Name)
}

func (m *mover) aligned(g *inventory.Guest, gm plan.GuestMove) *guest.Placement {
	p := adopt.Align(gm.Placement, g.Config)
	return &p
}

func samePlacement(a, b *guest.Placement) bool {
	if a == nil || b == nil {
		return a == b
	}
	return reflect.DeepEqual(*a, *b)
}

func (m *mover) newPart(inv *inventory.Host, g *inventory.Guest, gm plan.GuestMove) (*part, error) {
	spec := adopt.Spec(*g)
	if g.Spec != nil {
		spec = *g.Spec
	}
	p := &part{mover: m, want: guest.Intent{Spec: spec, Placement: *m.aligned(g, gm), Adopted: g.Adopted || !g.Managed}}
	basis, err := apply.Basis(m.host.Kernel, *g)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStale, err)
	}
	before := truth(*g, &inv.Topology)
	p.bound.Before = &before
	p.bound.Plan = bind.Plan(bind.Request{Guest: *g, Topology: &inv.Topology, Placement: p.want.Placement, Basis: basis, Persistent: g.Persistent})
	p.executor = apply.Executor{Kernel: m.host.Kernel, Hypervisor: m.host.Control, Clock: m.host.Clock}
	p.divide()
	return p, nil
}

// divide cuts the steps where copying begins and ends, and copies into slices.
func (p *part) divide() {
	for _, s := range p.bound.Plan.Steps {
		switch {
		case s.Kind == plan.MoveRange || s.Kind == plan.MoveOwn:
			p.steps.copies = append(p.steps.copies, s)
			p.bytes += s.Bytes
		case len(p.steps.copies) == 0:
			p.steps.before = append(p.steps.before, s)
		default:
			p.steps.after = append(p.steps.after, s)
		}
	}
	most := sliceBytes
	if p.Pace != nil {
		most = pacedBytes
	}
	p.slices = slicesOf(p.steps.copies, most)
}

// phase runs the steps of every guest before or after copying. A guest whose
// steps fail is left to itself; the others go on: what one leaves is room.
func (m *mover) phase(ctx context.Context, steps func(*part) []plan.Step) {
	for _, p := range m.parts {
		if p.failed != nil || ctx.Err() != nil {
			continue
		}
		some := p.bound.Plan
		some.Steps = steps(p)
		m.show(p, "binds", 0)
		outcomes, err := p.executor.Run(ctx, some, p.want)
		p.bound.Outcomes = append(p.bound.Outcomes, outcomes...)
		p.failed = err
	}
}

func (p *part) prelude() []plan.Step  { return p.steps.before }
func (p *part) postlude() []plan.Step { return p.steps.after }

// verify reads back where every guest is, whatever came of its steps.
func (m *mover) verify(ctx context.Context) {
	for _, p := range m.parts {
		err := undo(ctx, func(ctx context.Context) error {
			t, err := m.host.Verify(ctx, p.bound.Plan.Guest)
			if err == nil {
				p.bound.Truth = &t
				err = apply.StillThere(m.host.Kernel, p.bound.Plan.Basis)
			}
			return err
		})
		p.failed = errors.Join(p.failed, err)
	}
}

// end writes down what the move came to.
func (m *mover) end(ctx context.Context) (journal.Entry, error) {
	e := journal.Entry{Kind: journal.MoveDone, Move: &m.MoveRequest.Move, Took: m.host.Clock().Sub(m.began)}
	var what []string
	var failures []error
	complete, lost := true, 0
	for _, p := range m.parts {
		what = append(what, p.outcome())
		for _, o := range p.bound.Outcomes {
			if o.Moved != nil {
				e.Moved += o.Moved.Moved
			}
		}
		if p.failed != nil {
			failures = append(failures, fmt.Errorf("guest %s: %w", p.bound.Plan.Guest, p.failed))
		}
		if errors.Is(p.failed, apply.ErrGone) {
			lost++
		}
		complete = complete && p.failed == nil && p.bound.Complete()
		e.Shortfalls = append(e.Shortfalls, p.shortfalls()...)
	}
	err := errors.Join(failures...)
	switch {
	case errors.Is(context.Cause(ctx), ErrCancelled):
		e.Kind, err = journal.MoveFailed, errors.Join(ErrCancelled, err)
	case lost == len(m.parts) || err != nil && e.Moved == 0:
		e.Kind = journal.MoveFailed
	case !complete:
		e.Kind = journal.MovePartial
	}
	e.What = strings.Join(what, "; ")
	if err != nil {
		e.Why = err.Error()
	}
	e.At, e.ID, e.By, e.Guests = m.host.Clock(), m.ID, m.By, m.guests()
	return e, errors.Join(err, m.Journal.Append(e))
}

// outcome is how one guest is left, in words.
func (p *part) outcome() string {
	name := p.bound.Plan.Guest
	switch {
	case errors.Is(p.failed, apply.ErrGone):
		return name + " has ended"
	case p.bound.Truth == nil:
		return name + ": how it is left could not be read"
	}
	return name + ": " + p.bound.Truth.Verdict()
}

func (p *part) shortfalls() []string {
	var all []string
	for _, s := range p.bound.Shortfalls() {
		all = append(all, p.bound.Plan.Guest+": "+s)
	}
	return all
}

func (m *mover) guests() []string {
	names := make([]string, len(m.MoveRequest.Move.Guests))
	for i, g := range m.MoveRequest.Move.Guests {
		names[i] = g.Guest
	}
	return names
}

func (m *mover) note(e journal.Entry) error {
	e.At, e.ID, e.By, e.Guests = m.host.Clock(), m.ID, m.By, m.guests()
	return m.Journal.Append(e)
}

// release gives the claims up: from here on the guests' own records say what they hold.
func (m *mover) release() {
	for _, name := range m.claimed {
		_ = m.host.Ledger.Release(name) // a claim is void once we end, and replaced by the next of its guest
	}
	m.claimed = nil
}
