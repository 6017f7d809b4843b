package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// almost is a world with a degraded guest that moves after one more sample, and whose mappings are read by the caller.
func almost(t *testing.T) (w *world, pass func(time.Duration)) {
	t.Helper()
	w = newWorld(t)
	var err error
	if w.topology, err = topology.Synthetic("nodes:4 cores:8 memory:16G square distances:10,16,28"); err != nil {
		t.Fatal(err)
	}
	if w.policy, err = policy.Parse(strings.NewReader("balance: {degraded_for: 10s, guests: {a: auto}}")); err != nil {
		t.Fatal(err)
	}
	w.slow = true
	w.c = control.New(control.Options{Policy: w.policy, Sample: time.Second, Observe: time.Hour, Plan: time.Minute,
		SaveAlarms: time.Minute})
	w.step(control.Start{})
	a := w.add("a", 2, topology.GiB, 0, 1)
	pass = func(d time.Duration) { w.now = w.now.Add(d); w.turn() }
	pass(time.Second)
	pass(time.Second)
	a.cpu, a.far = 2, true
	for i := 0; i < 20 && w.read == nil; i++ {
		pass(time.Second)
	}
	if w.read == nil || w.job != nil {
		t.Fatalf("the mappings of a are not read before it moves\n%s", w.out.String())
	}
	return w, pass
}

// A move waits for the reading of its guests' mappings: it would read the same.
func TestAMoveWaitsForTheReading(t *testing.T) {
	w, pass := almost(t)
	read := w.read
	pass(time.Second)
	if w.job != nil || w.c.State() != control.Moving {
		t.Fatalf("state %s, job %v\n%s", w.c.State(), w.job, w.out.String())
	}
	w.step(w.readClosely(read))
	if w.job == nil || closelyKnown(w.job) != "a" {
		t.Errorf("the reading has ended: job %v\n%s", w.job, w.out.String())
	}
}

// A move uses no mappings of another process, old ones, or ones that could not be read.
func TestAMoveUsesNoOutdatedMappings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		after  time.Duration
		used   string
	}{
		"a moment ago":              {after: time.Second, used: "a"},
		"some seconds ago":          {after: 10 * time.Second, used: "a"},
		"long ago":                  {after: 20 * time.Second},
		"of another process":        {change: func(w *world) { w.guests["a"].PID++ }, after: time.Second},
		"the host cannot be read":   {change: func(w *world) { w.away = "libvirtd is not running" }, after: time.Second},
		"the guest was not running": {change: func(w *world) { delete(w.guests, "a") }, after: time.Second},
	} {
		w, pass := almost(t)
		a := w.guests["a"]
		pid := a.PID
		if c.change != nil {
			c.change(w)
		}
		answer := w.readClosely(w.read)
		w.guests["a"], a.PID, w.away = a, pid, ""
		w.step(answer)
		pass(c.after)
		if w.job == nil || closelyKnown(w.job) != c.used {
			t.Errorf("%s: job %v\n%s", name, w.job, w.out.String())
		}
	}
}

// A move uses a reading that took longer than one counts otherwise: another one would be as old when it ends.
func TestAMoveUsesAReadingThatTookLong(t *testing.T) {
	w, pass := almost(t)
	read := w.read
	pass(20 * time.Second)
	w.step(w.readClosely(read))
	if w.job == nil || closelyKnown(w.job) != "a" {
		t.Errorf("after a reading of 20 s: job %v\n%s", w.job, w.out.String())
	}
}

// A controller that stops starts no job, also if one has waited for the reading.
func TestNoMoveBeginsAfterStop(t *testing.T) {
	w, pass := almost(t)
	read := w.read
	pass(time.Second)
	w.step(control.Stop{})
	w.step(w.readClosely(read))
	if w.job != nil {
		t.Errorf("job %v\n%s", w.job, w.out.String())
	}
}

// Two VMs are degraded, and by what they used so far one of them does not pay. When degraded_for has passed, it may
// have begun to work, so the mappings of both are read.
func TestTheMappingsOfAllDegradedVMsAreRead(t *testing.T) {
	w := newWorld(t)
	var err error
	if w.topology, err = topology.Synthetic("nodes:4 cores:8 memory:64G square distances:10,16,28"); err != nil {
		t.Fatal(err)
	}
	text := "balance: {degraded_for: 10s, guests: {a: auto, b: auto, c: advise}}"
	if w.policy, err = policy.Parse(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	w.c = control.New(control.Options{Policy: w.policy, Sample: time.Second, Observe: time.Hour, Plan: 5 * time.Second,
		SaveAlarms: time.Minute})
	w.slow = true
	w.step(control.Start{CopyRate: 64 * topology.MiB})
	w.add("full", 8, topology.GiB, 0, 0).cpu = 8
	a, b, c := w.add("a", 2, topology.GiB, 0, 1), w.add("b", 2, 60*topology.GiB, 0, 2), w.add("c", 2, topology.GiB, 0, 2)
	pass := func() { w.now = w.now.Add(time.Second); w.turn() }
	pass()
	pass()
	a.cpu, a.far, b.cpu, b.far, c.cpu, c.far = 2, true, 2, true, 2, true
	for i := 0; i < 20 && w.read == nil; i++ {
		pass()
	}
	if w.read == nil {
		t.Fatalf("no mappings are read\n%s", w.out.String())
	}
	if got := strings.Join(w.read.Guests, " "); got != "a b" {
		t.Errorf("the mappings of %s are read, want a b\n%s", got, w.out.String())
	}
}
