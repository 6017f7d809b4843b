package control

import (
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// Options configure a controller. All must be set but Policy, whose zero value
// means its defaults.
type Options struct {
	Policy policy.Policy
	// Sample is the time between samples, Observe between observations, Plan
	// between plans, SaveAlarms after which alarms are saved even if unchanged.
	Sample, Observe, Plan, SaveAlarms time.Duration
}

// Controller decides for one host. It is not safe for concurrent use.
type Controller struct {
	options     Options
	turn        turn
	rules       rules
	host        host
	closely     closely
	loads       loads
	when        when
	jobs        jobs
	recovery    recovery
	pause       pause
	advice      advice
	competition competition
	cooldown    cooldown
	rest        rest
	alarms      alarms
	totals      status.Totals
}

// turn is the event in progress.
type turn struct {
	now     time.Time
	ready   Ready     // what the event leads to, so far
	started time.Time // when Start came
	// awaited are orders whose entry is being appended, by the kind of the entry.
	awaited  map[OrderID]journal.Kind
	stopping bool
}

// New returns the controller of a host. Its first event must be Start.
func New(o Options) *Controller {
	c := &Controller{options: o}
	c.turn.awaited = map[OrderID]journal.Kind{}
	c.rules.policy = o.Policy.WithDefaults()
	c.loads = newLoads()
	c.recovery.cut = map[string]bool{}
	c.advice.noted = map[string]time.Time{}
	c.competition = newCompetition()
	c.cooldown.failed = map[string][]time.Time{}
	c.rest.left = map[string]bool{}
	return c
}

// Step handles one event and returns what the caller must do. Times never
// decrease, unless the clock is set back.
func (c *Controller) Step(now time.Time, e Event) Ready {
	c.turn.now, c.turn.ready = now, Ready{}
	switch e := e.(type) {
	case Start:
		c.start(e)
	case Tick:
		c.tick()
	case Sampled:
		c.sampled(e)
	case RosterChanged:
		c.host.wanted = true
	case Observed:
		c.observed(e)
	case CloselyRead:
		c.closelyRead(e)
	case JobProgressed:
		c.jobs.progressed(e.Moving)
	case JobEnded:
		c.jobEnded(e)
	case SettingChanged:
		c.settingChanged(e)
	case JournalRead:
		c.journalRead(e)
	case Appended:
		c.appended(e)
	case Pause:
		c.pauseMoves(e)
	case Resume:
		c.resumeMoves(e.Order)
	case Accept:
		c.accept(e)
	case Cancel:
		c.cancel(e)
	case SetPolicy:
		c.setPolicy(e)
	case Stop:
		c.stop()
	default:
		panic(fmt.Sprintf("control: unknown event %T", e))
	}
	return c.turn.ready
}

// start resumes from the journal and alarms of the last daemon.
func (c *Controller) start(e Start) {
	now := c.turn.now
	c.turn.started = now
	c.pause.open = c.rules.policy.Balance.Open(now)
	c.host.damaged, c.alarms.state, c.loads.trial = e.Damaged, e.Alarms, e.CopyRate
	c.remember(e.Entries)
	what := fmt.Sprintf("mode %s, a sample every %v", c.rules.policy.Balance.Mode, c.options.Sample)
	c.note(journal.Entry{Kind: journal.Started, What: what})
	c.prune()
	c.restoreLeft(e.NUMABalancing)
	c.recover(e.Entries)
}

// remember reads from the journal the state that later decisions depend on.
// Entries with a time in the future were written before the clock was set back:
// they count as of now, and what ends later ends as long after that.
func (c *Controller) remember(entries []journal.Entry) {
	entries = slices.Clone(entries)
	stayed := map[string]bool{}
	for i, e := range entries {
		if ahead := e.At.Sub(c.turn.now); ahead > 0 {
			e.At = c.turn.now
			if !e.Until.IsZero() {
				e.Until = e.Until.Add(-ahead)
			}
			entries[i] = e
		}
		c.loads.remember(e)
		c.cooldown.remember(e)
		c.advice.remember(e)
		c.competition.remember(e)
		c.pause.remember(e)
		stayed[e.ID] = stayed[e.ID] || staysPut(e.Kind)
	}
	for _, e := range entries {
		if e.Kind == journal.MoveBegan && e.Move != nil {
			c.cooldown.begin(e.Move, e.At, stayed[e.ID])
		}
	}
	c.competition.rememberSettings(entries)
}

// tick begins a turn: it applies a new policy, and begins and ends pauses and
// maintenance windows.
func (c *Controller) tick() {
	if c.when.ticked.IsZero() {
		c.when.ticked = c.turn.now
	}
	c.applyPolicy()
	c.endPause()
	c.checkWindows()
}

// sampled is the middle of a turn. Most decisions are made here.
func (c *Controller) sampled(e Sampled) {
	c.totals.Samples++
	c.host.absorb(e.Sample)
	c.loads.add(e.Sample, c.turn.now)
	if c.loads.moved {
		c.loads.moved, c.loads.settled = false, c.turn.now
	}
	if c.host.knowledge != unknown {
		c.decide()
	}
	c.observe()
}

// decide makes the decisions that a sample allows.
func (c *Controller) decide() {
	c.judge()
	c.watchAhead()
	c.giveWay()
	if c.turn.now.Sub(c.when.answered) < c.options.Plan {
		c.act()
		return
	}
	c.when.answered = c.turn.now
	c.prune()
	if c.retryRecovery() { // decisions wait for the contents of the journal
		c.when.interrupted = true
		return
	}
	c.answerCompetitors()
	c.act()
}

// act ends a turn: it plans if a plan is due, and starts the next change and job.
func (c *Controller) act() {
	if c.planDue() {
		c.plan()
	}
	c.finishRest()
	c.pullAhead()
	c.startJob() // it may take over kernel balancing, which is not restored then
	c.changeSetting()
	c.readClosely()
	c.turn.ready.SampleIn = c.soon()
}

// journalRead resumes the decisions that waited for the journal.
func (c *Controller) journalRead(e JournalRead) {
	if e.Err != nil {
		c.log(Error, "the journal cannot be read", "error", e.Err)
	} else {
		c.recover(e.Entries)
	}
	if c.when.interrupted {
		c.when.interrupted = false
		c.answerCompetitors()
		c.act()
	}
}

// State is the state of a controller; see the package comment.
type State string

// States, in the order in which they are checked.
const (
	Stopping     State = "stopping"
	Unobserved   State = "unobserved"
	Recovering   State = "recovering"
	Moving       State = "moving"
	Outdated     State = "outdated"
	Unobservable State = "unobservable"
	Off          State = "off"
	Held         State = "held"
	Idle         State = "ready"
)

// State returns the state at the time of the last event.
func (c *Controller) State() State {
	switch {
	case c.turn.stopping:
		return Stopping
	case c.host.knowledge == unknown:
		return Unobserved
	case c.jobs.recovering():
		return Recovering
	case c.jobs.busy():
		return Moving
	case c.host.knowledge == outdated:
		return Outdated
	case c.host.failure != "":
		return Unobservable
	case c.rules.policy.Balance.Mode == policy.ModeOff:
		return Off
	case c.held() != "":
		return Held
	}
	return Idle
}

// note appends an entry to the journal. If that fails the daemon continues; a move
// still does not begin without its own entry.
func (c *Controller) note(e journal.Entry) { c.noteFor(0, e) }

// noteFor is note for an order, which is answered when the entry is appended.
func (c *Controller) noteFor(order OrderID, e journal.Entry) {
	e.At = c.turn.now
	if order != 0 {
		c.turn.awaited[order] = e.Kind
	}
	c.turn.ready.Entries = append(c.turn.ready.Entries, Append{e, order})
}

// appended answers the order whose entry was appended, or could not be.
func (c *Controller) appended(e Appended) {
	kind, ok := c.turn.awaited[e.Order]
	delete(c.turn.awaited, e.Order)
	switch {
	case !ok:
	case e.Err == nil, kind == journal.Accepted: // the move itself does not begin without its own entry
		c.reply(e.Order, nil)
	case kind == journal.Paused:
		const text = "paused, but %w: free disk space or make the journal writable, then pause again: %w"
		c.reply(e.Order, fmt.Errorf(text, ErrNotPersistent, e.Err))
	default:
		const text = "resumed, but %w: free disk space or make the journal writable, then pause and resume again: %w"
		c.reply(e.Order, fmt.Errorf(text, ErrNotPersistent, e.Err))
	}
}

func (c *Controller) reply(order OrderID, err error) {
	c.turn.ready.Replies = append(c.turn.ready.Replies, Reply{order, err})
}

// refuse answers an order that is not carried out, with one of the reasons.
func (c *Controller) refuse(order OrderID, reason error, format string, args ...any) {
	c.reply(order, &refusal{reason, fmt.Sprintf(format, args...)})
}

func (c *Controller) log(level Level, what string, about ...any) {
	c.turn.ready.Facts = append(c.turn.ready.Facts, Fact{level, what, about})
}

// stop waits for a setting that is being changed, and then restores kernel
// balancing.
func (c *Controller) stop() {
	c.turn.stopping = true
	c.competition.wanted = nil
	if r := c.competition.changing; r != nil {
		c.log(Info, "waiting for a change of a setting", "change", r.Kind, "guest", r.Guest)
		return
	}
	c.finish()
}

// stopWhy is the reason for restoring a setting at the end.
const stopWhy = "the daemon stops"

// finish restores kernel balancing, then ends.
func (c *Controller) finish() {
	if c.restore(stopWhy) {
		return
	}
	c.end()
}

func (c *Controller) end() {
	c.saveAlarms(nil)
	t := c.totals
	c.note(journal.Entry{Kind: journal.Stopped, What: fmt.Sprintf("%d moves done, %d in part, %d failed since %s",
		t.MovesDone, t.MovesPart, t.MovesFailed, c.turn.started.UTC().Format(time.RFC3339))})
	c.turn.ready.Stopped = true
}
