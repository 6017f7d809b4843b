package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// A decision waits neither for a regular sample nor for loads from before the
// last move.
func TestDecisionsDoNotWaitForRegularSamples(t *testing.T) {
	w := newWorld(t)
	var err error
	if w.topology, err = topology.Synthetic("nodes:4 cores:8 memory:16G square distances:10,16,28"); err != nil {
		t.Fatal(err)
	}
	if w.policy, err = policy.Parse(strings.NewReader("balance: {degraded_for: 2s, guests: {a: auto, b: auto}}")); err != nil {
		t.Fatal(err)
	}
	const every = 8 * time.Second
	w.c = control.New(control.Options{Policy: w.policy, Sample: every, Observe: time.Hour, Plan: every,
		SaveAlarms: every})
	w.step(control.Start{})
	for name, runs := range map[string]topology.NodeID{"a": 1, "b": 2} {
		w.add(name, 2, topology.GiB, 0, runs)
	}
	pass := func(d time.Duration) { w.now = w.now.Add(d); w.turn() }
	pass(every)
	pass(every)
	w.guests["a"].cpu = 2
	pass(every)
	if w.sampleIn != 2*time.Second || w.job != nil {
		t.Fatalf("a is degraded: the next sample in %v, job %v\n%s", w.sampleIn, w.job, w.out.String())
	}
	pass(w.sampleIn)
	if w.job == nil {
		t.Fatalf("a has reached degraded_for: no job\n%s", w.out.String())
	}
	w.guests["b"].cpu = 2
	pass(every)
	done := control.Moved{Move: w.job.Move, End: "move-done"}
	w.moved(w.job.Move)
	w.job = nil
	w.now = w.now.Add(time.Second)
	w.step(control.JobEnded{Moved: []control.Moved{done}})
	began := w.now
	for w.job == nil && w.now.Sub(began) < every {
		if w.sampleIn == 0 {
			t.Fatalf("%v after the move, nothing is to be sampled\n%s", w.now.Sub(began), w.out.String())
		}
		pass(w.sampleIn)
	}
	if took := w.now.Sub(began); w.job == nil || took > 4*time.Second {
		t.Errorf("b moves %v after the move of a\n%s", took, w.out.String())
	}
}
