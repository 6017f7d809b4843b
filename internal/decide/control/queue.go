package control

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// jobs are the running one and those that wait.
type jobs struct {
	running *runningJob
	queue   []Job
	named   int // moves that have got a name
}

// runningJob is the job in progress.
type runningJob struct {
	job       Job
	shown     status.Moving
	stopped   bool // for a pause or a window
	cancelled bool // by an operator, to whom it belongs from then on
}

func (j *jobs) busy() bool { return j.running != nil || len(j.queue) > 0 }

// recovering reports whether moves cut short are being finished, or will be next.
func (j *jobs) recovering() bool {
	if j.running != nil {
		return j.running.job.Kind == RecoverJob
	}
	return len(j.queue) > 0 && j.queue[0].Kind == RecoverJob
}

// concerns reports whether the running job is about a guest.
func (j *jobs) concerns(guest string) bool {
	r := j.running
	return r != nil && (r.job.Kind == RepairJob && r.job.Guest == guest || slices.Contains(r.job.Move.Names(), guest))
}

func (j *jobs) progressed(m status.Moving) {
	if j.running != nil {
		j.running.shown = m
	}
}

// dropPlanned forgets the planned jobs that have not begun. Moves that an
// operator accepted stay, and so do recoveries.
func (j *jobs) dropPlanned() {
	j.queue = slices.DeleteFunc(j.queue, func(j Job) bool { return j.Kind != RecoverJob && j.By != Operator })
}

// queueMove queues a move under a new name: of the daemon's start, and a number.
func (c *Controller) queueMove(m plan.Move, by Initiator) {
	c.jobs.named++
	id := fmt.Sprintf("m%s-%d", c.turn.started.UTC().Format("20060102T150405"), c.jobs.named)
	c.jobs.queue = append(c.jobs.queue, Job{ID: id, Kind: MoveJob, Move: m, By: by})
}

// startJob starts the next job if none runs.
func (c *Controller) startJob() {
	if c.jobs.running != nil || len(c.jobs.queue) == 0 {
		return
	}
	next := 0
	if c.held() != "" { // recoveries wait, moves are planned again; those of an operator start
		c.jobs.dropPlanned()
		next = slices.IndexFunc(c.jobs.queue, func(j Job) bool { return j.Kind != RecoverJob })
		if next < 0 {
			return
		}
	}
	j := c.jobs.queue[next]
	j.Policy = c.rules.policy
	c.jobs.queue = slices.Delete(c.jobs.queue, next, next+1)
	c.jobs.running = &runningJob{
		job:   j,
		shown: status.Moving{ID: j.ID, Began: c.turn.now, Move: j.Move, Step: "begins"},
	}
	c.turn.ready.StartJob = &j
}

// stopJob stops the running job, to be resumed later.
func (c *Controller) stopJob(cause StopCause) {
	if r := c.jobs.running; r != nil && !r.stopped {
		r.stopped = true
		c.turn.ready.StopJob = cause
	}
}

// cancel rolls back a running move, which belongs to the operator from then on,
// or drops one that waits.
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
		c.refuse(e.Order, ErrUnknown, "no move %q is on its way", e.Job)
		return
	}
	c.jobs.queue = slices.Delete(c.jobs.queue, at, at+1)
	c.reply(e.Order, nil)
}

// jobEnded takes over the result of a job.
func (c *Controller) jobEnded(e JobEnded) {
	if c.jobs.running == nil {
		return
	}
	j := c.jobs.running.job
	c.jobs.running = nil
	c.host.overtake()
	for i := range e.Moved {
		c.count(&e.Moved[i])
		c.recovery.moved(&e.Moved[i])
	}
	if e.Err != nil || j.Kind == RecoverJob && len(c.recovery.cut) > 0 { // another process may hold some
		c.recovery.failed = c.turn.now
	}
	switch {
	case j.Kind == RepairJob:
		c.repaired(j, e)
	case e.Stopped:
		c.log(Info, "a move was stopped on its way", "id", j.ID, "why", e.Err)
	case e.Err != nil:
		c.log(Warn, "a move did not go through", "id", j.ID, "error", e.Err)
		if len(e.Moved) == 0 && j.Kind == MoveJob {
			c.notBegun(j, e.Err)
		}
	}
}

// notBegun notes a move that was refused before it began: the host is not as it
// was planned on. Its guests rest as after a move, so that it is not tried all the time.
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
	c.cooldown.rest(&j.Move, e.At, true)
	c.jobs.dropPlanned() // they were to follow it
}

// count adds a move to the totals. One that was stopped, or of which a step
// failed, comes again.
func (c *Controller) count(m *Moved) {
	t := &c.totals
	t.MovedBytes += m.Bytes
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
		c.jobs.dropPlanned() // they were to follow it
	}
	c.loads.remember(e)
	c.cooldown.remember(e)
	c.cooldown.rest(&m.Move, c.turn.now, stayed)
}

// staysPut reports whether a move that ended so has left its guests where they were.
func staysPut(end journal.Kind) bool { return end == journal.MoveFailed || end == journal.MoveUndone }

// total is how much a move copies at most.
func total(m plan.Move) topology.Bytes {
	var sum topology.Bytes
	for _, g := range m.Guests {
		sum += g.Bytes
	}
	return sum
}
