package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// run carries the move out, or back where that is its cause or where it could
// not even begin, and writes its end. The claims are given up last, so that
// nobody takes a move that goes on for one cut short.
func (m *mover) run(ctx context.Context) (Moved, error) {
	err := m.carry(ctx)
	switch cause := context.Cause(ctx); {
	case ctx.Err() != nil && errors.Is(cause, ErrUndo):
		err = m.runBack(ctx, cause)
	case ctx.Err() != nil:
		err = m.leave(fmt.Errorf("%w: %w", ErrStopped, cause))
	case m.refused() != nil:
		err = m.runBack(ctx, m.refused())
	default:
		err = errors.Join(err, m.end(err))
	}
	return m.finish(err)
}

// runBack brings the guests back, whatever ends meanwhile, and writes that end.
func (m *mover) runBack(ctx context.Context, why error) error {
	m.sum()
	err := m.undo(context.WithoutCancel(ctx), why)
	return errors.Join(why, err, m.endBack(why, err))
}

// leave writes that the move has been stopped. It has no end in the journal: a
// restart finishes it.
func (m *mover) leave(why error) error {
	done, total := m.done()
	return errors.Join(why, m.keep(journal.Entry{Kind: journal.MoveStep, What: fmt.Sprintf("stopped with %v of %v copied; to be resumed", done, total), Why: why.Error()}))
}

func (m *mover) finish(err error) (Moved, error) {
	m.sum()
	m.moved.Took = m.host.Clock().Sub(m.began)
	if err = errors.Join(err, m.release()); err != nil {
		err = fmt.Errorf("moving %s: %w", m.Move.Names(), err)
	}
	return m.moved, err
}

// sum adds up what was reported of the guests so far.
func (m *mover) sum() {
	m.moved.Guests = nil
	for _, g := range m.guests {
		m.moved.Guests = append(m.moved.Guests, g.bound)
		if !g.counted {
			for _, o := range g.bound.Outcomes {
				if o.Moved != nil {
					m.moved.Bytes += o.Moved.Moved
				}
			}
		}
		g.counted = true
	}
}

// refused is why a guest could not even be prepared; then nothing was copied.
func (m *mover) refused() error {
	for _, g := range m.guests {
		if g.unprepared && !errors.Is(g.err, apply.ErrGone) {
			return g.err
		}
	}
	return nil
}

// carry does the three parts for all guests, part by part, and reads the truth back.
func (m *mover) carry(ctx context.Context) error {
	x := apply.Executor{Kernel: m.host.Kernel, Hypervisor: m.host.Control, Clock: m.host.Clock}
	for _, g := range m.guests {
		m.steps(ctx, x, g, g.before, "moving the vCPUs of "+g.Guest)
		g.unprepared = g.err != nil
	}
	m.note("vCPUs are moved")
	stopped := m.copy(ctx, x)
	m.note("memory is copied")
	for _, g := range m.guests {
		m.steps(ctx, x, g, g.after, "limiting "+g.Guest+" to its nodes")
	}
	if stopped == nil {
		m.forgetIntents(ctx)
	}
	return errors.Join(stopped, m.verify(ctx))
}

// copy copies the memory of all guests in turns.
func (m *mover) copy(ctx context.Context, x apply.Executor) error {
	var turns []*apply.Turn
	if m.refused() == nil {
		for _, g := range m.guests {
			if g.err == nil {
				turns = append(turns, g.turn)
			}
		}
	}
	stopped := x.Turns(ctx, turns, m.pace, func() { m.tell("copying memory", m.pace.reached) })
	for _, g := range m.guests {
		g.turn.Finish()
		g.bound.Outcomes = append(g.bound.Outcomes, g.turn.Outcomes...)
		if g.err == nil {
			g.err = errors.Join(stopped, g.turn.Err, m.refused())
		}
	}
	return stopped
}

// steps runs one part of a guest's plan, or skips it where an earlier one failed.
func (m *mover) steps(ctx context.Context, x apply.Executor, g *moving, steps []plan.Step, what string) {
	if g.err != nil {
		for _, s := range steps {
			g.bound.Outcomes = append(g.bound.Outcomes, apply.Outcome{Step: s, Status: apply.Skipped})
		}
		return
	}
	m.tell(what, 0)
	p := g.bound.Plan
	p.Steps = steps
	var outcomes []apply.Outcome
	outcomes, g.err = x.Run(ctx, p, g.intent)
	g.bound.Outcomes = append(g.bound.Outcomes, outcomes...)
}

// verify reads back the truth of every guest.
func (m *mover) verify(ctx context.Context) error {
	var errs []error
	for _, g := range m.guests {
		errs = append(errs, undo(ctx, func(ctx context.Context) error {
			t, err := m.host.Verify(ctx, g.Guest)
			if gone := apply.StillThere(m.host.Kernel, g.Basis); gone != nil {
				g.err = errors.Join(g.err, gone)
				return nil // of that one there is no truth
			}
			if err == nil {
				g.bound.Truth = &t
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// note keeps that a part is done. That it cannot is no reason to stop: the
// move's beginning is kept, and what is in place is found in place.
func (m *mover) note(what string) {
	if slices.ContainsFunc(m.guests, func(g *moving) bool { return g.err == nil }) {
		m.unkept = errors.Join(m.unkept, m.keep(journal.Entry{Kind: journal.MoveStep, What: what}))
	}
}

// done is how much is copied or was found in place, and how much is to be.
func (m *mover) done() (done, total topology.Bytes) {
	for _, g := range m.guests {
		d, t := g.turn.Done()
		done, total = done+d, total+t
	}
	return done, total
}

// tell says how far the move is.
func (m *mover) tell(step string, rate topology.Bytes) {
	if m.Told == nil {
		return
	}
	s := status.Moving{ID: m.ID, Began: m.began, Move: m.Move, Step: step, BytesPerSecond: rate}
	s.Done, s.Total = m.done()
	m.Told(s)
}

// failures are what went wrong with the guests that are still there, and how
// many are not. Want of room is told by the shortfalls.
func (m *mover) failures() (failed error, gone int) {
	gone = m.gone
	for _, g := range m.guests {
		switch {
		case errors.Is(g.err, apply.ErrGone):
			gone++
		case !errors.Is(g.err, unix.ENOMEM):
			failed = errors.Join(failed, g.err)
		}
	}
	return failed, gone
}

// end writes how a move ended that was not stopped.
func (m *mover) end(unseen error) error {
	m.sum()
	failed, gone := m.failures()
	failed = errors.Join(failed, unseen, m.unkept)
	e := journal.Entry{Kind: journal.MoveDone, What: m.Move.String(), Shortfalls: m.moved.Shortfalls()}
	switch {
	case gone > 0 && gone == m.all():
		e.Kind, e.Why = journal.MoveFailed, "the guest has ended"
	case gone > 0:
		e.Kind, e.Why = journal.MovePartial, fmt.Sprintf("%d of %d guests have ended", gone, m.all())
	case failed != nil || len(e.Shortfalls) > 0:
		e.Kind = journal.MovePartial
	}
	if gone > 0 {
		failed = errors.Join(fmt.Errorf("%s: %w", e.Why, apply.ErrGone), failed)
	}
	if failed != nil {
		e.Why = failed.Error()
	}
	return errors.Join(failed, m.close(e))
}

func (m *mover) all() int { return m.gone + len(m.guests) }

// endBack writes how undoing ended.
func (m *mover) endBack(why, err error) error {
	m.sum()
	failed, gone := m.failures()
	failed = errors.Join(failed, err)
	e := journal.Entry{Kind: journal.MoveUndone, What: "back: " + m.Move.String(), Why: why.Error(), Shortfalls: m.moved.Shortfalls()}
	switch {
	case gone > 0 && gone == m.all():
		e.Kind, e.Why = journal.MoveFailed, "the guest has ended"
	case failed != nil || len(e.Shortfalls) > 0:
		e.Kind, e.What = journal.MoveFailed, "not quite back: "+m.Move.String()
		if failed != nil {
			e.Why += "; " + failed.Error()
		}
	}
	return errors.Join(failed, m.close(e))
}

// close writes the move's end.
func (m *mover) close(e journal.Entry) error {
	m.moved.End, m.moved.Why = e.Kind, e.Why
	e.Moved, e.Took = m.moved.Bytes, m.host.Clock().Sub(m.began)
	if err := m.keep(e); err != nil {
		return fmt.Errorf("keeping in the journal how it ended: %w", err)
	}
	return nil
}
