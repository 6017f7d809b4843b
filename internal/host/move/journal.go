package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Reports of a move: to the caller's progress function, to the journal, and in
// the result.

// note records that a part is done. A failure to record it is no reason to
// stop: the journal has the move's beginning, and Recover measures what is in
// place.
func (m *mover) note(what string) {
	if slices.ContainsFunc(m.guests, func(g *moving) bool { return g.err == nil }) {
		m.unrecorded = errors.Join(m.unrecorded, m.record(journal.Entry{Kind: journal.MoveStep, What: what}))
	}
}

// done returns how much memory is copied or was found in place, and how much
// there is to copy.
func (m *mover) done() (done, total topology.Bytes) {
	for _, g := range m.guests {
		d, t := g.turn.Done()
		done, total = done+d, total+t
	}
	return done, total
}

// tell reports the progress of the move.
func (m *mover) tell(step string, rate topology.Bytes) {
	if m.Progress == nil {
		return
	}
	s := status.Moving{ID: m.ID, Began: m.began, Move: m.Move, Step: step, BytesPerSecond: rate}
	s.Done, s.Total = m.done()
	m.Progress(s)
}

// failures returns how many guests no longer exist, and the errors of the
// others. The shortfalls report a lack of room.
func (m *mover) failures() (gone int, failed error) {
	gone = m.gone
	for _, g := range m.guests {
		switch {
		case errors.Is(g.err, apply.ErrGone):
			gone++
		case !errors.Is(g.err, unix.ENOMEM):
			failed = errors.Join(failed, g.err)
		}
	}
	return gone, failed
}

// end records the end of a move that was not stopped.
func (m *mover) end(unseen error) error {
	m.sum()
	gone, failed := m.failures()
	failed = errors.Join(failed, unseen, m.unrecorded)
	e := journal.Entry{Kind: journal.MoveDone, What: m.Move.String(), Shortfalls: m.moved.Shortfalls()}
	switch {
	case gone > 0 && gone == m.all():
		e.Kind, e.Why = journal.MoveFailed, "the VM has ended"
	case gone > 0:
		e.Kind, e.Why = journal.MovePartial, fmt.Sprintf("%d of %d VMs have ended", gone, m.all())
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

// endBack records the end of a rollback.
func (m *mover) endBack(why, err error) error {
	m.sum()
	gone, failed := m.failures()
	failed = errors.Join(failed, err)
	e := journal.Entry{
		Kind:       journal.MoveUndone,
		What:       "back: " + m.Move.String(),
		Why:        why.Error(),
		Shortfalls: m.moved.Shortfalls(),
	}
	switch {
	case gone > 0 && gone == m.all():
		e.Kind, e.Why = journal.MoveFailed, "the VM has ended"
	case failed != nil || len(e.Shortfalls) > 0:
		e.Kind, e.What = journal.MoveFailed, "not completely rolled back: "+m.Move.String()
		if failed != nil {
			e.Why += "; " + failed.Error()
		}
	}
	return errors.Join(failed, m.close(e))
}

// close records the move's end.
func (m *mover) close(e journal.Entry) error {
	m.moved.End, m.moved.Why = e.Kind, e.Why
	e.Moved, e.Pulled, e.Took = m.moved.Bytes, m.moved.Pulled, m.elapsed()
	e.Copied, e.Trace = m.moved.Copied, m.trace.Moments()
	if err := m.record(e); err != nil {
		return fmt.Errorf("recording its end in the journal: %w", err)
	}
	return nil
}

// leave records that the move was stopped. It has no end in the journal: a
// restart resumes it.
func (m *mover) leave(why error) error {
	done, total := m.done()
	return errors.Join(
		why,
		m.record(
			journal.Entry{
				Kind: journal.MoveStep,
				What: fmt.Sprintf("stopped with %v of %v copied; to be resumed", done, total),
				Why:  why.Error(), Took: m.elapsed(), Trace: m.trace.Moments(),
			},
		),
	)
}

func (m *mover) finish(ctx context.Context, err error) (Result, error) {
	m.sum()
	m.moved.Took = m.host.Clock().Sub(m.began)
	if err = errors.Join(err, m.releaseSeen(ctx)); err != nil {
		err = fmt.Errorf("moving %s: %w", strings.Join(m.Move.Names(), ", "), err)
	}
	return m.moved, err
}

// sum adds up the guests' copied memory so far.
func (m *mover) sum() {
	m.moved.Guests, m.moved.Left, m.moved.Idle = nil, nil, nil
	m.moved.Held = cmp.Or(m.pulling.held, m.moved.Held)
	for _, g := range m.guests {
		if g.left {
			m.moved.Left = append(m.moved.Left, g.Guest)
		}
		if g.idle {
			m.moved.Idle = append(m.moved.Idle, g.Guest)
		}
		m.moved.Guests = append(m.moved.Guests, g.bound)
		if !g.counted {
			for _, o := range g.bound.Outcomes {
				if o.Moved != nil {
					m.moved.Bytes += o.Moved.Moved
					m.moved.Copied += o.Took
				}
			}
		}
		g.counted = true
	}
}
