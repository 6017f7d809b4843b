package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// run carries the move out, or rolls it back if that is its cause or if it
// could not even begin, and records its end. If a later step fails, the move is
// left to be resumed: the hypervisor may just be restarting, and a rollback
// would copy everything again. If the step then fails again, the move rolls
// back. The claims are released last, so that no process mistakes a running move
// for an interrupted one.
func (m *mover) run(ctx context.Context) (Result, error) {
	err := m.carry(ctx)
	_, failed := m.failures()
	switch cause := context.Cause(ctx); {
	case ctx.Err() != nil && errors.Is(cause, ErrUndo):
		err = m.runBack(ctx, cause)
	case ctx.Err() != nil && (err != nil || m.cut()):
		err = m.leave(fmt.Errorf("%w: %w", ErrStopped, cause))
	case m.refused() != nil:
		err = m.runBack(ctx, m.refused())
	case failed != nil && m.again:
		err = m.runBack(ctx, failed)
	case failed != nil:
		err = m.leave(fmt.Errorf("%w: %w", ErrStopped, failed))
	default:
		err = errors.Join(err, m.end(err))
	}
	return m.finish(ctx, err)
}

// runBack rolls the guests back and records that end. If the host cannot even
// be observed, the rollback is left for a restart, which continues it.
func (m *mover) runBack(ctx context.Context, why error) error {
	m.sum()
	m.moved.Cancelled = errors.Is(why, ErrUndo)
	ctx = m.backing(ctx)
	before := m.guests
	if err := m.turnBack(ctx, why); err != nil {
		m.guests = before
		return errors.Join(why, m.leave(fmt.Errorf("%w: %w", ErrStopped, err)))
	}
	return errors.Join(why, m.carryBack(ctx, why))
}

// backing is the context of a rollback; the request for the rollback does not
// end it.
func (m *mover) backing(ctx context.Context) context.Context {
	switch {
	case m.Back != nil:
		return m.Back
	case errors.Is(context.Cause(ctx), ErrUndo):
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// carryBack carries the rollback out and records its end. If ctx ends before
// that, Recover continues it.
func (m *mover) carryBack(ctx context.Context, why error) error {
	err := m.carry(ctx)
	if ctx.Err() != nil && (err != nil || m.cut()) {
		return m.leave(fmt.Errorf("%w: %w", ErrStopped, context.Cause(ctx)))
	}
	return errors.Join(err, m.endBack(why, err))
}

// cut reports whether a guest did not complete.
func (m *mover) cut() bool {
	return slices.ContainsFunc(m.guests, func(g *moving) bool { return g.err != nil })
}

// refused is why a guest could not even be prepared; then this program has copied nothing, and the kernel
// little.
func (m *mover) refused() error {
	for _, g := range m.guests {
		if g.unprepared && !errors.Is(g.err, apply.ErrGone) {
			return g.err
		}
	}
	return nil
}

// carry does the three parts for all guests, part by part, and verifies the
// result.
func (m *mover) carry(ctx context.Context) error {
	x := apply.Executor{Kernel: m.host.Kernel, Hypervisor: m.host.Control, Clock: m.host.Clock}
	if m.mayPull() {
		for _, g := range m.order {
			var urgent []plan.Step
			urgent, g.before = urgently(g.before)
			m.prepare(ctx, x, g, urgent)
		}
	}
	pull, stopped := m.beginPull(ctx, x)
	if pull == nil && !m.leavesHeld() {
		m.endHeld(ctx)
	}
	for _, g := range m.order {
		m.prepare(ctx, x, g, g.before)
	}
	m.note("prepared")
	stopped = m.copyMemory(ctx, x, pull, stopped)
	m.note("memory copied")
	for _, g := range m.guests {
		m.steps(ctx, x, g, g.after, journal.TraceRestrict)
	}
	if stopped == nil {
		m.unmanage(ctx)
	}
	return errors.Join(stopped, m.verify(ctx))
}

// prepare runs steps of a guest from before its memory is copied.
func (m *mover) prepare(ctx context.Context, x apply.Executor, g *moving, steps []plan.Step) {
	well := g.err == nil
	m.steps(ctx, x, g, steps, journal.TracePrepare)
	g.unprepared = g.unprepared || well && g.err != nil
}

// copyAll copies the memory of one guest after the other, at a pace, and moves the vCPUs of those
// that follow their memory.
func (m *mover) copyAll(ctx context.Context, x apply.Executor, pace apply.Pacer) error {
	var turns []*apply.Turn
	if m.refused() == nil {
		for _, g := range m.order {
			if g.err == nil {
				turns = append(turns, g.turn)
			}
		}
	}
	return x.Turns(ctx, turns, pace, func(t *apply.Turn) {
		m.traceSlice(t)
		m.tell("copying memory", m.pace.reached)
		m.follow(ctx, x, false)
		m.leaveIdle()
	})
}

// copyMemory waits for what the kernel brings, and copies the rest. stopped is why no more is to
// be copied; it returns why it has stopped.
func (m *mover) copyMemory(ctx context.Context, x apply.Executor, pull *pull, stopped error) error {
	if err := m.endPull(ctx, x, pull); stopped == nil {
		stopped = err
	}
	if stopped == nil {
		stopped = m.copyAll(ctx, x, &yieldingPacer{Pacer: m.pace, yielding: m.yielding()})
	}
	if errors.Is(stopped, errGivesWay) {
		stopped = nil
		m.leaveAll()
	}
	if m.refused() == nil {
		m.follow(ctx, x, true)
	}
	for _, g := range m.guests {
		g.turn.Finish()
		g.bound.Outcomes = append(g.bound.Outcomes, g.turn.Outcomes...)
		if g.err == nil {
			g.err = errors.Join(stopped, g.turn.Err, m.refused())
		}
	}
	return stopped
}

// steps runs one part of a guest's plan, or skips it if an earlier one failed.
func (m *mover) steps(ctx context.Context, x apply.Executor, g *moving, steps []plan.Step, what journal.TraceStep) {
	if g.err != nil {
		for _, s := range steps {
			g.bound.Outcomes = append(g.bound.Outcomes, apply.Outcome{Step: s, Status: apply.Skipped})
		}
		return
	}
	m.tell(progressText[what]+" "+g.Guest, 0)
	p := g.bound.Plan
	p.Steps = steps
	var outcomes []apply.Outcome
	began := m.elapsed()
	outcomes, g.err = x.Run(ctx, p, g.intent)
	m.traceSteps(g.Guest, began, what, outcomes)
	g.bound.Outcomes = append(g.bound.Outcomes, outcomes...)
}

// verify verifies every guest, in one observation. The mappings of guests are read only if figures by node do not show
// that their memory is in place.
func (m *mover) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		operate.ObserveTime+operate.CleanUpTime*time.Duration(len(m.guests)))
	defer cancel()
	closely := func(g *moving) bool { return !g.pinned() && !m.onOneNode(g) }
	began := m.elapsed()
	inv, unread := m.observeMoved(ctx, closely)
	if unread == nil && slices.ContainsFunc(m.guests, func(g *moving) bool { return !closely(g) && g.doubtful(&inv) }) {
		closely = func(g *moving) bool { return !g.pinned() }
		inv, unread = m.observeMoved(ctx, closely)
	}
	m.trace.Add("", journal.TraceVerify, began, m.elapsed(), 0)
	var errs []error
	if unread != nil {
		errs = append(errs, fmt.Errorf("verifying: %w", unread))
	}
	for _, g := range m.guests {
		if gone := m.stillRuns(ctx, g); gone != nil {
			g.err = errors.Join(g.err, gone)
			continue // that guest was not observed
		}
		if unread != nil {
			continue
		}
		if seen, ok := inv.Guest(g.Guest); ok {
			g.digest = m.host.BindingDigest(ctx, seen)
		}
		verified := operate.Verified
		if !closely(g) {
			verified = operate.VerifiedByNode
		}
		t, err := verified(&inv, g.Guest)
		if err == nil {
			t.Differences = g.withoutLeft(t.Differences)
			g.bound.Truth = &t
		}
		errs = append(errs, err)
	}
	if m.moved.Seen = nil; unread == nil {
		m.moved.Seen = m.ordinary(&inv)
	}
	return errors.Join(errs...)
}

// stillRuns is apply.Still, also if an observation has used up the time of the context.
func (m *mover) stillRuns(ctx context.Context, g *moving) error {
	return operate.CleanUp(ctx, func(ctx context.Context) error {
		return apply.Still(ctx, m.host.Kernel, m.host.Control, g.Guest, g.Basis)
	})
}

// observeMoved observes the host, and reads the mappings of some guests of the move.
func (m *mover) observeMoved(ctx context.Context, closely func(*moving) bool) (inventory.Host, error) {
	var names []string
	for _, g := range m.guests {
		if closely(g) {
			names = append(names, g.Guest)
		}
	}
	return m.host.Observe(ctx, names...)
}

// onOneNode reports whether figures by node show as well as mappings do whether the guest's memory is in place. What a
// command has moved is verified mapping by mapping in any case.
func (m *mover) onOneNode(g *moving) bool { return m.Later && g.Placement.Nodes.Len() == 1 }

// doubtful reports whether the guest's memory is not in place, by its figures by node, or whether there are none.
func (g *moving) doubtful(inv *inventory.Host) bool {
	seen, ok := inv.Guest(g.Guest)
	if !ok || g.pinned() {
		return false
	}
	isMemory := func(d drift.Difference) bool { return d.Kind == drift.Memory }
	return len(seen.Seen.MemoryByNode) == 0 ||
		slices.ContainsFunc(g.withoutLeft(drift.Of(*seen, &inv.Topology)), isMemory)
}

// pinned reports whether only threads of the guest were changed, or its memory was left before it had come, so that its
// memory is not verified. To read its mappings, the kernel would walk all of its memory, and its vCPUs would wait for
// that.
func (g *moving) pinned() bool { return g.cold && (len(g.copies) == 0 || g.partly) }

// ordinary is an observation without what only this move has: its claims, and the mappings of
// its guests.
func (m *mover) ordinary(inv *inventory.Host) *inventory.Host {
	h := *inv
	h.Guests, h.Claims = slices.Clone(h.Guests), slices.Clone(h.Claims)
	for _, name := range m.Move.Names() {
		h.Claims = slices.DeleteFunc(h.Claims, func(c inventory.Claim) bool { return c.Name == name })
		if g, ok := h.Guest(name); ok {
			g.Seen.Ranges = nil
		}
	}
	return &h
}
