package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// movedWorld has a VM that moves, one second after its job has begun.
func movedWorld(t *testing.T) *world {
	t.Helper()
	w := worldOf(t, squareHost, "balance: {degraded_for: 2s, guests: {a: auto}}",
		control.Options{Sample: time.Second, Observe: time.Hour, Plan: time.Second})
	w.step(control.Start{})
	w.add("a", 2, topology.GiB, 0, 1).cpu = 2
	for range 10 {
		if w.now = w.now.Add(time.Second); w.job == nil {
			w.turn()
		}
	}
	if w.job == nil {
		t.Fatalf("nothing moves\n%s", w.out.String())
	}
	return w
}

// endMove ends the job with what it observed at its end, or without.
func (w *world) endMove(e control.JobEnded) {
	w.moved(w.job.Move)
	e.Moved = []control.Moved{{Move: w.job.Move, End: journal.MoveDone}}
	w.job = nil
	w.step(e)
}

func (w *world) seen() *control.JobEnded {
	w.moved(w.job.Move)
	o, ok := w.observed().(control.Observed)
	if !ok {
		w.t.Fatal("no observation")
	}
	return &control.JobEnded{Seen: &o.Host}
}

// After a move that has observed the host at its end, the host is not observed again.
func TestTheEndOfAMoveShowsTheHost(t *testing.T) {
	w := movedWorld(t)
	e := w.seen()
	w.out.Reset()
	w.endMove(*e)
	if w.state != control.Idle {
		t.Errorf("the state is %s", w.state)
	}
	for range 5 {
		w.now = w.now.Add(time.Second)
		w.turn()
	}
	if strings.Contains(w.out.String(), "observe") {
		t.Errorf("the host was observed:\n%s", w.out.String())
	}
	h, _ := w.c.Inventory(w.now)
	if g, ok := h.Guest("a"); !ok || g.Placement == nil {
		t.Errorf("the controller does not know where a is: %+v", g)
	}
}

// So does a move that leaves kernel balancing on, for memory that its guests do not use.
func TestTheEndOfAMoveThatHoldsASettingShowsTheHost(t *testing.T) {
	w := movedWorld(t)
	e := w.seen()
	e.Moved = []control.Moved{{Move: w.job.Move, End: journal.MoveDone, Left: []string{"a"},
		Held: &journal.SettingChange{Path: plan.NUMABalancingPath, Former: "0", Value: "1", Held: true}}}
	w.job = nil
	w.out.Reset()
	w.step(*e)
	if w.state != control.Idle || strings.Contains(w.out.String(), "observe") {
		t.Errorf("the state is %s, and the host is observed:\n%s", w.state, w.out.String())
	}
}

// A move reads what it needs of the host: the regular observation does not begin with it. It would take time from
// the VMs, and the move could not use what is known.
func TestNoObservationBeginsWithAMove(t *testing.T) {
	w := worldOf(t, squareHost, "balance: {degraded_for: 6s, guests: {a: auto}}",
		control.Options{Sample: time.Second, Observe: 6 * time.Second, Plan: time.Second})
	w.step(control.Start{})
	w.add("a", 2, topology.GiB, 0, 1).cpu = 2
	for range 20 {
		if w.job == nil {
			w.now = w.now.Add(time.Second)
			w.out.Reset()
			w.turn()
		}
	}
	if w.job == nil || w.job.Known == nil || strings.Contains(w.out.String(), "observe") {
		t.Fatalf("the job is %+v, after\n%s", w.job, w.out.String())
	}
	w.out.Reset()
	for range 5 {
		w.now = w.now.Add(time.Second)
		w.turn()
	}
	if strings.Contains(w.out.String(), "observe") {
		t.Errorf("the host is observed while the move runs:\n%s", w.out.String())
	}
	w.now = w.now.Add(time.Second)
	w.turn()
	if !strings.Contains(w.out.String(), "observe") {
		t.Errorf("the host is not observed 12 s after the last time, while the move still runs:\n%s", w.out.String())
	}
}

// What was observed while the job ran shows an earlier state than the end of the job: it is ignored.
func TestAnObservationDuringAMoveIsOlderThanItsEnd(t *testing.T) {
	w := movedWorld(t)
	w.step(control.RosterChanged{})
	during := w.observed()
	if r := w.c.Step(w.now, control.Sampled{}); !r.Observe {
		t.Fatal("the host is not observed though a VM has come")
	}
	w.endMove(*w.seen())
	w.step(during)
	h, _ := w.c.Inventory(w.now)
	if g, ok := h.Guest("a"); !ok || g.Placement == nil || w.state != control.Idle {
		t.Errorf("state %s; the controller has forgotten where a is: %+v", w.state, g)
	}
}

// A move that ends otherwise is followed by an observation.
func TestAMoveThatFailsIsFollowedByAnObservation(t *testing.T) {
	for what, change := range map[string]func(*control.JobEnded){
		"without what it observed": func(e *control.JobEnded) { e.Seen = nil },
		"stopped":                  func(e *control.JobEnded) { e.Stopped = true },
	} {
		w := movedWorld(t)
		e := w.seen()
		change(e)
		w.out.Reset()
		w.endMove(*e)
		w.now = w.now.Add(time.Second)
		w.turn()
		if !strings.Contains(w.out.String(), "observe") {
			t.Errorf("%s: the host is not observed:\n%s", what, w.out.String())
		}
	}
}

// Where observing is slow, the host is observed less often: for a 200th of the time, but every two minutes at least.
func TestSlowObservationsAreRarer(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		50 * time.Millisecond:  30 * time.Second,
		250 * time.Millisecond: 50 * time.Second,
		2 * time.Second:        2 * time.Minute,
	} {
		w := newWorld(t)
		w.took = took
		w.c = control.New(control.Options{Policy: w.policy, Sample: time.Second, Observe: 30 * time.Second,
			Plan: time.Minute, SaveAlarms: time.Minute})
		w.step(control.Start{})
		var seen []time.Time
		for range 300 {
			w.now = w.now.Add(time.Second)
			w.out.Reset()
			if w.turn(); strings.Contains(w.out.String(), "observe  host") {
				seen = append(seen, w.now)
			}
		}
		if len(seen) < 3 || seen[2].Sub(seen[1]) != want {
			t.Errorf("observations that take %v: at %v, want one every %v", took, seen, want)
		}
	}
}
