package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// Deadlines for calls that leave the process.
const (
	jobTime     = 6 * time.Hour
	settingTime = 10 * time.Second
)

// work runs a function that may take long and sends its event to the loop.
func (d *Daemon) work(do func() control.Event) {
	d.workers.Go(func() { d.send(do()) })
}

// send sends an event to the loop, unless that has ended.
func (d *Daemon) send(e control.Event) {
	select {
	case d.events <- e:
	case <-d.stopped:
	}
}

// observe reads the host; libvirt may be slow.
func (l *loop) observe() {
	l.work(func() control.Event {
		ctx, cancel := context.WithTimeout(l.ctx, operate.ObserveTime)
		defer cancel()
		begin := time.Now()
		h, err := l.Host.Observe(ctx)
		took := time.Since(begin)
		l.Log.Debug("observed the host", "took", took, "guests", len(h.Guests))
		return control.Observed{Host: h, Took: took, Err: err}
	})
}

// readClosely reads the mappings of guests that may move soon. If that fails, their move reads them.
func (l *loop) readClosely(r control.ReadClosely) {
	l.work(func() control.Event {
		ctx, cancel := context.WithTimeout(l.ctx, operate.ObserveTime)
		defer cancel()
		begin := time.Now()
		h, ok, err := l.Host.ObserveAgain(ctx, r.Host, r.Guests...)
		l.Log.Debug("read guests closely", "took", time.Since(begin), "guests", r.Guests, "ok", ok, "error", err)
		var e control.CloselyRead
		for _, name := range r.Guests {
			if g, found := h.Guest(name); found && ok {
				e.Guests = append(e.Guests, *g)
			}
		}
		return e
	})
}

// fix changes a setting. The last one restores what the daemon changed, when
// ctx has ended.
func (l *loop) fix(r plan.Remedy) {
	ctx := l.ctx
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	l.work(func() control.Event {
		ctx, cancel := context.WithTimeout(ctx, settingTime)
		defer cancel()
		f, err := l.Host.Fix(ctx, operate.FixRequest{Remedy: r, Held: r.Kind == plan.WriteSetting})
		return control.SettingChanged{
			What:     f.What,
			Former:   f.Former,
			NotBegun: errors.Is(err, operate.ErrNotBegun),
			Err:      err,
		}
	})
}

// causes are the reasons to stop a job, in the words of its journal entry.
var causes = map[control.StopCause]error{
	control.StopPaused:       errors.New("paused by the operator; 'numavisor resume' continues it"),
	control.StopWindowClosed: errors.New("its maintenance window has ended; the next window continues it"),
	control.StopCancelled:    fmt.Errorf("cancelled by the operator: %w", move.ErrUndo),
}

// startJob starts a job. Stopping it also stops its rollback, unless the cause
// is a cancellation.
func (l *loop) startJob(j control.Job) {
	within, end := context.WithTimeout(l.ctx, jobTime)
	within, stop := context.WithCancelCause(within)
	ctx, undo := context.WithCancelCause(within)
	giveWay := make(chan struct{})
	l.stopJob = func(cause control.StopCause) {
		switch cause {
		case control.StopCancelled:
			undo(causes[cause])
		case control.StopGivesWay:
			close(giveWay)
		case control.StopPaused, control.StopWindowClosed:
			stop(causes[cause])
		}
	}
	l.work(func() control.Event {
		defer end()
		return l.run(ctx, within, giveWay, j)
	})
}

// run carries out a job under the policy by which it was decided; the end of
// within also ends its rollback, and giveWay the copying of a move.
func (d *Daemon) run(ctx, within context.Context, giveWay <-chan struct{}, j control.Job) control.JobEnded {
	host := *d.Host
	host.Policy = j.Policy
	r := move.Request{
		ID: j.ID, Move: j.Move, By: string(j.By), Journal: d.Journal, Progress: d.progress(), Back: within,
	}
	switch j.Kind {
	case control.RecoverJob:
		r.By = "restart"
		moved, err := host.Recover(ctx, r)
		return ended(moved, err)
	case control.RepairJob, control.RestJob:
		b, err := host.Bind(ctx, operate.BindRequest{Name: j.Guest})
		e := control.JobEnded{Err: err, Stopped: errors.Is(err, context.Canceled)}
		if !b.Complete() {
			e.Shortfalls = b.Shortfalls()
		}
		return e
	case control.MoveJob:
	}
	r.Later, r.Pull = j.By == control.Balancer, j.Policy.Movers.KernelCopies == policy.AnswerAuto
	r.Idle, r.Known, r.Held, r.Drifts, r.GiveWay = j.Idle, j.Known, j.Held, j.Drifts, giveWay
	r.Served, r.CopyRate = j.Served, j.CopyRate
	moved, err := host.Move(ctx, r)
	if len(moved.Guests) == 0 {
		e := ended(nil, err)
		e.Stale = errors.Is(err, move.ErrStale)
		return e
	}
	e := ended([]move.Result{moved}, err)
	e.Seen = moved.Seen
	return e
}

// ended returns how moves ended.
func ended(moved []move.Result, err error) control.JobEnded {
	stopped := errors.Is(err, move.ErrStopped) || errors.Is(err, context.Canceled) && len(moved) == 0
	e := control.JobEnded{Err: err, Stopped: stopped}
	for _, m := range moved {
		e.Moved = append(e.Moved, control.Moved{
			Move: m.Move, End: m.End, Bytes: m.Bytes, Copied: m.Copied, Cancelled: m.Cancelled,
			Left: m.Left, Idle: m.Idle, Pulled: m.Pulled, Held: m.Held, GaveWay: m.GaveWay, Pauses: m.Pauses,
		})
	}
	return e
}

// progress sends the state of a move to the loop, at most a few times a second,
// and at once when a recovery changes to another of its moves.
func (d *Daemon) progress() func(status.Moving) {
	var last time.Time
	var id string
	return func(now status.Moving) {
		if now.ID == id && time.Since(last) < 200*time.Millisecond {
			return
		}
		last, id = time.Now(), now.ID
		d.send(control.JobProgressed{Moving: now})
	}
}
