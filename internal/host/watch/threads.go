package watch

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// threadSampler measures one thread that runs a vCPU.
type threadSampler struct {
	tid         int
	sched, stat *linux.CachedFile
	run, wait   time.Duration  // since it started; run -1 before the first reading
	ran, waited time.Duration  // in the last window
	cpu         topology.CPUID // the CPU that it last ran on; -1 before the first reading
	turn        uint64         // the last sample that read it
}

func (t *threadSampler) Close() {
	t.sched.Close()
	t.stat.Close()
}

// listThreads finds the guest's vCPU threads, and reports whether they differ
// from those before. It detects that the guest has ended.
func (e *guestSampler) listThreads(w *Watcher, now time.Time) (changed bool) {
	e.list = now.Add(listInterval)
	tids, named, err := w.root.VCPUThreads(e.guest.PID, e.names)
	if linux.Gone(err) || err == nil && (len(tids) == 0 || e.named && !named) {
		e.ended = true // a VM that has lost its vCPUs is ending
		return true
	}
	w.gaps.set(inventory.ThreadsUnread, e.object, "its threads", err)
	if err != nil {
		return false
	}
	e.named = named
	var unnamed error
	if !named {
		unnamed = errors.New(
			"none of its threads has a vCPU's name (QEMU's debug-threads=on sets them): all its threads are counted")
	}
	w.gaps.set(inventory.ThreadsUnread, e.object, "its vCPU threads", unnamed)
	return e.adopt(w, tids)
}

// adopt makes samplers for new threads, and closes those of threads that have
// ended.
func (e *guestSampler) adopt(w *Watcher, tids []int) (changed bool) {
	had := map[int]threadSampler{}
	for _, t := range e.threads {
		had[t.tid] = t
	}
	threads := make([]threadSampler, 0, len(tids))
	for _, tid := range tids {
		t, ok := had[tid]
		delete(had, tid)
		if !ok {
			changed = true
			folder := fmt.Sprintf("proc/%d/task/%d", e.guest.PID, tid)
			t = threadSampler{
				tid:   tid,
				run:   -1,
				cpu:   -1,
				sched: w.cache.File(folder, "schedstat"),
				stat:  w.cache.File(folder, "stat"),
			}
		}
		threads = append(threads, t)
	}
	for _, t := range had {
		changed = true
		t.Close()
	}
	e.threads = threads
	e.guest.Seen.Threads = make([]inventory.Thread, len(threads)) // meters may still use the old one
	for i, t := range threads {
		e.guest.Seen.Threads[i] = inventory.Thread{
			TID:     t.tid,
			Name:    e.names[t.tid],
			Role:    inventory.RoleVCPU,
			LastCPU: max(0, t.cpu),
		}
		if v, ok := linux.VCPUOf(e.names[t.tid]); ok && e.named {
			e.guest.Seen.Threads[i].VCPU = &v
		}
	}
	return changed
}

// sampleThreads reads all threads, and lists them again if one has ended.
func (e *guestSampler) sampleThreads(w *Watcher, now time.Time, window time.Duration) (changed bool) {
	for again := true; again && !e.ended; {
		again = false
		err := e.readThreads(w.turn, window)
		if linux.Gone(err) && !changed && e.cpuStat == nil {
			changed = e.listThreads(w, now)
			again = changed
		}
		if !again && !e.ended {
			e.fallBack(w, err)
		}
	}
	return changed
}

// readThreads reads those threads that were not yet read in this sample.
func (e *guestSampler) readThreads(turn uint64, window time.Duration) error {
	for i := range e.threads {
		t := &e.threads[i]
		if t.turn == turn {
			continue
		}
		if err := t.sample(window); err != nil {
			return err
		}
		t.turn = turn
	}
	return nil
}

// fallBack switches to the guest's cgroup for its CPU use while its threads
// cannot be read, and back when they can.
func (e *guestSampler) fallBack(w *Watcher, err error) {
	if err == nil {
		e.cpuStat.Close()
		e.cpuStat, e.used = nil, -1
	}
	if err != nil {
		for i := range e.threads {
			e.threads[i].ran, e.threads[i].waited = 0, 0
		}
		if e.cpuStat == nil {
			file, ok, groupErr := w.cache.CPUStat(e.guest.PID)
			if ok {
				e.cpuStat = file
			}
			err = errors.Join(err, groupErr)
		}
	}
	w.gaps.set(inventory.CPUUnmeasured, e.object, "its vCPUs' run and wait times", err)
}

// idleShare is the share of a window up to which a running thread counts as
// idle: the CPU of an idle thread is not read, which would be the most
// expensive part.
const idleShare = 0.01

// sample reads how long the thread ran and waited, and on which CPU.
func (t *threadSampler) sample(window time.Duration) error {
	data, err := t.sched.Read()
	if err != nil {
		return err
	}
	run, wait, err := linux.ParseSchedstat(data)
	if err != nil {
		return fmt.Errorf("thread %s: %w", strconv.Itoa(t.tid), err)
	}
	first := t.run < 0
	t.ran, t.waited = max(0, run-t.run), max(0, wait-t.wait)
	if first {
		t.ran, t.waited = 0, 0
	}
	t.run, t.wait = run, wait
	if t.cpu >= 0 && share(t.ran, window) <= idleShare {
		return nil
	}
	if data, err = t.stat.Read(); err != nil {
		return err
	}
	t.cpu, err = linux.ParseLastCPU(data)
	return err
}
