package control

import (
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// jobs is the running job and the queue.
type jobs struct {
	running *runningJob
	queue   []Job
	named   int // number of moves queued, for their ids
}

// runningJob is the job in progress.
type runningJob struct {
	job       Job
	shown     status.Moving
	stopped   bool      // by a pause or the end of a window
	cancelled bool      // by an operator; pauses and windows that follow do not count
	pulled    bool      // the kernel is likely to bring the memory, by what was known when the move began
	givesWay  bool      // to others; see Controller.giveWay
	others    time.Time // since when others have needed a move more; zero: they have not
}

func (j *jobs) busy() bool { return j.running != nil || len(j.queue) > 0 }

// recovering reports whether interrupted moves are being finished, or will be next.
func (j *jobs) recovering() bool {
	if j.running != nil {
		return j.running.job.Kind == RecoverJob
	}
	return len(j.queue) > 0 && j.queue[0].Kind == RecoverJob
}

// concerns reports whether the running job is about a guest.
func (j *jobs) concerns(guest string) bool {
	r := j.running
	return r != nil && (r.job.Guest == guest || slices.Contains(r.job.Move.Names(), guest))
}

func (j *jobs) progressed(m status.Moving) {
	if j.running != nil {
		j.running.shown = m
	}
}

// dropPlanned removes the planned jobs that have not begun. Moves that an operator
// accepted and recoveries stay.
func (j *jobs) dropPlanned() {
	j.queue = slices.DeleteFunc(j.queue, func(j Job) bool { return j.Kind != RecoverJob && j.By != Operator })
}

// queueMove queues a move under a new id, made of the daemon's start time and a
// number.
func (c *Controller) queueMove(m plan.Move, by Initiator) {
	c.jobs.named++
	id := fmt.Sprintf("m%s-%d", c.turn.started.UTC().Format("20060102T150405"), c.jobs.named)
	c.jobs.queue = append(c.jobs.queue, Job{ID: id, Kind: MoveJob, Move: m, By: by})
}

// startJob starts the next job if none runs. A job that found kernel balancing on while it is being restored would wait
// for memory that the kernel does not bring.
func (c *Controller) startJob() {
	if c.jobs.running != nil || len(c.jobs.queue) == 0 || c.closely.awaited() || c.competition.restores() {
		return
	}
	next := 0
	if c.held() != "" { // recoveries wait, planned moves are dropped, and moves of an operator start
		c.jobs.dropPlanned()
		next = slices.IndexFunc(c.jobs.queue, func(j Job) bool { return j.Kind != RecoverJob })
		if next < 0 {
			return
		}
	}
	j := c.jobs.queue[next]
	j.Policy = c.rules.policy
	pulled := false
	if h, known := c.Inventory(c.turn.now); known && j.Kind == MoveJob {
		j.Idle, j.Drifts = c.unexposed(&h), c.drifts()
		if j.Known = c.known(); j.Known != nil {
			c.withClosely(j.Known)
		}
		j.CopyRate = h.MoverBytesPerSecond
		j.Served = c.competition.served
		j.Held = c.handOver(j)
		pulled = c.canPull(&h, j.Move)
	}
	c.jobs.queue = slices.Delete(c.jobs.queue, next, next+1)
	c.jobs.running = &runningJob{
		job:    j,
		pulled: pulled,
		shown:  status.Moving{ID: j.ID, Began: c.turn.now, Move: j.Move, Step: "begins"},
	}
	c.turn.ready.StartJob = &j
	c.closely.forget()
}

// stopJob stops the running job, to be resumed later.
func (c *Controller) stopJob(cause StopCause) {
	if r := c.jobs.running; r != nil && !r.stopped {
		r.stopped = true
		c.turn.ready.StopJob = cause
	}
}

// cancel rolls back a running move, which then counts as the operator's, or
// removes a move from the queue.
func (c *Controller) cancel(e Cancel) {
	r := c.jobs.running
	if r != nil && (r.job.ID == e.Job || r.job.Kind == RecoverJob && r.shown.ID == e.Job) {
		r.cancelled = true
		c.turn.ready.StopJob = StopCancelled
		c.reply(e.Order, nil)
		return
	}
	at := slices.IndexFunc(c.jobs.queue, func(j Job) bool { return j.ID == e.Job })
	if at < 0 {
		c.refuse(e.Order, ErrUnknown, "no move %q is running or queued", e.Job)
		return
	}
	c.jobs.queue = slices.Delete(c.jobs.queue, at, at+1)
	c.reply(e.Order, nil)
}

// jobEnded handles the result of a job.
func (c *Controller) jobEnded(e JobEnded) {
	if c.jobs.running == nil {
		return
	}
	j := c.jobs.running.job
	c.jobs.running = nil
	c.closely.forget()
	c.takeBack(j, e)
	c.host.overtake()
	if c.turn.ready.SampleIn = atOnce; c.stale(j, e) {
		return
	}
	c.loads.moved, c.when.early = true, time.Time{}
	for i := range e.Moved {
		c.count(&e.Moved[i])
		c.recovery.moved(&e.Moved[i])
	}
	c.learnFrom(e)
	for i := range e.Moved {
		c.serveAfterPause(&e.Moved[i])
	}
	if e.Err != nil || j.Kind == RecoverJob && len(c.recovery.cut) > 0 { // another process may hold some
		c.recovery.failed = c.turn.now
	}
	if c.othersBegan() || c.allRelieved() {
		c.jobs.dropPlanned() // the next plan decides about all together, by their present loads
	}
	if e.Err == nil && !c.turn.stopping {
		defer c.startJob() // the next one does not wait for a sample
	}
	switch {
	case j.Kind == RepairJob:
		c.repaired(j, e)
	case j.Kind == RestJob:
		c.restEnded(j, e)
	case e.Stopped:
		c.log(Info, "a move was interrupted", "id", j.ID, "why", e.Err)
	case e.Err != nil:
		c.log(Warn, "a move failed", "id", j.ID, "error", e.Err)
		if len(e.Moved) == 0 && j.Kind == MoveJob {
			c.notBegun(j, e.Err)
		}
	}
}

// staleTries is how many moves in a row may be stale before their guests are in cooldown.
const staleTries = 3

// stale handles a move that was refused because the host has changed since the plan: nothing was tried and nothing
// failed, so the daemon observes the host and plans again at once. It reports whether it does.
func (c *Controller) stale(j Job, e JobEnded) bool {
	if !e.Stale || j.By != Balancer || c.when.stale >= staleTries {
		c.when.stale = 0
		return false
	}
	c.when.stale++
	c.when.again = true
	c.jobs.dropPlanned()
	c.log(Info, "the host has changed since the plan; the daemon plans again", "id", j.ID, "why", e.Err)
	return true
}

// notBegun records a move that was refused before it began, because the host no
// longer matches the plan. Its guests are in cooldown as after a move, so that the
// daemon does not retry it continuously.
func (c *Controller) notBegun(j Job, err error) {
	e := journal.Entry{
		Kind: journal.MoveFailed, ID: j.ID, Guests: j.Move.Names(), What: "not begun: " + j.Move.String(),
		Why: err.Error(), By: string(j.By),
	}
	c.note(e)
	e.At = c.turn.now
	c.loads.remember(e)
	c.cooldown.remember(e)
	c.totals.MovesFailed++
	c.cooldown.begin(&j.Move, e.At, true)
	c.jobs.dropPlanned() // they were planned to follow it
}

// count adds a move to the totals. A move that was stopped, or one of whose steps
// failed, is counted when it ends.
func (c *Controller) count(m *Moved) {
	t := &c.totals
	t.MovedBytes += m.Bytes
	t.PulledBytes += m.Pulled
	if m.Held != nil {
		o := &c.competition
		o.balancing, o.set, o.pausedAt = m.Held.Former, m.Held.Value, time.Time{}
		switch {
		case m.GaveWay:
			o.leftOn = c.turn.now
		case m.Pauses:
			o.pausedAt = c.turn.now
		}
	}
	if m.Pulled > 0 {
		c.competition.stirred = c.turn.now
	}
	c.rest.add(m, c.turn.now)
	e := journal.Entry{
		Kind: m.End, At: c.turn.now, Guests: m.Move.Names(), Moved: m.Bytes, Copied: m.Copied, Cancelled: m.Cancelled,
	}
	switch {
	case !e.Ends():
		c.jobs.dropPlanned()
		return
	case e.Kind == journal.MoveDone:
		t.MovesDone++
	case e.Kind == journal.MovePartial:
		t.MovesPart++
	case e.Fails():
		t.MovesFailed++
	default:
		t.MovesCancelled++
	}
	stayed := staysPut(e.Kind)
	if stayed {
		c.jobs.dropPlanned() // they were planned to follow it
	}
	c.loads.remember(e)
	c.cooldown.remember(e)
	if !m.GaveWay {
		move := m.withoutLoad(c.rules.policy.Balance.WithDefaults().MinCPUDemand)
		c.cooldown.begin(&move, c.turn.now, stayed)
	}
}

// withoutLoad returns the move as if it had been planned for the load that its idle guests have now, in CPUs: when they
// work again, they have no cooldown.
func (m *Moved) withoutLoad(idle float64) plan.Move {
	move := m.Move
	move.Guests = slices.Clone(move.Guests)
	for i := range move.Guests {
		if g := &move.Guests[i]; slices.Contains(m.Idle, g.Guest) {
			g.Demand = idle
		}
	}
	return move
}

// staysPut reports whether a move that ended this way left its guests where they were.
func staysPut(end journal.Kind) bool { return end == journal.MoveFailed || end == journal.MoveUndone }

// total returns how much a move copies at most.
func total(m plan.Move) topology.Bytes {
	var sum topology.Bytes
	for _, g := range m.Guests {
		sum += g.Bytes
	}
	return sum
}
