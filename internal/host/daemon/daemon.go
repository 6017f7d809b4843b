// Package daemon is the loop that keeps a host right: it watches every second,
// looks at everything every half minute, decides, moves, and says what it did.
//
// One goroutine owns all state. Whatever may take long (reading the host,
// moving a guest) runs beside it and hands its result back; whoever wants to
// know something asks the loop. Nothing depends on the loop's memory: alarms,
// the journal of moves and a pause are in files, and a start after kill -9
// finishes or undoes what was on its way.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Watcher takes samples of the guests that it follows (package watch).
type Watcher interface {
	Follow(guests []inventory.Guest, t *topology.Topology)
	Sample() inventory.Sample
}

// Journal is where what the daemon does is kept (record.Journal is one in a file).
type Journal interface {
	operate.Journal
	// Read tells beside the entries what could not be read.
	Read(record.Filter) (record.History, error)
}

// Options are what a daemon is made of. Fields without a comment must be set.
type Options struct {
	Host    *operate.Host
	Watcher Watcher
	Journal Journal
	Records string // folder of the alarms; one daemon at a time keeps its records there
	Policy  policy.Policy
	Log     *slog.Logger
	// Roster tells cheaply which guests run: when it changes, the host is
	// looked at anew at once. Nil: only every Look.
	Roster func() string
	// Self tells what the daemon takes; nil: not told.
	Self func() status.Self

	// Every is the time between samples, Look between readings of everything,
	// Plan between plans. Zero: 1 s, 30 s, 5 s.
	Every, Look, Plan time.Duration
}

// Daemon is the loop of one host.
type Daemon struct {
	Options
	asks    chan func(*state)
	worker  sync.WaitGroup // whoever runs beside the loop
	stopped chan struct{}  // closed when the loop has ended
}

// means is over which time loads are averaged before a plan is made of them.
const means = 10 * time.Second

// deadlines of what leaves the process.
const (
	lookTime = time.Minute
	moveTime = 6 * time.Hour
	tellTime = 10 * time.Second
)

// ErrStopped means that the daemon has ended.
var ErrStopped = &hostapi.Error{Status: http.StatusServiceUnavailable, Err: errors.New("the daemon has stopped")}

// New makes a daemon; Run runs it, once.
func New(o Options) *Daemon {
	orElse(&o.Every, time.Second)
	orElse(&o.Look, 30*time.Second)
	orElse(&o.Plan, 5*time.Second)
	o.Policy = o.Policy.WithDefaults()
	host := *o.Host
	host.Journal, host.By = o.Journal, "daemon"
	o.Host = &host
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Daemon{Options: o, asks: make(chan func(*state)), stopped: make(chan struct{})}
}

func orElse(v *time.Duration, other time.Duration) {
	if *v == 0 {
		*v = other
	}
}

// state is all that the loop knows. Only the loop touches it.
type state struct {
	d       *Daemon
	started time.Time
	turns   time.Time // when the turns of the loop began
	policy  policy.Policy
	next    *policy.Policy // waits until nothing is on its way

	host     inventory.Host     // as last looked at, with the latest figures in it
	followed *topology.Topology // by the watcher
	looked   time.Time          // zero: not yet
	looking  bool
	due      bool // it is to be looked at without waiting for its time
	stale    bool // guests were moved since it was looked at,
	anew     bool // and the look on its way began after that
	roster   string
	blind    string          // why the last look failed; empty if it did not
	damaged  []inventory.Gap // of the journal, as it was at the start
	sample   inventory.Sample
	history  *history.History

	alarms record.Alarms
	rivals []status.Rival
	// changes are settings of others that are still to be changed, one after the
	// other, and changing the one on its way; tried and told are what came of those before,
	// told by the process that numad was told of.
	changes   []plan.Remedy
	changing  *change
	tried     map[plan.RemedyKind]competitors.Tried
	told      map[int]competitors.Tried
	balancing string // what kernel.numa_balancing was before we changed it; empty: we did not
	answered  time.Time
	drifted   map[string]time.Time         // since when a guest of ours lies otherwise
	repairs   map[string]competitors.Tried // what came of binding it again last

	past    balance.Past
	copies  throttle.Copies        // of moves made here
	failed  map[string][]time.Time // moves of a guest that failed lately
	round   plan.Plan
	planned time.Time
	planCPU time.Duration
	lacking map[string]bool // who lacked something when the last plan was made
	early   time.Time       // when a plan was last made for somebody who newly did
	waited  time.Time       // when the moves of a plan last waited for somebody's patience to end
	advice  []status.Advice
	advised map[string]time.Time // when it was noted last, by its id
	pause   *status.Pause
	open    bool // a maintenance window was open in the last turn
	named   int  // moves that have got a name
	// unfinished is when a job last failed: a move may be without its end since
	// then, and is taken up after a while. Zero: none failed.
	unfinished time.Time
	cut        map[string]bool // guests of moves that were cut short
	moving     *running
	queue      []job
	totals     status.Totals
}

// Run keeps the host right until ctx ends. It ends at once; a move on its way
// stops at the next slice and is taken up at the next start. The error is
// record.ErrHeld where another daemon keeps its records in the same folder.
func (d *Daemon) Run(ctx context.Context) error {
	held, err := record.Hold(d.Records)
	if err != nil {
		close(d.stopped)
		return fmt.Errorf("the daemon does not start: %w", err)
	}
	defer func() { _ = held.Close() }() // by now nobody writes
	ctx, stop := context.WithCancel(ctx)
	defer d.worker.Wait()
	defer close(d.stopped)
	defer stop()
	closing, cancel := context.WithTimeout(ctx, tellTime)
	if err := d.Host.CloseInterrupted(closing); err != nil {
		d.Log.Warn("effects that were interrupted are not closed", "error", err)
	}
	cancel()
	s, err := d.begin()
	if err != nil {
		return err
	}
	defer s.end()
	s.turns = time.Now()
	tick := time.NewTicker(d.Every)
	defer tick.Stop()
	s.tick(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case ask := <-d.asks:
			ask(s)
		case <-tick.C:
			s.tick(ctx)
		}
	}
}

// tell runs something in the loop and waits for it. It fails once the loop has ended.
func (d *Daemon) tell(ctx context.Context, do func(*state)) error {
	done := make(chan struct{})
	select {
	case d.asks <- func(s *state) { do(s); close(done) }:
	case <-ctx.Done():
		return fmt.Errorf("asking the daemon: %w", ctx.Err())
	case <-d.stopped:
		return ErrStopped
	}
	<-done
	return nil
}

// beside runs something that may take long; what it returns runs in the loop.
func (d *Daemon) beside(ctx context.Context, do func() func(*state)) {
	d.worker.Go(func() {
		result := do()
		select {
		case d.asks <- result:
		case <-ctx.Done():
		}
	})
}

// begin takes up what the last daemon left.
func (d *Daemon) begin() (*state, error) {
	now := time.Now()
	s := &state{d: d, started: now, policy: d.Policy, open: d.Policy.Balance.Open(now), history: history.New(history.Options{}),
		tried: map[plan.RemedyKind]competitors.Tried{}, told: map[int]competitors.Tried{}, cut: map[string]bool{}, advised: map[string]time.Time{}, drifted: map[string]time.Time{}, repairs: map[string]competitors.Tried{}, failed: map[string][]time.Time{}}
	var err error
	if s.alarms, err = record.LoadAlarms(d.Records); err != nil {
		d.Log.Warn("alarms begin anew", "error", err)
	}
	s.alarms.Written = time.Time{} // by the daemon before
	kept, err := d.Journal.Read(record.Filter{})
	if err != nil {
		return nil, fmt.Errorf("reading the journal, without which moves cut short are not known: %w", err)
	}
	entries := kept.Entries
	s.damaged = d.damage(kept.Unreadable)
	stayed := map[string]bool{}
	for i := range entries {
		if e := &entries[i]; e.At.After(now) { // the clock was set back since
			e.At = now
		}
	}
	for _, e := range entries {
		s.remember(e)
		stayed[e.ID] = stayed[e.ID] || e.Kind == journal.MoveFailed || e.Kind == journal.MoveUndone
	}
	for _, e := range entries {
		if e.Kind == journal.MoveBegan && e.Move != nil {
			s.rest(e.Move, e.At, stayed[e.ID])
		}
	}
	s.balancing = journal.HeldFormer(entries, plan.NUMABalancingPath)
	s.note(journal.Entry{Kind: journal.Started, What: fmt.Sprintf("mode %s, a sample every %v", d.Policy.Balance.Mode, d.Every)})
	s.fade(now)
	s.dropFormer()
	s.recover(entries)
	return s, nil
}

// end gives back what the daemon changed of the host.
func (s *state) end() {
	s.settle()
	s.restore("the daemon stops")
	s.saveAlarms()
	s.note(journal.Entry{Kind: journal.Stopped, What: fmt.Sprintf("%d moves done, %d in part, %d failed since %s", s.totals.MovesDone, s.totals.MovesPart, s.totals.MovesFailed, s.started.UTC().Format(time.RFC3339))})
}

// note puts an entry into the journal. That it cannot be written is no reason
// to end: moves themselves do not begin without their entry (operate.Move).
func (s *state) note(e journal.Entry) {
	if err := s.keep(e); err != nil {
		s.d.Log.Error("the journal cannot be written", "entry", e.What, "error", err)
	}
}

// keep is note for what somebody relies on: the error is theirs.
func (s *state) keep(e journal.Entry) error {
	e.At = time.Now()
	s.d.Log.Info(string(e.Kind), "what", e.What, "why", e.Why, "guests", e.Guests)
	return s.d.Journal.Append(e)
}

// tick is one turn of the loop.
func (s *state) tick(ctx context.Context) {
	s.obey()
	s.endPause()
	s.keepWindows()
	s.watch()
	s.startLook(ctx)
	if s.looked.IsZero() {
		return
	}
	s.judge()
	if time.Since(s.answered) >= s.d.Plan {
		s.answered = time.Now()
		s.fade(s.answered)
		s.takeUp()
		s.answerRivals()
	}
	if s.moment().Sub(s.planned) >= s.d.Plan || s.patienceEnded() || s.newlyLacking() {
		s.plan()
	}
	s.change(ctx)
	s.work(ctx)
}
