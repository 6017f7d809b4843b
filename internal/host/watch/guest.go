package watch

import (
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// listInterval is how often a guest's threads are listed. Threads come and go
// with vCPUs; a thread that ended is noticed sooner, when it is read.
const listInterval = 30 * time.Second

// guestSampler measures one running guest.
type guestSampler struct {
	guest  inventory.Guest
	object inventory.Ref // in gaps
	ended  bool

	threads []threadSampler // of its vCPUs
	names   map[int]string
	named   bool // vCPU threads are identified by their names
	list    time.Time
	// cpuStat is its cgroup's cpu.stat, read if the threads' run times are
	// unreadable; nil else. used is its last figure, -1 before the first.
	cpuStat *linux.CachedFile
	used    time.Duration

	throttled throttledSampler
	memory    memorySampler
	onNode    map[topology.NodeID]float64 // CPU use by node, of the sample in the making
	// Last published values.
	cpuByNode map[topology.NodeID]float64
	shares    []inventory.AccessShare
	last      time.Time // of the last sample; zero before the first
}

func (w *Watcher) newSampler(g inventory.Guest, now time.Time, turn float64) *guestSampler {
	e := &guestSampler{guest: g, object: inventory.GuestRef(g.Name), names: map[int]string{}, used: -1,
		onNode: map[topology.NodeID]float64{}}
	e.listThreads(w, now)
	e.throttled.find(w, e)
	// Guests that start together do not list their threads in the same sample.
	e.list = now.Add(listInterval/2 + time.Duration(turn*float64(listInterval/2)))
	return e
}

// update adopts a newer observation of the guest.
func (e *guestSampler) update(g inventory.Guest) {
	if g.Config.PageSize != e.guest.Config.PageSize || g.Config.Source != e.guest.Config.Source ||
		g.Config.Memory != e.guest.Config.Memory {
		e.memory.Close()
		e.memory = memorySampler{}
	}
	if e.memory.fromInventory {
		e.memory.publish(maps.Clone(g.Seen.MemoryByNode), g.Seen.MemorySource)
	}
	g.Seen.Threads = e.guest.Seen.Threads
	e.guest = g
}

func (e *guestSampler) Close() {
	for i := range e.threads {
		e.threads[i].Close()
	}
	e.cpuStat.Close()
	e.throttled.Close()
	e.memory.Close()
}

// sample measures the guest; threadsChanged says that the threads of its vCPUs
// differ from those before.
func (e *guestSampler) sample(w *Watcher, now time.Time) (s inventory.GuestSample, threadsChanged bool) {
	s = inventory.GuestSample{Name: e.guest.Name, PID: e.guest.PID}
	if !e.last.IsZero() {
		s.Load.Window = max(0, now.Sub(e.last))
	}
	e.last = now
	if !now.Before(e.list) {
		threadsChanged = e.listThreads(w, now)
		e.throttled.find(w, e)
	}
	threadsChanged = e.sampleThreads(w, now, s.Load.Window) || threadsChanged
	if e.ended {
		return s, threadsChanged
	}
	e.addLoad(w, &s)
	s.MemoryByNode, s.MemorySource = e.memory.sample(w, e, now)
	return s, threadsChanged
}

// addLoad sums the threads' figures for the window.
func (e *guestSampler) addLoad(w *Watcher, s *inventory.GuestSample) {
	window := s.Load.Window
	clear(e.onNode)
	for i := range e.threads {
		t, seen := &e.threads[i], &e.guest.Seen.Threads[i]
		seen.LastCPU, seen.RunTime, seen.WaitTime = max(0, t.cpu), max(0, t.run), t.wait // for meters
		s.Load.CPU += share(t.ran, window)
		s.Load.Wait += share(t.waited, window)
		if node := w.node(t.cpu); node != topology.NoNode && t.ran > 0 {
			e.onNode[node] += share(t.ran, window)
		}
	}
	s.Load.Throttled = min(s.Load.Wait, share(e.throttled.since(), window)) // the threads' waiting time includes it
	s.Load.Wait -= s.Load.Throttled
	if e.cpuStat != nil {
		s.Load.CPU = e.useOfGroup(w, window)
	}
	if !maps.Equal(e.onNode, e.cpuByNode) { // earlier samples share the map
		e.cpuByNode = maps.Clone(e.onNode)
	}
	s.CPUByNode = e.cpuByNode
}

// useOfGroup is the CPU use of the guest's cgroup, including its emulator.
func (e *guestSampler) useOfGroup(w *Watcher, window time.Duration) float64 {
	data, err := e.cpuStat.Read()
	var stat linux.CPUStat
	if err == nil {
		stat, err = linux.ParseCPUStat(data)
	}
	w.gaps.set(inventory.CPUUnmeasured, e.object, "its CPU use", err)
	if err != nil {
		e.used = -1 // the next figure would cover more than a window
		return 0
	}
	before := e.used
	e.used = stat.Usage
	if before < 0 {
		return 0
	}
	return share(stat.Usage-before, window)
}

// vanished reports whether a file is gone because its thread or cgroup has
// ended: a read of an open file of a removed cgroup returns ENODEV.
func vanished(err error) bool { return linux.Gone(err) || errors.Is(err, unix.ENODEV) }
