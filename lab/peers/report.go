package peers

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Results are all runs of one layout.
type Results struct {
	Layout  Layout  `json:"layout"`
	Window  float64 `json:"window_seconds"`
	Windows int     `json:"windows"` // of each run
	Runs    []Run   `json:"runs"`
}

const linesPerMega = 1e6

// RunTable has a row per run, in the order in which they were made.
func (r Results) RunTable() [][]string {
	rows := [][]string{
		{"BEGAN", "MANAGER", "WORK/S BY GUEST", "WORK/S", "LOCAL", "NEIGHBOUR", "REMOTE", "MEAN", "MOVED", "UNTIL",
			"THEN WORK/S", "LOCAL", "MEAN", "GOOD FROM"},
	}
	for _, run := range r.Runs {
		row := []string{run.Began.Format(time.TimeOnly), run.Manager}
		if run.Failed != "" {
			row = append(row, "failed")
			for len(row) < len(rows[0]) { // else the columns below would not line up
				row = append(row, "-")
			}
			rows = append(rows, row)
			continue
		}
		whole := ScoreOf(run.Windows)
		row = append(row, perGuest(whole), mega(whole.Work))
		row = append(row, shares(whole.Accesses)...)
		row = append(row, nanos(whole.Accesses), fmt.Sprintf("%d MiB", run.PagesMoved()/256))
		rows = append(rows, append(row, afterMoves(run)...))
	}
	return rows
}

// afterMoves describes when the moves ended, the results after them, and from
// when on all values were good.
func afterMoves(run Run) []string {
	after, seconds := run.Settled()
	cells := []string{"-", "-", "-", "-"}
	switch s := ScoreOf(after); {
	case len(after) == 0:
		cells[0] = "never"
	case seconds > 0:
		cells = []string{fmt.Sprintf("%.0f s", seconds), mega(s.Work), shares(s.Accesses)[0], nanos(s.Accesses)}
	}
	good, ok := run.Good()
	if !ok {
		return append(cells, "never")
	}
	return append(cells, fmt.Sprintf("%.0f s", good))
}

// MedianTable has a row per manager: the medians over its valid runs.
func (r Results) MedianTable() [][]string {
	rows := [][]string{
		{"MANAGER", "RUNS", "FAILED", "WORK/S", "OF BASELINE", "LOCAL", "MEAN", "THEN WORK/S", "OF BASELINE", "LOCAL",
			"MEAN", "WHAT"},
	}
	baseline, _ := r.medians(Baseline)
	for _, m := range Managers() {
		figures, failed := r.medians(m.Name)
		if figures.runs+failed == 0 {
			continue
		}
		row := []string{m.Name, fmt.Sprint(figures.runs), fmt.Sprint(failed)}
		row = append(row, figures.whole.cells(baseline.whole.work)...)
		row = append(row, figures.after.cells(baseline.whole.work)...)
		rows = append(rows, append(row, m.About))
	}
	return rows
}

// figures are medians over a manager's valid runs.
type figures struct {
	runs         int
	whole, after part
}

// part is a whole run, or the part of a run after its moves.
type part struct {
	known              bool
	work, local, nanos float64
}

func (p part) cells(baseline float64) []string {
	if !p.known {
		return []string{"-", "-", "-", "-"}
	}
	ofBaseline := "-"
	if baseline > 0 {
		ofBaseline = share(p.work / baseline)
	}
	return []string{mega(p.work), ofBaseline, share(p.local), fmt.Sprintf("%.0f ns", p.nanos)}
}

func (r Results) medians(manager string) (f figures, failed int) {
	var whole, after []Score
	settled := true
	for _, run := range r.Runs {
		switch {
		case run.Manager != manager:
		case run.Failed != "":
			failed++
		default:
			whole = append(whole, ScoreOf(run.Windows))
			windows, _ := run.Settled()
			settled = settled && len(windows) > 0
			after = append(after, ScoreOf(windows))
		}
	}
	f = figures{runs: len(whole), whole: medianPart(whole)}
	if settled {
		f.after = medianPart(after)
	}
	return f, failed
}

func medianPart(scores []Score) part {
	if len(scores) == 0 {
		return part{}
	}
	of := func(figure func(Score) float64) float64 {
		var all []float64
		for _, s := range scores {
			all = append(all, figure(s))
		}
		return median(all)
	}
	return part{
		known: true,
		work:  of(func(s Score) float64 { return s.Work }),
		local: of(func(s Score) float64 { local, _, _ := s.Shares(); return local }),
		nanos: of(func(s Score) float64 { return s.MeanNanos() }),
	}
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

func perGuest(s Score) string {
	var all []string
	for _, g := range s.Guests {
		all = append(all, mega(g))
	}
	return strings.Join(all, " ")
}

func shares(a Accesses) []string {
	local, neighbour, remote := a.Shares()
	return []string{share(local), share(neighbour), share(remote)}
}

// Failures says of each failed run why, as briefly as it can be: a reason may
// quote a whole console, and the JSON has it all.
func (r Results) Failures() []string {
	const most = 160
	var all []string
	for _, run := range r.Runs {
		if run.Failed == "" {
			continue
		}
		line := []rune(fmt.Sprintf("%s %s failed: %s", run.Began.Format(time.TimeOnly), run.Manager, run.Failed))
		if len(line) > most {
			line = append(line[:most], '…')
		}
		all = append(all, string(line))
	}
	return all
}

func mega(lines float64) string { return fmt.Sprintf("%.2f M", lines/linesPerMega) }
func share(s float64) string    { return fmt.Sprintf("%.1f %%", 100*s) }
func nanos(a Accesses) string   { return fmt.Sprintf("%.0f ns", a.MeanNanos()) }
