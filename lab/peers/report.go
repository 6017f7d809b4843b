package peers

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const linesPerMega = 1e6

// RunTable has a row per run, in the order in which they were made.
func (r Results) RunTable() [][]string {
	rows := [][]string{
		{"BEGAN", "LAYOUT", "ROUND", "MANAGER", "TOOK", "OTHERS", "WORK/S BY GUEST", "WORK/S", "LOCAL", "NEIGHBOUR",
			"REMOTE", "MEAN", "MOVED", "UNTIL", "THEN WORK/S", "LOCAL", "MEAN", "GOOD FROM"},
	}
	for _, run := range r.Runs {
		row := []string{run.Began.Format(time.TimeOnly), run.Layout, fmt.Sprint(run.Round), run.Manager,
			fmt.Sprintf("%.0f s", run.Took), fmt.Sprintf("%.0f %%", 100*run.Others)}
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
		row = append(row, nanos(whole.Accesses), fmt.Sprintf("%d MiB", run.PagesMoved()/pageInMiB))
		rows = append(rows, append(row, r.afterMoves(run)...))
	}
	return rows
}

// afterMoves describes when moves and changes ended, the results after them, and
// from when on all values were good.
func (r Results) afterMoves(run Run) []string {
	l, _ := r.layout(run.Layout)
	first := run.settled(l.lastChange())
	cells := []string{"-", "-", "-", "-"}
	switch s := ScoreOf(run.Windows[first:]); {
	case first == len(run.Windows):
		cells[0] = "never"
	case first > 0:
		cells = []string{fmt.Sprintf("%.0f s", run.seconds(first)), mega(s.Work), shares(s.Accesses)[0],
			nanos(s.Accesses)}
	}
	good, ok := run.Good()
	if !ok {
		return append(cells, "never")
	}
	return append(cells, fmt.Sprintf("%.0f s", good))
}

// Summary is the outcome of one layout: Numavisor's settled part and bytes, and
// the whole run of each manager, against the hand-pinned baseline.
type Summary struct {
	Layout string `json:"layout"`
	Rounds int    `json:"rounds"` // valid runs of Numavisor
	Failed int    `json:"failed"` // runs of any manager
	// NeverSettled is the number of Numavisor's runs whose moves never ended.
	NeverSettled int `json:"never_settled,omitempty"`
	// SettledWork and SettledLocal are Numavisor's work and local share after its
	// moves, of the baseline's in the same part of a run.
	SettledWork  Figure `json:"settled_work"`
	SettledLocal Figure `json:"settled_local"`
	// Whole is each manager's work over the whole run, of the baseline's.
	Whole map[string]Figure `json:"whole"`
	// CopiedMiB is what the kernel moved under Numavisor, CheapestMiB what the
	// cheapest plan would copy.
	CopiedMiB   Figure `json:"copied_mib"`
	CheapestMiB Figure `json:"cheapest_mib"`
	// GoodFrom is after how many seconds at least 95 % of the accesses were local
	// to the end, of the runs under Numavisor where that was so; the others are NeverGood.
	GoodFrom  Figure `json:"good_from_seconds"`
	NeverGood int    `json:"never_good,omitempty"`
}

// Figure is the median over runs, with its spread.
type Figure struct {
	Runs   int     `json:"runs"` // 0: not measured
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func figureOf(all []float64) Figure {
	if len(all) == 0 {
		return Figure{}
	}
	return Figure{len(all), median(all), slices.Min(all), slices.Max(all)}
}

// Summaries has one for each layout of which there are runs.
func (r Results) Summaries() []Summary {
	var all []Summary
	for _, l := range r.Layouts {
		if slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Layout == l.Name }) {
			all = append(all, r.summary(l))
		}
	}
	return all
}

func (r Results) summary(l Layout) Summary {
	s := Summary{Layout: l.Name, Whole: map[string]Figure{}}
	for _, run := range r.Runs {
		if run.Layout == l.Name && run.Failed != "" {
			s.Failed++
		}
	}
	baseline := r.valid(l.Name, Baseline)
	for _, m := range Managers() {
		if ratios := ratiosTo(baseline, r.valid(l.Name, m.Name)); len(ratios) > 0 {
			s.Whole[m.Name] = figureOf(ratios)
		}
	}
	ours := r.valid(l.Name, Numavisor)
	s.Rounds = len(ours)
	s.settle(l, ours, baseline)
	var copied, cheapest, good []float64
	for _, run := range ours {
		copied = append(copied, float64(run.PagesMoved())/pageInMiB)
		if mib, ok := l.cheapest(run.startMemory(l)); ok {
			cheapest = append(cheapest, float64(mib))
		}
		if seconds, ok := run.Good(); ok {
			good = append(good, seconds)
		} else {
			s.NeverGood++
		}
	}
	s.CopiedMiB, s.CheapestMiB, s.GoodFrom = figureOf(copied), figureOf(cheapest), figureOf(good)
	return s
}

// ratiosTo is the work of each run over its whole length, of the baseline's median.
func ratiosTo(baseline, runs []Run) (ratios []float64) {
	if len(baseline) == 0 {
		return nil
	}
	whole := medianOf(baseline, func(run Run) float64 { return ScoreOf(run.Windows).Work })
	for _, run := range runs {
		if whole > 0 {
			ratios = append(ratios, ScoreOf(run.Windows).Work/whole)
		}
	}
	return ratios
}

// settle compares the settled part of each run with the same part of the
// baseline's: what the guests do may change in a run.
func (s *Summary) settle(l Layout, ours, baseline []Run) {
	var work, local []float64
	for _, run := range ours {
		first := run.settled(l.lastChange())
		if first == len(run.Windows) {
			s.NeverSettled++
			continue
		}
		if len(baseline) == 0 {
			continue
		}
		after := ScoreOf(run.Windows[first:])
		at := medianOf(baseline, func(b Run) float64 { return ScoreOf(b.Windows[first:]).Work })
		near := medianOf(baseline, func(b Run) float64 { return localOf(b.Windows[first:]) })
		if at > 0 && near > 0 {
			work = append(work, after.Work/at)
			local = append(local, localOf(run.Windows[first:])/near)
		}
	}
	s.SettledWork, s.SettledLocal = figureOf(work), figureOf(local)
}

func localOf(windows []Window) float64 {
	local, _, _ := ScoreOf(windows).Shares()
	return local
}

// startMemory is what was measured, or what the layout says where nothing was.
func (r Run) startMemory(l Layout) [][]uint64 {
	memory := l.nominal()
	for vm := range memory {
		if vm < len(r.Memory) && r.Memory[vm] != nil {
			memory[vm] = r.Memory[vm]
		}
	}
	return memory
}

func medianOf(runs []Run, figure func(Run) float64) float64 {
	var all []float64
	for _, run := range runs {
		all = append(all, figure(run))
	}
	return median(all)
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

// LayoutTable has a row per layout: medians over rounds, with their spread.
// Shares of work are of the hand-pinned baseline's.
func (r Results) LayoutTable() [][]string {
	rows := [][]string{{"LAYOUT", "ROUNDS", "FAILED", "SETTLED WORK", "SETTLED LOCAL"}}
	measured := r.measured()
	for _, m := range measured {
		rows[0] = append(rows[0], strings.ToUpper(m))
	}
	rows[0] = append(rows[0], "COPIED", "CHEAPEST", "OF CHEAPEST", "GOOD FROM", "GOALS")
	verdicts := r.Verdicts()
	for _, s := range r.Summaries() {
		row := []string{s.Layout, fmt.Sprint(s.Rounds), fmt.Sprint(s.Failed),
			orNever(s.SettledWork.percent(), s.NeverSettled), orNever(s.SettledLocal.percent(), s.NeverSettled)}
		for _, m := range measured {
			row = append(row, s.Whole[m].percent())
		}
		ratio := "-"
		if s.CheapestMiB.Median > 0 {
			ratio = fmt.Sprintf("%.2f", s.CopiedMiB.Median/s.CheapestMiB.Median)
		}
		row = append(row, s.CopiedMiB.text("%.0f", " MiB"), s.CheapestMiB.text("%.0f", " MiB"), ratio,
			orNever(s.GoodFrom.text("%.0f", " s"), s.NeverGood), goals(verdicts, s.Layout))
		rows = append(rows, row)
	}
	return rows
}

// measured are the managers whose whole runs the table compares, Numavisor first.
func (r Results) measured() []string {
	var names []string
	for _, run := range r.Runs {
		if run.Manager != Baseline && run.Failed == "" && !slices.Contains(names, run.Manager) {
			names = append(names, run.Manager)
		}
	}
	order := []string{Numavisor}
	for _, m := range Managers() {
		order = append(order, m.Name)
	}
	slices.SortFunc(names, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return names
}

// orNever adds in how many runs a figure was never reached.
func orNever(text string, never int) string {
	switch {
	case never == 0:
		return text
	case text == "-":
		return "never"
	}
	return fmt.Sprintf("%s, %d never", text, never)
}

func goals(verdicts []Verdict, layout string) string {
	met, known := 0, 0
	for _, v := range verdicts {
		if v.Layout == layout && v.Known {
			known++
			if v.Met {
				met++
			}
		}
	}
	if known == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d", met, known)
}

// text writes the median, and the spread of several runs: "98 (96-99) s".
func (f Figure) text(format, unit string) string {
	if f.Runs == 0 {
		return "-"
	}
	text := fmt.Sprintf(format, f.Median)
	if f.Runs > 1 {
		text += fmt.Sprintf(" ("+format+"-"+format+")", f.Least, f.Most)
	}
	return text + unit
}

func (f Figure) percent() string {
	return Figure{f.Runs, 100 * f.Median, 100 * f.Least, 100 * f.Most}.text("%.1f", " %")
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
		line := []rune(fmt.Sprintf("%s %s, %s failed: %s", run.Began.Format(time.TimeOnly), run.Layout, run.Manager,
			run.Failed))
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
