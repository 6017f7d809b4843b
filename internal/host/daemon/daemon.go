// Package daemon runs the controller of one host (package control): it feeds
// samples, observations, results and orders into it, and carries out what it
// returns. It decides nothing itself.
//
// One goroutine, the loop, calls the controller. Anything that may take long
// (observing the host, a job, a setting) runs in a worker that returns an event
// to the loop. Nothing depends on the daemon's memory: alarms, the journal and
// a pause are in files, and a start after kill -9 finishes or undoes
// interrupted work.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Watcher takes samples of the guests that it follows (package watch).
type Watcher interface {
	Follow(guests []inventory.Guest, t *topology.Topology)
	Sample() inventory.Sample
}

// Journal is the record of the daemon's effects (record.Journal is one in a
// file).
type Journal interface {
	operate.Journal
	// Read returns the entries, and the lines that could not be read.
	Read(record.Filter) (record.History, error)
}

// Options are the parameters of a daemon. Fields without a comment must be set.
type Options struct {
	// Host is the host that the daemon acts on, with the first Policy;
	// SetPolicy changes the policy.
	Host *move.Host
	// PolicyFile is the file that policies are read from; the daemon only shows
	// it.
	PolicyFile string

	Watcher Watcher
	Journal Journal
	Records string // folder of the alarms; only one daemon at a time may use it
	Log     *slog.Logger
	// Roster identifies the running guests at little cost: when it changes, the
	// daemon observes the host at once. Nil: only every Look.
	Roster func() string
	// Used is the CPU time that all guests have used, at little cost; nil: not known.
	Used func() (time.Duration, error)
	// CopyRate measures how fast the host copies memory between nodes, in bytes a second, for the time until a move has
	// shown it. Nil: it is not known until then.
	CopyRate func(context.Context) (topology.Bytes, error)
	// Connect opens the connection by which guests are changed, so that the first move does not wait for it; nil:
	// there is none.
	Connect func(context.Context) error
	// Self returns the daemon's own cost; nil: not reported.
	Self func() status.Self
	// Fleet returns the membership of a fleet; nil: the daemon has not joined one.
	Fleet func() status.Fleet
	// Supervisor gets reports of the daemon's state.
	Supervisor Supervisor

	// Every is the time between samples, Look between observations, Plan between
	// plans. Zero: 1 s, 30 s, 5 s.
	Every, Look, Plan time.Duration
}

// Daemon is the loop of one host.
type Daemon struct {
	Options
	asks    chan func(*loop)
	events  chan control.Event // from workers
	workers sync.WaitGroup
	stopped chan struct{} // closed when the loop accepts no more of either
}

// ErrStopped means that the daemon has ended.
var ErrStopped = &hostapi.Error{Status: http.StatusServiceUnavailable, Err: errors.New("the daemon has stopped")}

// New makes a daemon; Run runs it, once.
func New(o Options) *Daemon {
	o.Every = cmp.Or(o.Every, time.Second)
	o.Look = cmp.Or(o.Look, 30*time.Second)
	o.Plan = cmp.Or(o.Plan, 5*time.Second)
	host := *o.Host
	host.Journal, host.By = o.Journal, "daemon"
	o.Host = &host
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Daemon{
		Options: o, asks: make(chan func(*loop)), events: make(chan control.Event), stopped: make(chan struct{}),
	}
}

// loop is the state that the loop's goroutine owns.
type loop struct {
	*Daemon
	ctx        context.Context // ends with Run
	controller *control.Controller
	alarms     record.Alarms
	roster     string
	planning   time.Duration // CPU time of the last plan
	turned     time.Time     // when the last turn began
	took       time.Duration // how long it took
	orders     control.OrderID
	replies    map[control.OrderID]error
	stopJob    func(control.StopCause) // the running job
	early      *time.Timer             // a sample before the regular one
	looks      looks
	done       bool // the controller has stopped
}

// Run balances the host until ctx ends. It then ends at once; a running move
// stops at the next slice and is resumed at the next start. The error is
// record.ErrHeld if another daemon uses the same folder of records.
func (d *Daemon) Run(ctx context.Context) error {
	held, err := record.Hold(d.Records)
	if err != nil {
		close(d.stopped)
		return fmt.Errorf("the daemon does not start: %w", err)
	}
	defer func() { _ = held.Close() }() // nothing is written any more
	ctx, stop := context.WithCancel(ctx)
	defer d.workers.Wait()
	defer close(d.stopped)
	defer stop()
	l := &loop{Daemon: d, ctx: ctx, replies: map[control.OrderID]error{}, controller: control.New(control.Options{
		Policy: d.Host.Policy, Sample: d.Every, Observe: d.Look, Plan: d.Plan, SaveAlarms: record.AlarmsEvery,
	})}
	l.early = time.NewTimer(d.Every)
	l.early.Stop()
	defer l.early.Stop()
	l.looks.timer = time.NewTimer(d.Every)
	l.looks.timer.Stop()
	defer l.looks.timer.Stop()
	if err := l.begin(); err != nil {
		return err
	}
	if d.Connect != nil {
		d.workers.Go(func() { d.connect(ctx) })
	}
	alive, stopAlive := d.Supervisor.ticks()
	defer stopAlive()
	defer l.end(alive)
	tick := time.NewTicker(d.Every)
	defer tick.Stop()
	l.turn()
	d.Supervisor.report(Ready)
	for {
		select {
		case <-ctx.Done():
			return nil
		case ask := <-d.asks:
			ask(l)
			l.lookAgain()
		case e := <-d.events:
			l.step(e)
			l.lookAgain()
		case <-tick.C:
			if !l.pauses() {
				l.turn()
			}
			l.lookLater()
		case <-l.early.C:
			l.turn()
			l.lookAgain()
		case <-l.looks.timer.C:
			l.look()
		case <-alive:
			d.Supervisor.report(Alive)
		}
	}
}

// connect connects once. Each change connects again if need be, so an error is only logged.
func (d *Daemon) connect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settingTime)
	defer cancel()
	if err := d.Connect(ctx); err != nil && ctx.Err() == nil {
		d.Log.Debug("not connected yet", "error", err)
	}
}

// pauses reports whether the loop leaves out a regular turn: where turns take more than half of the time, and on a calm
// host, unless guests have come or gone.
func (l *loop) pauses() bool {
	within := func(wait time.Duration) bool { return time.Since(l.turned)+l.Every/2 < wait }
	return within(2*l.took) || within(l.controller.CalmFor(l.took)) && !l.othersRun()
}

// othersRun reports whether guests have come or gone since the host was last asked to be observed for that.
func (l *loop) othersRun() bool { return l.Roster != nil && l.Roster() != l.roster }

// turn is one turn of the loop. It decides only after the events that have come: where turns take long, timers and
// events are ready at the same time, and Go chooses between them by chance.
func (l *loop) turn() {
	l.turned = time.Now()
	defer func() { l.took = time.Since(l.turned) }()
	l.stepWaiting()
	l.step(control.Tick{})
	sample := l.Watcher.Sample()
	l.stepWaiting()
	if l.othersRun() {
		l.roster = l.Roster()
		l.step(control.RosterChanged{})
	}
	l.step(control.Sampled{Sample: sample})
}

// stepWaiting steps the events of workers that wait for the loop.
func (l *loop) stepWaiting() {
	for {
		select {
		case e := <-l.events:
			l.step(e)
		default:
			return
		}
	}
}

// step feeds an event to the controller and carries out the result, and the
// events that follow from it.
func (l *loop) step(e control.Event) {
	for events := []control.Event{e}; len(events) > 0; {
		begin := time.Now()
		ready := l.controller.Step(begin, events[0])
		if ready.Planned {
			l.planning = time.Since(begin)
		}
		events = append(events[1:], l.carryOut(ready)...)
	}
}

// carryOut carries out a Ready, in the order that its documentation requires.
// It returns the events that follow at once; workers send the others later.
func (l *loop) carryOut(r control.Ready) (events []control.Event) {
	if r.StopJob != "" && l.stopJob != nil {
		l.stopJob(r.StopJob)
	}
	for _, a := range r.Entries {
		if err := l.append(a.Entry); a.Order != 0 {
			events = append(events, control.Appended{Order: a.Order, Err: err})
		}
	}
	if r.ReadJournal {
		entries, err := l.Journal.Entries()
		events = append(events, control.JournalRead{Entries: entries, Err: err})
	}
	if r.SaveAlarms != nil {
		l.saveAlarms(r.SaveAlarms)
	}
	if r.Follow != nil {
		l.Watcher.Follow(r.Follow.Guests, r.Follow.Topology)
	}
	if r.Observe {
		l.observe()
	}
	if r.SampleIn > 0 {
		l.early.Reset(r.SampleIn)
	}
	if r.ReadClosely != nil {
		l.readClosely(*r.ReadClosely)
	}
	if r.Remedy != nil {
		l.fix(*r.Remedy)
	}
	if r.StartJob != nil {
		l.startJob(*r.StartJob)
	}
	for _, f := range r.Facts {
		l.Log.Log(l.ctx, levels[f.Level], f.What, f.About...)
	}
	for _, reply := range r.Replies {
		l.replies[reply.Order] = reply.Err
	}
	l.done = l.done || r.Stopped
	return events
}

var levels = map[control.Level]slog.Level{
	control.Debug: slog.LevelDebug,
	control.Info:  slog.LevelInfo,
	control.Warn:  slog.LevelWarn,
	control.Error: slog.LevelError,
}

// end makes the controller restore the settings that it changed. Jobs have been
// stopped by then: their results are in the journal, for the next start. A
// setting may take minutes to restore (KSM); Alive is reported meanwhile.
func (l *loop) end(alive <-chan time.Time) {
	l.Supervisor.report(Stopping)
	l.step(control.Stop{})
	for !l.done {
		select {
		case e := <-l.events:
			if e, ok := e.(control.SettingChanged); ok {
				l.step(e)
			}
		case <-alive:
			l.Supervisor.report(Alive)
		}
	}
}
