package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/pace"
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
	by      string          // "balancer", "operator", "restart"
	recover []journal.Entry // moves cut short, instead of a move
	repair  string          // a guest to bind to its recorded placement, instead of a move
	why     string          // of a repair
	pace    operate.Pacer
}

// running is the job on its way.
type running struct {
	job    job
	shown  status.Moving
	cancel context.CancelCauseFunc
}

// Reasons to stop a move on its way.
var (
	errPaused    = errors.New("paused by the operator; 'numavisor resume' takes it up again")
	errCancelled = errors.New("cancelled by the operator")
)

func (s *state) busy() bool { return s.moving != nil || len(s.queue) > 0 }

// work begins the next job where none is on its way.
func (s *state) work(ctx context.Context) {
	if s.moving != nil || len(s.queue) == 0 {
		return
	}
	j := s.queue[0]
	if held := s.held(); held != "" && j.by != "operator" {
		if j.recover == nil { // these wait, others are planned anew
			s.queue = s.queue[1:]
		}
		return
	}
	s.queue = s.queue[1:]
	j.pace = s.pacer()
	doing, cancel := context.WithTimeout(ctx, moveTime)
	doing, stop := context.WithCancelCause(doing)
	s.moving = &running{job: j, cancel: stop, shown: status.Moving{ID: j.id, Began: time.Now(), Move: j.move, Step: "begins"}}
	s.d.beside(ctx, func() func(*state) {
		defer cancel()
		ended := s.d.carryOut(doing, j)
		return func(s *state) { s.ended(j, ended) }
	})
}

// pacer bounds copying by what guests bear, and by what the way between nodes carries.
func (s *state) pacer() operate.Pacer {
	b := s.policy.Balance
	l := pace.Limits{Most: b.Pace, Disturbance: b.Disturbance}
	if slowest := slowestWay(&s.host.Topology); l.Most == 0 && slowest > 0 {
		l.Most = topology.Bytes(slowest * 1e6 / 4)
	}
	return operate.NewGentle(l, s.d.Host.Sources.Kernel.Threads, time.Now)
}

// slowestWay is the least bandwidth measured between any two nodes, in MB a second; 0 if none was.
func slowestWay(t *topology.Topology) float64 {
	least := 0.0
	for _, from := range t.Nodes {
		for _, to := range t.Nodes {
			if mbps, ok := t.Bandwidth(from.ID, to.ID); ok && from.ID != to.ID && (least == 0 || mbps < least) {
				least = mbps
			}
		}
	}
	return least
}

// outcome is what came of a job.
type outcome struct {
	entries  []journal.Entry // how moves ended, as the journal has it
	repaired *operate.Bound
	err      error
}

// carryOut does a job, beside the loop.
func (d *Daemon) carryOut(ctx context.Context, j job) (o outcome) {
	switch {
	case j.recover != nil:
		o.entries, o.err = d.Host.Recover(ctx, j.recover, d.Journal, d.progress(ctx), j.pace)
	case j.repair != "":
		b, err := d.Host.Bind(ctx, operate.BindRequest{Name: j.repair})
		o.repaired, o.err = &b, err
	default:
		var end journal.Entry
		end, o.err = d.Host.Move(ctx, operate.MoveRequest{ID: j.id, Move: j.move, By: j.by, Journal: d.Journal, Progress: d.progress(ctx), Pace: j.pace})
		if end.Kind != "" {
			o.entries = append(o.entries, end)
		}
	}
	if cause := context.Cause(ctx); cause != nil && o.err != nil {
		o.err = fmt.Errorf("%w: %w", cause, o.err)
	}
	return o
}

// progress hands what a move is doing to the loop, at most a few times a second.
func (d *Daemon) progress(ctx context.Context) func(status.Moving) {
	var last time.Time
	return func(now status.Moving) {
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
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
	s.moving = nil
	s.lookSoon()
	for _, e := range o.entries {
		s.count(e)
	}
	switch {
	case j.repair != "":
		s.noteRepair(j, o)
	case errors.Is(o.err, errPaused):
		// Its begin is in the journal; resuming takes it up.
	case o.err != nil:
		s.d.Log.Warn("a move did not go through", "id", j.id, "error", o.err)
		if len(o.entries) == 0 && j.recover == nil { // refused before it began
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
	if !errors.Is(err, operate.ErrStale) {
		s.remember(journal.Entry{Kind: journal.MoveBegan, At: e.At, Move: &j.move})
	}
	s.queue = nil // the rest was to follow it
}

// count adds an ended move to the books.
func (s *state) count(e journal.Entry) {
	s.totals.MovedBytes += e.Moved
	switch e.Kind {
	case journal.MoveDone:
		s.totals.MovesDone++
	case journal.MovePartial:
		s.totals.MovesPart++
	case journal.MoveFailed, journal.MoveUndone:
		s.totals.MovesFailed++
		s.queue = nil
	}
	s.remember(e)
	if e.Move != nil && e.Ends() {
		s.remember(journal.Entry{Kind: journal.MoveBegan, At: e.At, Move: e.Move})
	}
}

func (s *state) noteRepair(j job, o outcome) {
	e := journal.Entry{Kind: journal.Repaired, Guests: []string{j.repair}, By: "balancer", Why: j.why, What: "bound again to nodes it was placed on"}
	switch {
	case o.err != nil:
		e.What = "could not be bound again: " + o.err.Error()
	case !o.repaired.Complete():
		e.What, e.Shortfalls = "bound again in part", o.repaired.Shortfalls()
	}
	s.totals.Repairs++
	s.note(e)
	e.At = time.Now()
	s.remember(e)
}

// recoverLater takes up the moves that were cut short, by a pause too.
func (s *state) recoverLater() {
	entries, err := s.d.Journal.Since(time.Now().Add(-time.Hour))
	if err != nil {
		s.d.Log.Error("the journal cannot be read", "error", err)
		return
	}
	if open := journal.CutShort(entries); len(open) > 0 && !slices.ContainsFunc(s.queue, func(j job) bool { return j.recover != nil }) {
		s.queue = append([]job{{recover: open, by: "restart"}}, s.queue...)
	}
}

// accept queues an advised move because an operator says so.
func (s *state) accept(id string) error {
	i := slices.IndexFunc(s.advice, func(a status.Advice) bool { return a.ID == id })
	if i < 0 {
		return fmt.Errorf("no advice %q: it no longer pays, or was accepted already; 'numavisor top' shows what there is", id)
	}
	m := s.advice[i].Move
	m.Advised = false
	s.advice = slices.Delete(s.advice, i, i+1)
	s.note(journal.Entry{Kind: journal.Accepted, ID: id, Guests: names(m), What: m.String(), Why: m.Why, By: "operator"})
	s.queue = append(s.queue, job{id: s.newID(), move: m, by: "operator"})
	return nil
}

// halt stops moves until somebody resumes, or the time has come.
func (s *state) halt(p status.Pause) {
	s.pause = &p
	s.note(journal.Entry{Kind: journal.Paused, What: "moves nothing", Why: p.Why, Until: p.Until, By: "operator"})
	if s.moving != nil {
		s.moving.cancel(errPaused)
	}
}

func (s *state) resume() error {
	if s.pause == nil {
		return errors.New("nothing is paused")
	}
	s.pause = nil
	s.note(journal.Entry{Kind: journal.Resumed, What: "moves again where that pays", By: "operator"})
	s.recoverLater()
	return nil
}

// abandon cancels a move on its way, or one that waits.
func (s *state) abandon(id string) error {
	if s.moving != nil && s.moving.job.id == id {
		s.moving.cancel(errCancelled)
		return nil
	}
	for i, j := range s.queue {
		if j.id == id {
			s.queue = slices.Delete(s.queue, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("no move %q is on its way", id)
}

// total is how much a move copies at most.
func total(m plan.Move) topology.Bytes {
	var sum topology.Bytes
	for _, g := range m.Guests {
		sum += g.Bytes
	}
	return sum
}
