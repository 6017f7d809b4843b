package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// job is one thing to be done to guests. Jobs are done one after the other:
// the nodes' bandwidth is shared by all guests, and a plan's moves make room
// for each other in its order.
type job struct {
	id      string
	move    plan.Move
	by      string // "balancer", "operator"
	recover bool   // take up what was cut short, instead of a move
	repair  string // a guest to bind to its recorded placement, instead of a move
	why     string // of a repair
}

// running is the job on its way. cancel stops it, to be taken up again; undo has
// it undone, which cancel stops as well.
type running struct {
	job          job
	shown        status.Moving
	cancel, undo context.CancelCauseFunc
}

// Reasons to stop a move on its way.
var (
	errPaused    = errors.New("paused by the operator; 'numavisor resume' takes it up again")
	errClosed    = errors.New("its maintenance window has ended; the next one takes it up again")
	errCancelled = fmt.Errorf("cancelled by the operator: %w", operate.ErrUndo)
)

func (s *state) busy() bool { return s.moving != nil || len(s.queue) > 0 }

// work begins the next job where none is on its way.
func (s *state) work(ctx context.Context) {
	if s.moving != nil || len(s.queue) == 0 {
		return
	}
	next := 0
	if s.held() != "" { // what was cut short waits, moves are planned anew; an operator's go on
		s.dropPlanned()
		next = slices.IndexFunc(s.queue, func(j job) bool { return !j.recover })
		if next < 0 {
			return
		}
	}
	j := s.queue[next]
	s.queue = slices.Delete(s.queue, next, next+1)
	within, end := context.WithTimeout(ctx, moveTime)
	within, cancel := context.WithCancelCause(within)
	doing, undo := context.WithCancelCause(within)
	s.moving = &running{job: j, cancel: cancel, undo: undo, shown: status.Moving{ID: j.id, Began: time.Now(), Move: j.move, Step: "begins"}}
	s.d.beside(ctx, func() func(*state) {
		defer end()
		ended := s.d.carryOut(doing, within, j)
		return func(s *state) { s.ended(j, ended) }
	})
}

// outcome is what came of a job.
type outcome struct {
	moved    []operate.Moved // moves that began
	repaired *operate.Bound
	err      error
}

// carryOut does a job, beside the loop; within ends the undoing of it, too.
func (d *Daemon) carryOut(ctx, within context.Context, j job) (o outcome) {
	r := operate.MoveRequest{ID: j.id, Move: j.move, By: j.by, Keep: d.Journal, Told: d.progress(within), Back: within}
	switch {
	case j.recover:
		r.By = "restart"
		o.moved, o.err = d.Host.Recover(ctx, r)
	case j.repair != "":
		b, err := d.Host.Bind(ctx, operate.BindRequest{Name: j.repair})
		o.repaired, o.err = &b, err
	default:
		moved, err := d.Host.Move(ctx, r)
		if o.err = err; len(moved.Guests) > 0 {
			o.moved = append(o.moved, moved)
		}
	}
	return o
}

// progress hands what a move is doing to the loop, at most a few times a
// second; which of several is taken up, at once.
func (d *Daemon) progress(ctx context.Context) func(status.Moving) {
	var last time.Time
	var id string
	return func(now status.Moving) {
		if now.ID == id && time.Since(last) < 200*time.Millisecond {
			return
		}
		last, id = time.Now(), now.ID
		select {
		case d.asks <- func(s *state) {
			if s.moving != nil {
				s.moving.shown = now
			}
		}:
		case <-ctx.Done():
		}
	}
}

// ended takes down what came of a job.
func (s *state) ended(j job, o outcome) {
	s.moving, s.stale, s.anew = nil, true, false
	s.lookSoon()
	for i := range o.moved {
		s.count(&o.moved[i])
		for _, name := range names(o.moved[i].Move) {
			if delete(s.cut, name); o.moved[i].End == "" {
				s.cut[name] = true
			}
		}
	}
	if o.err != nil || j.recover && len(s.cut) > 0 { // another process may be at some
		s.unfinished = time.Now()
	}
	switch {
	case j.repair != "":
		s.noteRepair(j, o)
	case errors.Is(o.err, operate.ErrStopped), errors.Is(o.err, context.Canceled) && len(o.moved) == 0:
		s.d.Log.Info("a move was stopped on its way", "id", j.id, "why", o.err)
	case o.err != nil:
		s.d.Log.Warn("a move did not go through", "id", j.id, "error", o.err)
		if len(o.moved) == 0 && !j.recover { // refused before it began
			s.refused(j, o.err)
		}
	}
}

// refused notes a move that was not begun: what it was planned on has changed.
// The guest rests as after a move, so that nobody tries all the time.
func (s *state) refused(j job, err error) {
	e := journal.Entry{Kind: journal.MoveFailed, ID: j.id, Guests: names(j.move), What: "not begun: " + j.move.String(), Why: err.Error(), By: j.by}
	s.note(e)
	e.At = time.Now()
	s.remember(e)
	s.totals.MovesFailed++
	s.rest(&j.move, e.At, true)
	s.dropPlanned() // the rest was to follow it
}

// dropPlanned forgets what was planned and has not begun. What an operator
// wants stays, and what is to be taken up.
func (s *state) dropPlanned() {
	s.queue = slices.DeleteFunc(s.queue, func(j job) bool { return !j.recover && j.by != "operator" })
}

// count adds a move to the books. One that was stopped, or of which a step
// failed, comes again.
func (s *state) count(m *operate.Moved) {
	s.totals.MovedBytes += m.Bytes
	now := time.Now()
	e := journal.Entry{Kind: m.End, At: now, Guests: names(m.Move), Moved: m.Bytes, Copied: m.Copied, Cancelled: m.Cancelled}
	switch {
	case !e.Ends():
		s.dropPlanned()
		return
	case e.Kind == journal.MoveDone:
		s.totals.MovesDone++
	case e.Kind == journal.MovePartial:
		s.totals.MovesPart++
	case e.Fails():
		s.totals.MovesFailed++
	default:
		s.totals.MovesCancelled++
	}
	stayed := e.Kind == journal.MoveFailed || e.Kind == journal.MoveUndone
	if stayed {
		s.dropPlanned() // the rest was to follow it
	}
	s.remember(e)
	s.rest(&m.Move, now, stayed)
}

// rest leaves the guests of a move alone for a while, however it ended: nobody
// tries all the time. Those that stayed have left no nodes that they should not
// come back to.
func (s *state) rest(m *plan.Move, at time.Time, stayed bool) {
	for _, g := range m.Guests {
		moved := balance.Moved{Guest: g.Guest, At: at, From: g.Undo.VCPUNodes, To: g.Placement.Nodes}
		if stayed {
			moved.From = topology.NodeSet{}
		}
		s.past.Moves = append(s.past.Moves, moved)
	}
}

// noteRepair takes down a repair. One that a pause stopped is made after it:
// it is not noted, or whoever changed the guest would seem to insist.
func (s *state) noteRepair(j job, o outcome) {
	if errors.Is(o.err, context.Canceled) {
		s.d.Log.Info("a repair was stopped on its way", "guest", j.repair)
		return
	}
	e := journal.Entry{Kind: journal.Repaired, Guests: []string{j.repair}, By: "balancer", Why: j.why, What: "bound again to nodes it was placed on"}
	switch {
	case o.err != nil:
		e.Kind, e.What = journal.RepairFailed, "could not be bound again: "+o.err.Error()
	case !o.repaired.Complete():
		e.What, e.Shortfalls = "bound again in part", o.repaired.Shortfalls()
	}
	if e.Kind == journal.Repaired {
		s.totals.Repairs++
	}
	if e.Kind == journal.Repaired || s.repairs[j.repair].Failed != e.What { // the same failure again is no news
		s.note(e)
	}
	e.At = time.Now()
	s.remember(e)
}

// recoverLater takes up the moves that were cut short, by a pause too.
func (s *state) recoverLater() {
	entries, err := s.d.Journal.Entries()
	if err != nil {
		s.d.Log.Error("the journal cannot be read", "error", err)
		return
	}
	s.recover(entries)
}

// recover has the moves taken up that were cut short by what the journal has,
// before all else. What another process is at, it leaves; and looks again later.
func (s *state) recover(entries []journal.Entry) {
	open := journal.CutShort(entries)
	clear(s.cut)
	for _, e := range open {
		for _, name := range e.Guests {
			s.cut[name] = true
		}
	}
	if len(open) > 0 && !slices.ContainsFunc(s.queue, func(j job) bool { return j.recover }) {
		s.queue = append([]job{{recover: true}}, s.queue...)
	}
}

// takeUp tries again what could not be brought to its end, once things may have changed.
func (s *state) takeUp() {
	if s.unfinished.IsZero() || s.busy() || s.held() != "" || time.Since(s.unfinished) < s.d.Look {
		return
	}
	s.unfinished = time.Time{}
	s.recoverLater()
}

// accept queues an advised move because an operator says so.
func (s *state) accept(id string) error {
	i := slices.IndexFunc(s.advice, func(a status.Advice) bool { return a.ID == id })
	if i < 0 {
		return unknown("no advice %q: it no longer pays, or was accepted already; 'numavisor top' shows what there is", id)
	}
	m := s.advice[i].Move
	m.Advised = false
	s.advice = slices.Delete(s.advice, i, i+1)
	s.note(journal.Entry{Kind: journal.Accepted, ID: id, Guests: names(m), What: m.String(), Why: m.Why, By: "operator"})
	s.queue = append(s.queue, job{id: s.newID(), move: m, by: "operator"})
	return nil
}

// halt stops moves until somebody resumes, or the time has come: at once, and
// even where that cannot be kept (ErrForgetful).
func (s *state) halt(p status.Pause) error {
	s.pause = &p
	if s.moving != nil {
		s.moving.cancel(errPaused)
	}
	if err := s.keep(journal.Entry{Kind: journal.Paused, What: "moves nothing", Why: p.Why, Until: p.Until, By: "operator"}); err != nil {
		return fmt.Errorf("paused, but %w: make room, or make it writable, and pause again: %w", ErrForgetful, err)
	}
	return nil
}

// keepWindows stops what the balancer does where its maintenance window has
// ended, and has it taken up when the next one begins. What an operator
// wants, a move or its undoing, goes on.
func (s *state) keepWindows() {
	open := s.policy.Balance.Open(time.Now())
	if m := s.moving; m != nil && !open && m.job.by != "operator" {
		m.cancel(errClosed)
	}
	if open && !s.open && s.pause == nil {
		s.recoverLater()
	}
	s.open = open
}

// endPause ends a pause whose time has come.
func (s *state) endPause() {
	if p := s.pause; p != nil && !p.Until.IsZero() && !time.Now().Before(p.Until) {
		s.pause = nil
		s.note(journal.Entry{Kind: journal.Resumed, What: "the pause is over", By: "clock"})
		s.recoverLater()
	}
}

func (s *state) resume() error {
	if s.pause == nil {
		return &hostapi.Error{Status: http.StatusConflict, Err: errors.New("nothing is paused")}
	}
	s.pause = nil
	s.recoverLater()
	if err := s.keep(journal.Entry{Kind: journal.Resumed, What: "moves again where that pays", By: "operator"}); err != nil {
		return fmt.Errorf("resumed, but %w: make room, or make it writable, then pause and resume again: %w", ErrForgetful, err)
	}
	return nil
}

// abandon cancels a move on its way, which is the operator's from then on, or one
// that waits.
func (s *state) abandon(id string) error {
	if m := s.moving; m != nil && (m.job.id == id || m.job.recover && m.shown.ID == id) {
		m.undo(errCancelled)
		m.job.by = "operator"
		return nil
	}
	for i, j := range s.queue {
		if j.id == id {
			s.queue = slices.Delete(s.queue, i, i+1)
			return nil
		}
	}
	return unknown("no move %q is on its way", id)
}

// unknown refuses an order that names what is not there.
func unknown(format string, args ...any) error {
	return &hostapi.Error{Status: http.StatusNotFound, Err: fmt.Errorf(format, args...)}
}

// total is how much a move copies at most.
func total(m plan.Move) topology.Bytes {
	var sum topology.Bytes
	for _, g := range m.Guests {
		sum += g.Bytes
	}
	return sum
}
