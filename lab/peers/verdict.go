package peers

import "fmt"

// Verdict is one promise and its measurement.
type Verdict struct {
	Promise  string `json:"promise"`
	Measured string `json:"measured"`
	// Known is false where the runs that would decide are missing.
	Known bool `json:"known"`
	Met   bool `json:"met"`
}

// ofBaseline is the share of the hand-pinned baseline that Numavisor's guests
// must reach.
const ofBaseline = 0.95

// Verdicts compare Numavisor with the hand-pinned baseline and with its peers, by medians.
func (r Results) Verdicts() []Verdict {
	ours, _ := r.medians(Numavisor)
	baseline, _ := r.medians(Baseline)
	known := ours.after.known && baseline.whole.known
	all := []Verdict{
		atLeast(known, "work after its moves, of the hand-pinned baseline's", ours.after.work, baseline.whole.work),
		atLeast(known, "local share after its moves, of the hand-pinned baseline's",
			ours.after.local, baseline.whole.local),
	}
	for _, name := range []string{None, Kernel, Numad, Auto, AutoMass} {
		peer, _ := r.medians(name)
		all = append(all, better(name, ours.whole, peer.whole))
	}
	return append(all, r.goodInTime())
}

func atLeast(known bool, what string, ours, baseline float64) Verdict {
	v := Verdict{
		Promise:  fmt.Sprintf("numavisor: %s: at least %.0f %%", what, 100*ofBaseline),
		Measured: "not measured",
		Known:    known,
	}
	if known {
		v.Measured, v.Met = share(ours/baseline), ours >= ofBaseline*baseline
	}
	return v
}

// better compares the work done. The report shows the mean access too, but it
// does not decide: it counts accesses, so a manager that stops its guests for
// as long as they are badly placed would look good by it.
func better(peer string, ours, theirs part) Verdict {
	v := Verdict{
		Promise:  "numavisor: more work than " + peer + " over the whole run, moves included",
		Measured: "not measured",
		Known:    ours.known && theirs.known,
	}
	if v.Known {
		v.Measured = fmt.Sprintf("work %s against %s a second, mean access %.0f against %.0f ns", mega(ours.work),
			mega(theirs.work), ours.nanos, theirs.nanos)
		v.Met = ours.work > theirs.work
	}
	return v
}

// goodInTime looks at every valid run: the slowest counts.
func (r Results) goodInTime() Verdict {
	v := Verdict{
		Promise: fmt.Sprintf("numavisor: at most %d ns and at least %.0f %% local within %d s, in each run", goodNanos,
			100*goodLocal, goodSeconds),
		Measured: "not measured",
		Met:      true,
	}
	slowest := 0.0
	for _, run := range r.Runs {
		if run.Manager != Numavisor || run.Failed != "" {
			continue
		}
		seconds, ok := run.Good()
		v.Known = true
		v.Met = v.Met && ok && seconds <= goodSeconds
		if !ok {
			v.Measured = "not at the end of the run that began at " + run.Began.String()
			return v
		}
		slowest = max(slowest, seconds)
		v.Measured = fmt.Sprintf("within %.0f s", slowest)
	}
	v.Met = v.Met && v.Known
	return v
}
