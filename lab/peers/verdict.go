package peers

import "fmt"

// Verdict is one goal of a layout and its measurement.
type Verdict struct {
	Layout   string `json:"layout"`
	Goal     string `json:"goal"`
	Measured string `json:"measured"`
	// Known is false where the runs that would decide are missing.
	Known bool `json:"known"`
	Met   bool `json:"met"`
}

// State is how a verdict is printed.
func (v Verdict) State() string {
	switch {
	case !v.Known:
		return "-"
	case v.Met:
		return "PASS"
	}
	return "FAIL"
}

// The goals. The kernel's count of moved pages has those of QEMU and its
// libraries, which move when libvirt restricts a VM, and those that the kernel
// moves to get contiguous memory: up to 20 MiB were seen where no VM's memory
// was copied. Therefore this much is allowed in any case.
const (
	ofBaseline      = 0.97
	ofCheapest      = 1.2
	otherPagesInMiB = 32
)

// Verdicts judge Numavisor in each layout, by medians.
func (r Results) Verdicts() []Verdict {
	var all []Verdict
	for _, s := range r.Summaries() {
		all = append(all,
			s.atLeast("settled work", s.SettledWork),
			s.atLeast("settled local share", s.SettledLocal),
			s.better(Kernel), s.better(Numad), s.better(None),
			s.cheap())
	}
	return all
}

func (s Summary) atLeast(what string, f Figure) Verdict {
	v := Verdict{Layout: s.Layout, Measured: "not measured",
		Goal: fmt.Sprintf("%s at least %.0f %% of hand pinning", what, 100*ofBaseline)}
	switch {
	case s.NeverSettled > 0 && 2*s.NeverSettled >= s.Rounds:
		v.Known, v.Measured = true, fmt.Sprintf("moves did not end in %d of %d runs", s.NeverSettled, s.Rounds)
	case f.Runs > 0:
		v.Known, v.Met, v.Measured = true, f.Median >= ofBaseline, f.percent()
	}
	return v
}

// better compares the work done over whole runs, moves included. Accesses do not
// decide: a manager that stops its guests for as long as they are badly placed
// would look good by them.
func (s Summary) better(peer string) Verdict {
	ours, theirs := s.Whole[Numavisor], s.Whole[peer]
	v := Verdict{Layout: s.Layout, Goal: "work over the whole run above " + peer, Measured: "not measured",
		Known: ours.Runs > 0 && theirs.Runs > 0}
	if v.Known {
		v.Met = ours.Median > theirs.Median
		v.Measured = fmt.Sprintf("%s against %s of hand pinning", ours.percent(), theirs.percent())
	}
	return v
}

func (s Summary) cheap() Verdict {
	v := Verdict{Layout: s.Layout, Measured: "not measured", Known: s.CheapestMiB.Runs > 0,
		Goal: fmt.Sprintf("copies at most %.1f times the bytes of the cheapest plan, or %d MiB more", ofCheapest,
			otherPagesInMiB)}
	if v.Known {
		most := max(ofCheapest*s.CheapestMiB.Median, s.CheapestMiB.Median+otherPagesInMiB)
		v.Met = s.CopiedMiB.Median <= most
		v.Measured = fmt.Sprintf("%s against %s", s.CopiedMiB.text("%.0f", " MiB"), s.CheapestMiB.text("%.0f", " MiB"))
	}
	return v
}
