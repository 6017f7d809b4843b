package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Result is what a witness has seen.
type Result struct {
	// Looks at all threads, and Checked: how often a thread was found to have run since the look before.
	Looks   int `json:"looks"`
	Checked int `json:"checked"`
	// Judged is how many of these were on a CPU whose record did not change meanwhile.
	Judged     int      `json:"judged"`
	Violations []string `json:"violations,omitempty"`
	// HandOvers are the CPUs that went from one VM to another.
	HandOvers []HandOver `json:"hand_overs,omitempty"`
	// Below is the longest time for which a VM had fewer CPUs than its minimum, in ms.
	Below map[string]float64 `json:"below_ms"`
	// Ran and Waited are the sums over a VM's vCPU threads, in seconds.
	Ran    map[string]float64 `json:"ran_s"`
	Waited map[string]float64 `json:"waited_s"`
	// Stolen is, of what a VM's vCPUs waited, at most what vCPUs of other VMs took, in seconds: between two looks, what
	// these ran on the CPU for which a vCPU waited.
	Stolen map[string]float64 `json:"stolen_s"`
}

// HandOver is one CPU that went from one VM to another. Millis is the time from the host's request
// until the record gave the CPU to the other VM.
type HandOver struct {
	CPU    topology.CPUID `json:"cpu"`
	From   string         `json:"from"`
	To     string         `json:"to"`
	Millis float64        `json:"ms"`
}

// watch compares looks with the record.
type watch struct {
	file     string
	minimums map[string]int
	out      Result
	threads  map[int]thread
	// holders are those of the last record.
	holders map[topology.CPUID]holder
	changed map[topology.CPUID]int // by the look in which it was seen
	began   map[string]time.Time   // since when a VM has been below its minimum
}

type holder struct {
	guest   string
	leaving time.Time // zero: it does not leave
	was     string    // the VM that had the CPU before, and since when it left
	left    time.Time
}

func newWatch(file string) *watch {
	return &watch{file: file, minimums: map[string]int{}, threads: map[int]thread{},
		holders: map[topology.CPUID]holder{}, changed: map[topology.CPUID]int{}, began: map[string]time.Time{},
		out: Result{Below: map[string]float64{}, Ran: map[string]float64{}, Waited: map[string]float64{},
			Stolen: map[string]float64{}}}
}

// readRecord takes the present record.
func (w *watch) readRecord(now time.Time) {
	text, err := os.ReadFile(w.file)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var r record
	if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil {
		w.violation("the record: %v", err)
		return
	}
	w.take(r, now)
}

// record is what a witness reads of the daemon's record, with code of its own.
type record struct {
	Grants []struct {
		CPU     topology.CPUID `json:"cpu"`
		Guest   string         `json:"guest"`
		Since   time.Time      `json:"since"`
		Leaving bool           `json:"leaving"`
	} `json:"grants"`
	Guests map[string]struct{} `json:"guests"`
}

// take compares a record with the one before.
func (w *watch) take(r record, now time.Time) {
	fresh := map[topology.CPUID]holder{}
	count := map[string]int{}
	for _, g := range r.Grants {
		if old, twice := fresh[g.CPU]; twice {
			w.violation("CPU %d is granted to %s and %s", g.CPU, old.guest, g.Guest)
		}
		before := w.holders[g.CPU]
		h := holder{guest: g.Guest, was: before.was, left: before.left}
		if before.guest == g.Guest {
			h.leaving = before.leaving
		} else if before.guest != "" {
			h.was, h.left = before.guest, before.leaving
		}
		if h.leaving = (time.Time{}); g.Leaving {
			h.leaving = g.Since
		}
		if before.guest != g.Guest && h.was != "" && h.was != g.Guest && !h.left.IsZero() && !g.Leaving {
			w.out.HandOvers = append(w.out.HandOvers,
				HandOver{CPU: g.CPU, From: h.was, To: g.Guest, Millis: g.Since.Sub(h.left).Seconds() * 1000})
		}
		fresh[g.CPU] = h
		count[g.Guest]++
	}
	for cpu, before := range w.holders {
		if _, granted := fresh[cpu]; !granted { // remember who had it until it is granted again
			h := holder{was: before.was, left: before.left}
			if before.guest != "" {
				h.was, h.left = before.guest, before.leaving
			}
			fresh[cpu] = h
		}
	}
	for cpu, h := range fresh {
		if w.holders[cpu].guest != h.guest {
			w.changed[cpu] = w.out.Looks
		}
	}
	w.holders = fresh
	w.minimum(r, count, now)
}

// minimum notes how long a VM has fewer CPUs than its minimum.
func (w *watch) minimum(r record, count map[string]int, now time.Time) {
	for name, least := range w.minimums {
		_, runs := r.Guests[name]
		since, below := w.began[name]
		switch {
		case !runs || count[name] >= least:
			delete(w.began, name)
		case !below:
			w.began[name], since = now, now
		}
		if runs && below {
			w.out.Below[name] = max(w.out.Below[name], now.Sub(since).Seconds()*1000)
		}
	}
}

// look reads all threads and judges what has run since the last look. A thread's run time is
// that of its last switch or tick: what it has run since the last look was on the CPU that it is on now, if it
// was there before. CPUs that the record has never named are not for hand-over: QEMU starts its threads there.
func (w *watch) look(threads func() []thread) {
	w.out.Looks++
	w.readRecord(time.Now())
	all := threads()
	w.readRecord(time.Now())
	var deltas []delta
	for _, t := range all {
		before, known := w.threads[t.tid]
		w.threads[t.tid] = t
		if known && before.guest == t.guest {
			deltas = append(deltas, delta{thread: t, ran: t.ran - before.ran, wait: t.wait - before.wait,
				stayed: t.cpu == before.cpu})
		}
	}
	w.sum(deltas)
	for _, d := range deltas {
		w.judge(d)
	}
}

// delta is what a thread did between two looks.
type delta struct {
	thread

	ran, wait time.Duration
	stayed    bool // on its CPU
}

// sum adds what the threads did.
func (w *watch) sum(deltas []delta) {
	type share struct {
		cpu   topology.CPUID
		guest string
	}
	total, own := map[topology.CPUID]time.Duration{}, map[share]time.Duration{}
	for _, d := range deltas {
		total[d.cpu] += d.ran
		own[share{d.cpu, d.guest}] += d.ran
		w.out.Ran[d.guest] += d.ran.Seconds()
		w.out.Waited[d.guest] += d.wait.Seconds()
	}
	for _, d := range deltas {
		others := total[d.cpu] - own[share{d.cpu, d.guest}]
		w.out.Stolen[d.guest] += min(d.wait, others).Seconds()
	}
}

// judge notes a violation if a thread ran where it must not.
func (w *watch) judge(d delta) {
	if d.ran == 0 {
		return
	}
	w.out.Checked++
	if _, handed := w.holders[d.cpu]; !handed || !d.stayed {
		return
	}
	if at, ok := w.changed[d.cpu]; ok && at >= w.out.Looks-1 {
		return // it changed hands meanwhile
	}
	w.out.Judged++
	if h := w.holders[d.cpu]; h.guest != d.guest {
		w.violation("look %d: a vCPU of %s (thread %d) ran for %v on CPU %d, which serves %q", w.out.Looks, d.guest,
			d.tid, d.ran, d.cpu, h.guest)
	}
}

// mostViolations bounds the list.
const mostViolations = 20

func (w *watch) violation(format string, args ...any) {
	if len(w.out.Violations) < mostViolations {
		w.out.Violations = append(w.out.Violations, fmt.Sprintf(format, args...))
	}
}
