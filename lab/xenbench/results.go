package xenbench

import (
	"fmt"
	"slices"
	"time"
)

// Results are the runs of one call, or of several.
type Results struct {
	Began  time.Time `json:"began"`
	Build  string    `json:"build,omitempty"`
	Others float64   `json:"others"` // share of this machine's CPU time that other programs used
	Runs   []Run     `json:"runs"`
}

// Run is what some VMs did that were placed in one way.
type Run struct {
	Round  int     `json:"round"`
	Way    string  `json:"way"`
	Guests int     `json:"guests"`
	Work   float64 `json:"lines_per_second"` // of all VMs
	Local  float64 `json:"local"`            // share of all memory accesses of the host
}

// Figure is the median of the rounds of one way with one number of VMs.
type Figure struct {
	Guests int     `json:"guests"`
	Way    string  `json:"way"`
	Work   float64 `json:"lines_per_second"`
	Local  float64 `json:"local"`
	// OfAllLocal is the work as a share of that of all local in the same rounds.
	OfAllLocal float64 `json:"of_all_local"`
}

// Figures returns the medians, by number of VMs and way.
func (r *Results) Figures() []Figure {
	var all []Figure
	for _, n := range r.guests() {
		hand := r.median(n, AllLocal, work)
		for _, way := range Ways() {
			f := Figure{Guests: n, Way: way.Name, Work: r.median(n, way.Name, work),
				Local: r.median(n, way.Name, localOf)}
			if hand > 0 {
				f.OfAllLocal = f.Work / hand
			}
			all = append(all, f)
		}
	}
	return all
}

func (r *Results) guests() (all []int) {
	for _, run := range r.Runs {
		if !slices.Contains(all, run.Guests) {
			all = append(all, run.Guests)
		}
	}
	slices.Sort(all)
	return all
}

func work(r Run) float64 { return r.Work }

func localOf(r Run) float64 { return r.Local }

func (r *Results) median(guests int, way string, of func(Run) float64) float64 {
	var all []float64
	for _, run := range r.Runs {
		if run.Guests == guests && run.Way == way {
			all = append(all, of(run))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}

// Published is what the Xen wiki reports, for comparison.
const Published = "10-20 %"

// Verdict is a goal, and whether it is met with one number of VMs.
type Verdict struct {
	Guests   int    `json:"guests"`
	Goal     string `json:"goal"`
	Measured string `json:"measured"`
	Met      bool   `json:"met"`
}

// nearly is how much less than all local Numavisor may do.
const nearly = 0.95

// Verdicts compares the figures with the goals.
func (r *Results) Verdicts() []Verdict {
	var all []Verdict
	share := map[string]float64{}
	for _, f := range r.Figures() {
		share[f.Way] = f.OfAllLocal
		if f.Way != Numavisor {
			continue
		}
		all = append(all,
			Verdict{f.Guests, "Numavisor at least 95 % of all local", percent(share[Numavisor]),
				share[Numavisor] >= nearly},
			Verdict{f.Guests, "pinning a running VM does not reach all local", percent(share[Pinned]),
				share[Pinned] < nearly})
	}
	return all
}

// Worth is how much more work all local does than without any placement, by number of VMs.
func (r *Results) Worth() map[int]float64 {
	worth := map[int]float64{}
	for _, f := range r.Figures() {
		if f.Way == Unplaced && f.OfAllLocal > 0 {
			worth[f.Guests] = 1/f.OfAllLocal - 1
		}
	}
	return worth
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// Table returns the figures for people, a row for each number of VMs and way.
func (r *Results) Table() [][]string {
	rows := [][]string{{"VMS", "PLACED BY", "WORK/S", "OF ALL LOCAL", "LOCAL ACCESSES"}}
	for _, f := range r.Figures() {
		rows = append(rows, []string{fmt.Sprint(f.Guests), f.Way, fmt.Sprintf("%.2f M", f.Work/1e6),
			percent(f.OfAllLocal), percent(f.Local)})
	}
	return rows
}
