package xen

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Watcher samples the guests of a Xen host. Each reading is one `xl vcpu-list`: run times, and which vCPUs run, wait
// or are idle. xl is a process of its own and makes calls to Xen for each vCPU, so readings are seconds apart
// (Between), and run apart from Sample, which never waits for xl. It is safe for concurrent use.
type Watcher struct {
	driver *Driver
	now    func() time.Time
	ctx    context.Context // of readings; ends with Close
	stop   context.CancelFunc
	active sync.WaitGroup

	mu       sync.Mutex
	guests   []inventory.Guest
	topology *topology.Topology
	readings []reading // of the last stateSpan, the oldest first
	failed   error     // of the last reading
	busy     bool      // a reading is in progress
	began    time.Time // of the last reading; zero: none yet
	took     time.Duration
	sampled  time.Time // the last sample; zero: none yet
	spent    int64     // driver.spent at the last sample
}

// Times of readings.
const (
	// Between is the least time between the beginnings of two readings. On a slow host it is longer: reading takes a
	// twentieth of the time of one CPU at most, up to longestBetween.
	Between        = 5 * time.Second
	longestBetween = 15 * time.Second
	readingShare   = 20
	// stateSpan is how long the state of a vCPU counts for the estimate of waits.
	stateSpan = time.Minute
	// outdated is how old the last reading may be until its figures no longer count.
	outdated = longestBetween + CallTime + time.Second
)

// reading is one output of xl vcpu-list.
type reading struct {
	at    time.Time
	vcpus map[int][]vcpu // by domain
	// moved: vCPUs got other CPUs since, so that its states describe another layout. Its run times count.
	moved bool
}

// NewWatcher makes a watcher. Close ends it.
func (d *Driver) NewWatcher() *Watcher {
	ctx, stop := context.WithCancel(context.Background())
	return &Watcher{driver: d, now: d.clock, ctx: ctx, stop: stop, topology: &topology.Topology{}}
}

// Close ends a reading in progress.
func (w *Watcher) Close() error {
	w.stop()
	w.active.Wait()
	return nil
}

// Follow sets the guests that exist now, and their host.
func (w *Watcher) Follow(guests []inventory.Guest, t *topology.Topology) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guests = slices.DeleteFunc(slices.Clone(guests), func(g inventory.Guest) bool { return g.State != "running" })
	w.topology = t
}

// Roster identifies the domains of the last reading: it changes when a guest starts or ends.
func (w *Watcher) Roster() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.readings) == 0 {
		return ""
	}
	last := w.readings[len(w.readings)-1]
	ids := make([]int, 0, len(last.vcpus))
	for id := range last.vcpus {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return strings.Trim(fmt.Sprint(ids), "[]")
}

// Sample returns the figures of the last two readings, and starts the next reading when it is due. Between readings
// the same rates are returned again.
func (w *Watcher) Sample() inventory.Sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	s := inventory.Sample{Taken: now.UTC(), CPUSource: cpuSource}
	if !w.sampled.IsZero() {
		s.Window = max(0, now.Sub(w.sampled))
	}
	w.sampled = now
	if !w.busy && (w.began.IsZero() || now.Sub(w.began) >= w.between()) {
		w.busy, w.began = true, now
		w.active.Go(w.read)
	}
	f := figures{guests: w.guests, topology: w.topology, window: s.Window}
	f.free, f.capped = w.driver.lastSeen()
	if n := len(w.readings); n > 0 && now.Sub(w.readings[n-1].at) < outdated {
		f.readings = w.readings
	}
	f.fill(&s)
	if w.failed != nil {
		s.Gaps = append(s.Gaps, inventory.Gap{Kind: inventory.CPUUnmeasured, Object: inventory.HostRef(),
			What: "CPU use", Why: w.failed.Error()})
	}
	spent := w.driver.spent.Load()
	s.Cost, w.spent = time.Duration(spent-w.spent), spent
	return s
}

// between returns the time from the beginning of the last reading to the next one.
func (w *Watcher) between() time.Duration {
	return min(longestBetween, max(Between, readingShare*w.took))
}

// read makes one reading.
func (w *Watcher) read() {
	begin := w.now()
	out, err := w.driver.xl(w.ctx, "vcpu-list")
	var vcpus map[int][]vcpu
	if err == nil {
		vcpus, err = parseVCPUs(out)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.failed, w.took = false, err, w.now().Sub(begin)
	if err != nil {
		return
	}
	r := reading{at: w.now(), vcpus: vcpus}
	if n := len(w.readings); n > 0 && !sameAffinities(w.readings[n-1].vcpus, vcpus) {
		last := w.readings[n-1]
		last.moved = true
		w.readings = []reading{last}
	}
	old := func(o reading) bool { return r.at.Sub(o.at) > stateSpan }
	w.readings = append(slices.DeleteFunc(slices.Clone(w.readings), old), r)
}

// sameAffinities reports whether no domain that is in both readings may run elsewhere than before.
func sameAffinities(before, now map[int][]vcpu) bool {
	for id, vcpus := range now {
		was, ok := before[id]
		if !ok || len(was) != len(vcpus) {
			continue
		}
		for i := range vcpus {
			if !vcpus[i].Hard.Equal(was[i].Hard) || !vcpus[i].Soft.Equal(was[i].Soft) {
				return false
			}
		}
	}
	return true
}

// lastSeen returns the free memory of the nodes when the topology was last read, and the capped domains when they were
// last listed.
func (d *Driver) lastSeen() (free map[topology.NodeID]topology.Bytes, capped map[int]bool) {
	d.seen.Lock()
	defer d.seen.Unlock()
	return d.free, d.capped
}
