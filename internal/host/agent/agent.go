package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	"github.com/numavisor/numavisor/internal/decide/reconcile"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// Options are the parameters of an agent. Fields without a comment must be set.
type Options struct {
	Member *Member
	Folder string // of the membership and of the agent's state
	// Host is what the agent acts on.
	Host     *operate.Host
	Machines operate.Machines
	// Migrations are the host's part in live migrations; nil: it takes no part in them.
	Migrations Migrations
	// Loads returns the host as the daemon last observed it, with loads.
	Loads func(context.Context) (inventory.Host, error)
	// Alarms returns the alarms that last; nil: none are reported.
	Alarms func(context.Context) ([]alarm.Alarm, error)
	// Boot changes when the host boots; empty: not known.
	Boot string
	// Roster identifies the running guests at little cost: when it changes, the agent observes
	// the host at once. Nil: only every Look.
	Roster  func() string
	Program string // the daemon's version
	Log     *slog.Logger

	// Times between two checks; 0: the protocol's, and 30 s between observations.
	LoadsEvery, HeartbeatEvery, Look time.Duration
	// Grace is how long a VM has to power off when it is stopped; 0: 30 s.
	Grace time.Duration
	// RepeatEvery is in what time each status of a VM is sent again although it has not changed; 0: 10 min.
	RepeatEvery time.Duration
	// LeastWait and MostWait limit the time until the agent connects again; 0: 1 s and 30 s.
	LeastWait, MostWait time.Duration
}

// Agent is one host's part in a fleet.
type Agent struct {
	Options
	identity identity
	events   chan func(*loop) // from workers and streams
	stopped  chan struct{}
	workers  sync.WaitGroup
	slots    chan struct{} // limits actions at the same time
	outbox   outbox

	mu     sync.Mutex
	status status.Fleet
	vms    map[string]bool // of the fleet, as far as this host knows
}

// actionsAtOnce limits how many VMs are created, started, stopped or bound at the same time.
const actionsAtOnce = 4

// New makes an agent; Run runs it, once.
func New(o Options) *Agent {
	o.LoadsEvery = cmp.Or(o.LoadsEvery, agentapi.LoadsEvery)
	o.HeartbeatEvery = cmp.Or(o.HeartbeatEvery, agentapi.HeartbeatEvery)
	o.Look = cmp.Or(o.Look, 30*time.Second)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.RepeatEvery = cmp.Or(o.RepeatEvery, 10*time.Minute)
	o.LeastWait, o.MostWait = cmp.Or(o.LeastWait, time.Second), cmp.Or(o.MostWait, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	host := *o.Host
	host.By = "fleet"
	o.Host = &host
	a := &Agent{Options: o, events: make(chan func(*loop)), stopped: make(chan struct{}),
		slots: make(chan struct{}, actionsAtOnce), outbox: newOutbox()}
	a.identity.member = *o.Member
	a.status = status.Fleet{Server: o.Member.Server, Host: o.Member.Host}
	if state, err := loadState(a.Folder); err == nil { // Run loads it again, and logs the error
		a.noteVMs(state, nil)
	}
	return a
}

// Status returns the state of the membership.
func (a *Agent) Status() status.Fleet {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// Has reports whether a VM of this host is the fleet's.
func (a *Agent) Has(vm string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.vms[vm]
}

// noteVMs records which VMs are the fleet's; desired is nil until the server has sent it.
func (a *Agent) noteVMs(state reconcile.State, desired *fleet.Desired) {
	vms := map[string]bool{}
	for name := range state.Known {
		vms[name] = true
	}
	if desired != nil {
		for i := range desired.VMs {
			vms[desired.VMs[i].Name] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms = vms
}

// connected records whether the server is reachable; why is nil if it is.
func (a *Agent) connected(why error, server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.status.Connected
	a.status.Connected, a.status.Why = why == nil, ""
	if why == nil {
		a.status.Server = server
	}
	if why != nil {
		a.status.Why = why.Error()
	}
	if was != a.status.Connected || a.status.Since.IsZero() {
		a.status.Since = time.Now().UTC()
		if why == nil {
			a.Log.Info("connected to the fleet", "server", server, "as", a.Member.Host)
		} else {
			a.Log.Warn("not connected to the fleet", "server", server, "error", why)
		}
	}
}

// Run takes part in the fleet until ctx ends. An unreachable server is no error.
func (a *Agent) Run(ctx context.Context) error {
	state, err := loadState(a.Folder)
	if err != nil {
		a.Log.Warn("starting without the agent's state", "error", err)
	}
	if a.outbox.sequence, err = beginSequence(a.Folder, time.Now()); err != nil {
		a.Log.Warn("the reports of VMs may be numbered twice", "error", err)
	}
	c, err := dial(&a.identity)
	if err != nil {
		close(a.stopped)
		return fmt.Errorf("the fleet: %w", err)
	}
	defer c.quit()
	ctx, stop := context.WithCancel(ctx)
	defer a.workers.Wait()
	defer close(a.stopped)
	defer stop()
	l := &loop{Agent: a, ctx: ctx, state: state, running: map[string]bool{}, stale: map[string]bool{},
		reported: map[string]fleet.VMStatus{}, followers: map[string]*follower{},
		transfers: map[string]guest.Transfer{}, timer: time.NewTimer(0)}
	defer l.timer.Stop()
	a.workers.Go(func() { a.stayConnected(ctx, c) })
	a.workers.Go(func() { a.sendAll(ctx, c) })
	a.workers.Go(func() { a.repeatStatuses(ctx) })
	a.workers.Go(func() { a.sendLoads(ctx, c) })
	a.workers.Go(func() { a.stayCertified(ctx, c) })
	roster := time.NewTicker(min(time.Second, a.Look))
	defer roster.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-a.events:
			event(l)
		case <-l.timer.C:
			l.observe() //nolint:contextcheck // the loop has the context of Run
		case <-roster.C:
			l.checkRoster() //nolint:contextcheck // as above
		}
	}
}

// tell sends an event to the loop, unless that has ended.
func (a *Agent) tell(event func(*loop)) {
	select {
	case a.events <- event:
	case <-a.stopped:
	}
}

// stayConnected follows the desired states, and connects again after an error.
func (a *Agent) stayConnected(ctx context.Context, c *connection) {
	wait := a.LeastWait
	for ctx.Err() == nil {
		//nolint:contextcheck // the loop has the context of Run
		err := c.follow(ctx, 3*a.HeartbeatEvery, func(d fleet.Desired, first bool) {
			if first {
				wait = a.LeastWait
				a.connected(nil, c.server())
				a.outbox.repeat()
			}
			if err := a.identity.note(d.Servers, a.Folder); err != nil {
				a.Log.Warn("the fleet's servers are not stored", "error", err)
			}
			a.tell(func(l *loop) { l.desire(d, first) })
		})
		if ctx.Err() != nil {
			return
		}
		a.connected(err, c.server())
		c.quit()
		member := a.identity.get()
		c.next(member.servers())
		// Jitter: after a server's restart not all hosts connect in the same second.
		sleep(ctx, wait/2+rand.N(wait)) //nolint:gosec // no secret
		wait = min(2*wait, a.MostWait)
	}
}

// stayCertified renews the host's certificate long before it expires.
func (a *Agent) stayCertified(ctx context.Context, c *connection) {
	for ctx.Err() == nil {
		m := a.identity.get()
		wait := time.Hour // also if the clock jumps
		if pair, err := m.pair(); err == nil && !time.Now().Before(renewal(pair.Leaf)) {
			wait = time.Minute
			if err := c.renew(ctx, &a.identity, a.Folder); err != nil {
				a.Log.Warn("the host's certificate is not renewed yet", "expires", pair.Leaf.NotAfter, "error", err)
			} else {
				a.Log.Info("renewed the host's certificate")
				c.quit()
			}
		}
		sleep(ctx, wait)
	}
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// sendLoads sends the loads every few seconds: all of them in a new connection, else what changed.
func (a *Agent) sendLoads(ctx context.Context, c *connection) {
	tick := time.NewTicker(a.LoadsEvery)
	defer tick.Stop()
	var sent fleet.Loads
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h, err := a.Loads(ctx)
		if err != nil { // the daemon has not observed the host yet; the server should still hear from it
			h = inventory.Host{Taken: time.Now()}
		}
		var alarms []alarm.Alarm
		if a.Alarms != nil {
			alarms, _ = a.Alarms(ctx)
		}
		now := loadsOf(&h, alarms)
		now.Number = sent.Number + 1
		message := now
		if sent.Number > 0 {
			message = changes(sent, now)
		}
		var answer agentapi.LoadsAnswer
		err = c.send(ctx, "POST", "/agent/v1/loads", message, &answer)
		if sent = now; err != nil || answer.Full {
			sent = fleet.Loads{}
		}
	}
}

// loop is the state that the loop's goroutine owns.
type loop struct {
	*Agent
	ctx      context.Context // ends with Run
	desired  *fleet.Desired  // nil: none received since the start
	state    reconcile.State
	stored   reconcile.State
	running  map[string]bool // VMs with an action
	stale    map[string]bool // VMs whose action ended after the last observation began
	reported map[string]fleet.VMStatus
	// followers carry out migrations, by VM; transfers are the figures of VMs that have come.
	followers map[string]*follower
	transfers map[string]guest.Transfer
	looking   bool // an observation runs
	again     bool // and another one is needed
	roster    string
	timer     *time.Timer
}

// desire takes a desired state over.
func (l *loop) desire(d fleet.Desired, first bool) {
	if l.desired != nil && !reconcile.Newer(*l.desired, d, first) {
		return
	}
	if l.desired != nil && !first && l.desired.Revision == d.Revision {
		return // a heartbeat
	}
	l.desired = &d
	l.noteVMs(l.state, l.desired)
	l.observe()
}

func (l *loop) checkRoster() {
	if l.Roster == nil {
		return
	}
	if now := l.Roster(); now != l.roster {
		l.roster = now
		l.observe()
	}
}

// observe reads the host. Each decision follows an observation that began after its cause.
func (l *loop) observe() {
	if l.looking {
		l.again = true
		return
	}
	l.looking, l.again = true, false
	l.timer.Reset(l.Look)
	ended := maps.Clone(l.stale)
	l.workers.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, operate.ObserveTime)
		defer cancel()
		h, err := l.Host.Observe(ctx)
		l.tell(func(l *loop) { l.observed(h, ended, err) })
	})
}

// observed decides on an observation.
func (l *loop) observed(h inventory.Host, ended map[string]bool, err error) {
	l.looking = false
	if err != nil {
		l.Log.Warn("the host cannot be observed", "error", err)
		return
	}
	for name := range ended {
		delete(l.stale, name)
	}
	l.outbox.report(fleet.Report{Taken: h.Taken.UTC(), Program: l.Program, Protocol: agentapi.Protocol,
		Inventory: reported(h)})
	if l.desired != nil {
		l.decide(&h)
	}
	if l.again {
		l.observe()
	}
}

// decide compares the desired state with the host, and begins what is to be done.
func (l *loop) decide(h *inventory.Host) {
	busy := maps.Clone(l.running)
	maps.Copy(busy, l.stale)
	if !l.followMigrations(busy) {
		l.timer.Reset(min(l.Look, 5*time.Second))
		return
	}
	d := reconcile.Decide(reconcile.Request{Now: time.Now(), Self: l.Member.Host, Host: h, Boot: l.Boot,
		Desired: *l.desired, Busy: busy, State: l.state, Reported: l.reported})
	l.state = d.State
	l.noteVMs(l.state, l.desired)
	if err := l.store(); err != nil {
		l.Log.Error("nothing is done for the fleet, as the agent's state cannot be stored", "error", err)
		l.timer.Reset(min(l.Look, 5*time.Second))
		return
	}
	reported := map[string]fleet.VMStatus{}
	for _, s := range l.withParts(d.Statuses) {
		reported[s.Name] = s
		l.outbox.status(s)
	}
	l.outbox.retain(reported)
	l.reported = reported
	for _, act := range d.Actions {
		l.begin(act)
	}
	if !d.Next.IsZero() {
		l.timer.Reset(max(0, min(l.Look, time.Until(d.Next))))
	}
}

// begin carries an action out in a goroutine of its own.
func (l *loop) begin(act reconcile.Action) {
	name := act.VM.Name
	l.running[name] = true
	l.workers.Go(func() {
		var err error
		select {
		case l.slots <- struct{}{}:
			l.Log.Info(string(act.Kind), "vm", name, "generation", act.VM.Generation)
			err = l.carryOut(l.ctx, act)
			<-l.slots
		case <-l.ctx.Done():
			err = l.ctx.Err()
		}
		l.tell(func(l *loop) { l.ended(act, err) })
	})
}

// ended records the end of an action.
func (l *loop) ended(act reconcile.Action, err error) {
	name := act.VM.Name
	delete(l.running, name)
	l.stale[name] = true
	if err != nil && !errors.Is(err, context.Canceled) {
		l.Log.Error(string(act.Kind)+" failed", "vm", name, "error", err)
	}
	l.state = l.state.Ended(act, time.Now(), err)
	if err := l.store(); err != nil {
		l.Log.Error("the agent's state cannot be stored", "error", err)
	}
	l.observe()
}
