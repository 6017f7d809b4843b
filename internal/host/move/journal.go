package move

import (
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

// What is told of a move: to whoever watches it, to its journal, to its caller.

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

// failures tells how many guests are not there any more, and what went wrong
// with the others. Want of room is told by the shortfalls.
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

// end writes how a move ended that was not stopped.
func (m *mover) end(unseen error) error {
	m.sum()
	gone, failed := m.failures()
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
	e.Moved, e.Took, e.Copied = m.moved.Bytes, m.host.Clock().Sub(m.began), m.moved.Copied
	if err := m.keep(e); err != nil {
		return fmt.Errorf("keeping in the journal how it ended: %w", err)
	}
	return nil
}

// leave writes that the move has been stopped. It has no end in the journal: a
// restart finishes it.
func (m *mover) leave(why error) error {
	done, total := m.done()
	return errors.Join(
		why,
		m.keep(
			journal.Entry{
				Kind: journal.MoveStep,
				What: fmt.Sprintf("stopped with %v of %v copied; to be resumed", done, total),
				Why:  why.Error(),
			},
		),
	)
}

func (m *mover) finish(err error) (Result, error) {
	m.sum()
	m.moved.Took = m.host.Clock().Sub(m.began)
	if err = errors.Join(err, m.release()); err != nil {
		err = fmt.Errorf("moving %s: %w", strings.Join(m.Move.Names(), ", "), err)
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
					m.moved.Copied += o.Took
				}
			}
		}
		g.counted = true
	}
}
