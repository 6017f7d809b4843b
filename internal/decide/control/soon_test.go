package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/topology"
)

// A decision waits neither for a regular sample nor for loads from before the
// last move.
func TestDecisionsDoNotWaitForRegularSamples(t *testing.T) {
	const every = 8 * time.Second
	w := worldOf(t, squareHost, "balance: {degraded_for: 2s, guests: {a: auto, b: auto}}",
		control.Options{Sample: every, Observe: time.Hour, Plan: every})
	w.step(control.Start{})
	for name, runs := range map[string]topology.NodeID{"a": 1, "b": 2} {
		w.add(name, 2, topology.GiB, 0, runs)
	}
	pass := func(d time.Duration) { w.now = w.now.Add(d); w.turn() }
	pass(every)
	pass(every)
	w.guests["a"].cpu = 1 // it may have begun in the midst of the window
	pass(every)
	if w.sampleIn != time.Second || w.job != nil {
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

// degraded_for begins when a VM is degraded, not with the sample that shows it, also if only the plan shows that it is:
// by where it may run. One that may have begun to work in the midst of the window is measured again, because its
// demand is not known yet.
func TestDegradedForBeginsBeforeTheSample(t *testing.T) {
	for _, far := range []bool{true, false} {
		degradedForBeginsBeforeTheSample(t, far)
	}
}

func degradedForBeginsBeforeTheSample(t *testing.T, far bool) {
	t.Helper()
	const every = 8 * time.Second
	for name, c := range map[string]struct {
		degradedFor string
		cpu         float64
		sampleIn    time.Duration // 0: the VM moves at once
	}{
		"busy throughout":                 {"2s", 2, 0},
		"busy for almost all of it":       {"6s", 1.6, 0},
		"busy for half of it":             {"2s", 1, time.Second},
		"busy for a tenth":                {"2s", 0.2, 1200 * time.Millisecond},
		"busy throughout, but not enough": {"10s", 2, 2 * time.Second},
	} {
		text := "balance: {degraded_for: " + c.degradedFor + ", guests: {a: auto}}"
		w := worldOf(t, squareHost, text, control.Options{Sample: every, Observe: time.Hour, Plan: every})
		w.step(control.Start{})
		a := w.add("a", 2, topology.GiB, 0, 1)
		for range 2 {
			w.now = w.now.Add(every)
			w.turn()
		}
		a.cpu, a.far = c.cpu, far
		w.now = w.now.Add(every)
		w.turn()
		if moves := w.job != nil; moves != (c.sampleIn == 0) || !moves && w.sampleIn != c.sampleIn {
			t.Errorf("%s, accesses measured: %v: moves %v, the next sample in %v\n%s", name, far, moves, w.sampleIn,
				w.out.String())
		}
	}
}

// A VM that has not been degraded for degraded_for is sampled again when it has been, wherever the sample that shows it
// is between two regular ones.
func TestAVMThatIsAlmostDueIsSampledSoon(t *testing.T) {
	const every, degradedFor = 4 * time.Second, 500 * time.Millisecond
	for off := time.Duration(0); off < every/10; off += 30 * time.Millisecond {
		w := worldOf(t, squareHost, "balance: {degraded_for: 500ms, guests: {a: auto}}",
			control.Options{Sample: every, Observe: time.Hour, Plan: every})
		w.step(control.Start{})
		a := w.add("a", 2, topology.GiB, 0, 1)
		for _, pass := range []time.Duration{every, every, every + off, 450 * time.Millisecond} {
			if pass < every {
				a.cpu, a.far = 2, true
			}
			w.now = w.now.Add(pass)
			w.turn()
		}
		if w.job == nil && (w.sampleIn <= 0 || w.sampleIn > degradedFor) {
			t.Errorf("%v after a regular sample: the next one in %v\n%s", off, w.sampleIn, w.out.String())
		}
	}
}

// A VM that an observation shows for the first time is sampled at once, and not with the next regular sample: its load
// is measured between two samples. A paused one is in no sample.
func TestANewVMIsSampledAtOnce(t *testing.T) {
	const every = 8 * time.Second
	w := worldOf(t, squareHost, "balance: {guests: {a: auto}}",
		control.Options{Sample: every, Observe: time.Hour, Plan: every})
	w.step(control.Start{})
	w.turn()
	a := w.add("a", 2, topology.GiB, 0, 1)
	a.State = "paused"
	if w.step(w.observed()); w.sampleIn != 0 {
		t.Errorf("a paused VM is sampled in %v\n%s", w.sampleIn, w.out.String())
	}
	a.State = "running"
	if w.step(w.observed()); w.sampleIn <= 0 || w.sampleIn > every/100 {
		t.Errorf("a VM that was not sampled yet: the next sample in %v\n%s", w.sampleIn, w.out.String())
	}
	w.now = w.now.Add(w.sampleIn)
	w.turn()
	if w.step(w.observed()); w.sampleIn != 0 {
		t.Errorf("a VM that was sampled: the next sample in %v\n%s", w.sampleIn, w.out.String())
	}
}

// A VM counts with all its vCPUs until its load has been measured. It is not degraded for that, and its load is
// measured soon. Its mappings are read meanwhile, in case it works.
func TestAVMIsNotDegradedBeforeItIsMeasured(t *testing.T) {
	const every = 8 * time.Second
	w := worldOf(t, squareHost, "balance: {degraded_for: 500ms, guests: {a: auto}}",
		control.Options{Sample: every, Observe: time.Hour, Plan: every})
	w.step(control.Start{})
	w.now = w.now.Add(every)
	w.turn()
	a := w.add("a", 2, topology.GiB, 0, 1)
	a.unmeasured = true
	w.step(w.observed())
	w.now = w.now.Add(every)
	w.turn()
	if w.sampleIn <= 0 || w.sampleIn > time.Second {
		t.Errorf("its load is not known: the next sample in %v", w.sampleIn)
	}
	if !strings.Contains(w.out.String(), "read     a closely") {
		t.Errorf("its mappings are not read\n%s", w.out.String())
	}
	a.unmeasured, a.cpu, a.far = false, 0.2, true
	w.now = w.now.Add(time.Second)
	w.turn()
	if w.job != nil {
		t.Errorf("it moves, although it has hardly worked yet\n%s", w.out.String())
	}
}

// Kernel balancing begins to serve VMs whose memory is spread before their load is known, and their mappings are read:
// they may have worked for long. Neither begins if they cannot move soon. Kernel balancing does not begin for VMs whose
// memory is on one node: their vCPUs may move there.
func TestVMsThatMayHaveWorkedForLongArePreparedFor(t *testing.T) {
	for name, c := range map[string]struct {
		degradedFor           string
		spread, serves, reads bool
	}{
		"memory on all nodes":                  {"1s", true, true, true},
		"memory on one node":                   {"1s", false, false, true},
		"memory on all nodes, and cannot move": {"10s", true, false, false},
		"memory on one node, and cannot move":  {"10s", false, false, false},
	} {
		w := worldOf(t, squareHost, "balance: {degraded_for: "+c.degradedFor+", guests: {a: auto}}",
			control.Options{Sample: time.Second, Observe: time.Hour, Plan: time.Second})
		w.kernel.NUMABalancing = "0"
		w.step(control.Start{NUMABalancing: "0", CopyRate: 100 * topology.MiB})
		w.now = w.now.Add(time.Second)
		w.turn()
		a := w.add("a", 2, topology.GiB, 0, 1)
		a.unmeasured, a.Config.Source = true, "anonymous"
		if c.spread {
			for n := range topology.NodeID(4) {
				a.Seen.MemoryByNode[n] = topology.GiB / 4
			}
		}
		w.step(w.observed())
		w.now = w.now.Add(time.Second)
		w.turn()
		serves := strings.Contains(w.out.String(), "remedy   write-kernel-setting")
		reads := strings.Contains(w.out.String(), "read     a closely")
		if serves != c.serves || reads != c.reads {
			t.Errorf("%s: the kernel serves it: %v; its mappings are read: %v\n%s", name, serves, reads, w.out.String())
		}
	}
}

// A VM moves when it has been degraded for degraded_for, also if that is much shorter than the time between samples.
func TestAVMMovesWhenItIsDue(t *testing.T) {
	const every, degradedFor = 8 * time.Second, 500 * time.Millisecond
	for off := -every / 8; off <= every/8; off += 110 * time.Millisecond {
		w := worldOf(t, squareHost, "balance: {degraded_for: 500ms, guests: {a: auto}}",
			control.Options{Sample: every, Observe: time.Hour, Plan: every})
		w.step(control.Start{})
		a := w.add("a", 2, topology.GiB, 0, 1)
		for range 2 {
			w.now = w.now.Add(every)
			w.turn()
		}
		a.cpu, a.far = 1, true // it may have begun in the midst of the window
		w.now = w.now.Add(every + off)
		w.turn()
		samples, found := 0, w.now
		for w.job == nil && w.sampleIn > 0 {
			samples++
			w.now = w.now.Add(w.sampleIn)
			w.turn()
		}
		late := w.now.Sub(found) - degradedFor/2 // it counts as degraded for half of it by now
		if w.job == nil || samples > 1 || late > 100*time.Millisecond {
			t.Errorf("%v from a regular sample: %d more samples, moves %v, %v late\n%s", off, samples, w.job != nil, late,
				w.out.String())
		}
	}
}

// A VM that has used a little CPU time a moment ago is planned for at once when it begins to work. One that comes and
// goes is not planned for each time.
func TestABriefLoadDoesNotDelayThePlan(t *testing.T) {
	const every, plan = 2 * time.Second, 20 * time.Second
	for mode, loads := range map[string][]float64{
		"auto": {0, 0, 0.2, 0, 2}, "advise": {0, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2},
	} {
		text := "balance: {degraded_for: 1s, guests: {a: " + mode + "}}"
		w := worldOf(t, squareHost, text, control.Options{Sample: every, Observe: time.Hour, Plan: plan})
		w.step(control.Start{})
		a := w.add("a", 2, topology.GiB, 0, 1)
		a.far = true
		for _, cpu := range loads {
			if w.job != nil {
				t.Fatalf("a moves before it works\n%s", w.out.String())
			}
			a.cpu = cpu
			w.now = w.now.Add(every)
			w.turn()
		}
		if moves := w.job != nil; moves != (mode == "auto") {
			t.Errorf("mode %s: moves %v at the end\n%s", mode, moves, w.out.String())
		}
		if plans := w.c.Status(w.now).Totals.Plans; plans > 5 {
			t.Errorf("mode %s: %d plans in %d samples\n%s", mode, plans, len(loads), w.out.String())
		}
	}
}

// A VM that begins to work while another one moves is planned for as soon as loads are known after that move, not
// with the regular plan.
func TestAfterAMoveTheNextPlanDoesNotWait(t *testing.T) {
	text := "balance: {degraded_for: 1s, guests: {a: auto, b: auto}}"
	const plan = 30 * time.Second
	w := worldOf(t, squareHost, text, control.Options{Sample: 2 * time.Second, Observe: time.Hour, Plan: plan})
	w.step(control.Start{})
	a, b := w.add("a", 2, topology.GiB, 0, 1), w.add("b", 2, topology.GiB, 0, 2)
	pass := func(d time.Duration) { w.now = w.now.Add(d); w.turn() }
	for range 3 {
		pass(2 * time.Second)
	}
	a.cpu, a.far = 2, true
	for i := 0; i < 4 && w.job == nil; i++ {
		pass(2 * time.Second)
	}
	if w.job == nil {
		t.Fatalf("a does not move\n%s", w.out.String())
	}
	b.cpu, b.far = 2, true
	pass(2 * time.Second)
	a.far, a.near = false, true
	done := control.Moved{Move: w.job.Move, End: "move-done"}
	w.moved(w.job.Move)
	w.job = nil
	w.step(control.JobEnded{Moved: []control.Moved{done}})
	began := w.now
	for w.job == nil && w.now.Sub(began) < plan {
		pass(min(2*time.Second, max(w.sampleIn, time.Second)))
	}
	if took := w.now.Sub(began); w.job == nil || took > 4*time.Second {
		t.Errorf("b moves %v after the move of a\n%s", took, w.out.String())
	}
}

// Moves that wait for another one are planned again, together with a VM that has begun to work meanwhile.
func TestQueuedMovesArePlannedAgainWithOthers(t *testing.T) {
	for _, joins := range []bool{false, true} {
		text := "balance: {degraded_for: 1s, guests: {a: auto, b: auto, c: auto}}"
		w := worldOf(t, "nodes:4 cores:8 memory:64G square distances:10,16,28", text,
			control.Options{Sample: time.Second, Observe: time.Hour, Plan: time.Minute})
		w.step(control.Start{CopyRate: topology.GiB})
		a, b := w.add("a", 4, 16*topology.GiB, 0, 1), w.add("b", 4, 16*topology.GiB, 0, 2)
		c, full := w.add("c", 2, 4*topology.GiB, 0, 3), w.add("full", 8, topology.GiB, 0, 0)
		full.cpu = 8
		pass := func() { w.now = w.now.Add(time.Second); w.turn() }
		pass()
		pass()
		a.cpu, b.cpu, a.far, b.far = 4, 4, true, true
		for i := 0; i < 5 && w.job == nil; i++ {
			pass()
		}
		if w.job == nil || len(w.job.Move.Guests) != 1 {
			t.Fatalf("a and b do not move one after the other: %v\n%s", w.job, w.out.String())
		}
		if joins {
			c.cpu, c.far = 2, true
		}
		pass()
		pass()
		done := control.Moved{Move: w.job.Move, End: "move-done"}
		w.moved(w.job.Move)
		w.job = nil
		w.step(control.JobEnded{Moved: []control.Moved{done}})
		if queued := w.job != nil; queued == joins {
			t.Errorf("c begins to work: %v; the next move begins at once: %v\n%s", joins, queued, w.out.String())
		}
	}
}

// A move that copies gives way once others have needed more CPUs than its VM for degraded_for. VMs that need less, or
// have been over a threshold when it was planned, do not end it.
func TestAMoveGivesWay(t *testing.T) {
	for name, c := range map[string]struct {
		own, others float64
		givesWay    bool
	}{
		"others need more": {0.5, 2, true},
		"others need less": {2, 1, false},
	} {
		w := worldOf(t, "nodes:4 cores:8 memory:64G square distances:10,16,28", "balance: {degraded_for: 3s, guests: {a: auto, b: auto}}",
			control.Options{Sample: time.Second, Observe: time.Hour, Plan: time.Second})
		w.step(control.Start{CopyRate: topology.GiB})
		a, b := w.add("a", 2, 16*topology.GiB, 0, 1), w.add("b", 2, 4*topology.GiB, 0, 3)
		w.add("full", 8, topology.GiB, 0, 0).cpu = 8
		pass := func() { w.now = w.now.Add(time.Second); w.turn() }
		pass()
		pass()
		a.cpu, a.far = 2, true
		for i := 0; i < 8 && w.job == nil; i++ {
			pass()
		}
		if w.job == nil {
			t.Fatalf("%s: a does not move\n%s", name, w.out.String())
		}
		a.cpu, b.cpu, b.far = c.own, c.others, true
		w.out.Reset()
		pass()
		if strings.Contains(w.out.String(), "gives-way") {
			t.Errorf("%s: gives way at once\n%s", name, w.out.String())
		}
		for range 4 {
			pass()
		}
		if got := strings.Count(w.out.String(), "stop     gives-way"); got == 1 != c.givesWay || got > 1 {
			t.Errorf("%s: gives way %d times, want %v\n%s", name, got, c.givesWay, w.out.String())
		}
	}
}

// A sample is taken at once also if the last of four guests begins to work, but not for noise.
func TestSurge_OneOfFourGuests(t *testing.T) {
	w := worldOf(t, squareHost, "balance: {degraded_for: 2s, guests: {a: auto, b: auto, c: auto, d: auto}}",
		control.Options{Sample: time.Second, Observe: time.Hour, Plan: 5 * time.Second})
	w.step(control.Start{})
	for node, name := range []string{"a", "b", "c", "d"} {
		w.add(name, 1, topology.GiB, topology.NodeID(node), topology.NodeID(node))
		w.guests[name].cpu = 1
	}
	w.guests["d"].cpu = 0
	for range 3 {
		w.now = w.now.Add(time.Second)
		w.turn()
	}
	if from := w.c.Surge(); from <= 1.15*3 || from > 4 {
		t.Errorf("three CPUs are used: a surge is %v CPUs", from)
	}
	w.guests["d"].cpu = 1
	w.now = w.now.Add(time.Second)
	w.turn()
	if from := w.c.Surge(); from != 0 {
		t.Errorf("all vCPUs work: a surge is %v CPUs", from)
	}
}
