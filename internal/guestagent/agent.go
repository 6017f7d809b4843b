package guestagent

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// epochFile holds the last epoch, for the next start of the agent. It is gone when
// the guest boots, as are the changes that the agent made.
const epochFile = "/run/numavisor-guest/epoch"

// agent carries out grants and makes reports. It has no clock and no channel of its
// own: Run feeds it.
type agent struct {
	k       kernel
	parker  *parker
	meter   meter
	boot    string
	seq     uint64
	epoch   uint64
	granted guest.VCPUs // of that epoch; empty: no grant since the agent's start
	// restless are parked vCPUs that run.
	restless guest.VCPUs
	last     demand
	irqs     time.Time // when the interrupts were last read
	// limited is since when parked vCPUs are no partitions.
	limited map[int]time.Time
	// untidy says that interrupts and workqueues do not follow the vCPUs in use yet: see tidy.
	untidy bool
	log    func(format string, args ...any)
}

func newAgent(k kernel, wait func(time.Duration), log func(format string, args ...any)) (*agent, error) {
	id, err := k.read("/proc/sys/kernel/random/boot_id")
	if err != nil || len(id) < 8 {
		return nil, fmt.Errorf("reading the guest's boot_id: %w", errors.Join(err, errors.New("/proc is incomplete")))
	}
	a := &agent{k: k, parker: newParker(k, wait), meter: meter{k: k, occupied: -1}, boot: id[:8], log: log,
		limited: map[int]time.Time{}}
	if text, err := k.read(epochFile); err == nil {
		a.epoch, _ = strconv.ParseUint(text, 10, 53)
	}
	k.goHome()
	return a, nil
}

// grant carries out a grant unless a later one has been. Whether all of it could be
// done shows in the next report.
func (a *agent) grant(g guest.Grant) {
	if g.Epoch < a.epoch {
		return
	}
	if g.Epoch > a.epoch {
		a.epoch = g.Epoch
		a.save()
	}
	a.granted = g.VCPUs
	a.enforce()
}

func (a *agent) save() {
	if err := a.k.write(epochFile, strconv.FormatUint(a.epoch, 10)); err != nil {
		a.log("the epoch is not stored: after its restart the agent could repeat an old grant: %v", err)
	}
}

// enforce makes the guest use exactly the granted vCPUs. It does nothing if that is
// so.
func (a *agent) enforce() {
	if a.granted == (guest.VCPUs{}) {
		return
	}
	present, before, err := a.parker.state()
	if err != nil {
		a.log("the state of the vCPUs is unknown: %v", err)
		return
	}
	used := present.And(a.granted)
	if before == present.Without(used) {
		if a.restless != (guest.VCPUs{}) {
			a.restless = a.parker.settle(a.restless, used, 1) // the host repeats its grant until they are idle
		}
		return
	}
	means, apart := a.parker.means, a.parker.apart
	if err := a.parker.park(present, before, present.Without(used)); err != nil {
		a.log("vCPUs %v: %v", present.Without(used), err)
	}
	if a.parker.means != means {
		a.log("vCPUs are parked by means %q from here on", a.parker.means)
	}
	parked := a.parker.parked
	a.untidy, a.meter.handed = true, true
	a.wake(before.Without(parked).And(apart))
	a.restless = a.restless.And(parked)
	if released := parked.Without(before); released != (guest.VCPUs{}) {
		a.restless = a.restless.Or(a.parker.settle(released, used, mostLooks))
	}
}

// wake runs this thread on each vCPU that has come back from a partition. A vCPU that went idle without scheduling
// domains is not among the idle ones that get work, until it has run something; then it looks for waiting threads
// itself.
func (a *agent) wake(returned guest.VCPUs) {
	if returned == (guest.VCPUs{}) {
		return
	}
	for _, id := range returned.IDs() {
		a.k.stand(id)
	}
	a.k.leave()
}

// tidy returns the agent's threads to their home, and lets interrupts and unbound workqueues follow the vCPUs in use.
// It takes longer than all the rest of a change, and what is left on a parked vCPU for a moment is seen by the check
// for idleness: so it follows the report.
func (a *agent) tidy() {
	if a.untidy {
		a.untidy = false
		a.k.goHome()
		a.parker.moveWork(a.parker.present.Without(a.parker.parked))
	}
}

// runsAnyway is the share of time from which on a parked vCPU counts as used. The
// timers of a vCPU that nothing else uses take far less.
const runsAnyway = 0.25

const (
	// irqsEvery is the time between two readings of all interrupts and cgroups: they come and go.
	irqsEvery = 10 * time.Second
	// apartAfter is how long a vCPU is parked until it becomes a partition. To make and to end one takes longer than to
	// limit programs.
	apartAfter = time.Second
)

// measure takes the mean demand since the last time.
func (a *agent) measure(now time.Time) error {
	present, parked, err := a.parker.state()
	if err != nil {
		return err
	}
	if a.last, err = a.meter.mean(now, present); err != nil {
		return err
	}
	for _, id := range parked.IDs() {
		if a.last.by[id] >= runsAnyway {
			a.restless = a.restless.Or(guest.Of(id))
		}
	}
	a.enforce()
	if now.Sub(a.irqs) >= irqsEvery {
		a.irqs = now
		a.parker.readIRQs()
		a.parker.renew()
		if err := a.parker.checkApart(); err != nil {
			a.log("%v; the agent makes it again", err)
		}
	}
	return nil
}

// setApart makes a partition of the vCPU that has been parked longest by limits of programs alone, once it has been so
// for a while, and reports whether one was due. It makes one at a time, so that a grant does not wait for all of them.
func (a *agent) setApart(now time.Time) bool {
	limited := a.parker.limited // empty by other means than partitions
	for id := range a.limited {
		if !limited.Has(id) {
			delete(a.limited, id)
		}
	}
	next, since := guest.VCPUs{}, now
	for _, id := range limited.IDs() {
		if _, ok := a.limited[id]; !ok {
			a.limited[id] = now
		}
		if a.limited[id].Before(since) {
			next, since = guest.Of(id), a.limited[id]
		}
	}
	if now.Sub(since) < apartAfter {
		return false
	}
	a.parker.renew()
	err := a.parker.setApart(next, true)
	a.k.goHome()
	if err != nil {
		a.parker.next()
		a.log("setting vCPU %v apart: %v; vCPUs are parked by means %q from here on", next, err, a.parker.means)
		a.enforce()
	}
	return true
}

// report makes the next report, of vCPUs as the kernel has them now. The parameter now is the number
// of threads that run or wait at this time, which may be more than at the looks before; -1: unknown.
func (a *agent) report(now int64) (guest.Report, error) {
	if _, _, err := a.parker.state(); err != nil {
		return guest.Report{}, err
	}
	r := a.draft(now)
	a.seq++
	r.Seq = a.seq
	return r, nil
}

// draft is what the next report would say, of vCPUs as they were when they were last read. It reads
// nothing: samples follow each other so fast that reading each time would be work of its own.
func (a *agent) draft(now int64) guest.Report {
	present, parked := a.parker.present, a.parker.parked
	used := present.Without(parked).Or(a.restless.And(present))
	used.Add(0)
	r := guest.Report{
		V: guest.Version, Boot: a.boot, Epoch: a.epoch, Present: present, Used: used, Means: a.parker.means,
		Running: a.last.running, Stalled: a.last.stalled, Use: a.last.use,
	}
	if threads := max(now, a.meter.most()); threads >= 0 {
		busy := min(threads, int64(used.Len()))
		r.Running, r.Waiting = 1000*busy, 1000*(threads-busy)
		if steady := a.meter.steady(); steady >= 0 {
			r.Brief = 1000 * max(0, threads-steady)
		}
	}
	return r
}

// usedNow is the number of vCPUs in the guest's scheduling, when they were last read.
func (a *agent) usedNow() int { return max(1, a.parker.present.Without(a.parker.parked).Len()) }
