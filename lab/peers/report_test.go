package peers

import (
	"strings"
	"testing"
	"time"
)

// runOf is a run of 80 s in layout tight, with moves in its first two windows if
// they are wanted: 4 MiB in the second.
func runOf(manager string, lines, local, neighbour uint64, moves bool) Run {
	r := Run{Layout: "tight", Manager: manager, Round: 1, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Took: 130.4, Others: 0.07, Build: "v0.1.0"}
	for i := range 16 {
		w := windowOf(lines, local, neighbour, 0, 0)
		if moves && i < 2 {
			w = windowOf(lines/2, neighbour, local, 0, uint64(i)*1024)
		}
		r.Windows = append(r.Windows, w)
	}
	return r
}

// tight is a layout in which two VMs of four must be copied: 704 MiB.
func tight() Layout {
	all, _ := FindLayouts([]string{"tight"})
	return all[0]
}

// allOf has each manager's runs, with Numavisor's as given.
func allOf(ours ...Run) Results {
	r := Results{Layouts: []Layout{tight()}, Runs: ours}
	for _, name := range []string{None, Kernel, Numad} {
		r.Runs = append(r.Runs, runOf(name, 50e6, 60, 40, false))
	}
	r.Runs = append(r.Runs, runOf(Baseline, 100e6, 100, 0, false))
	return r
}

// verdicts writes + for a goal that is met, - for one that is not, ? for one
// that is not known.
func verdicts(r Results) string {
	var b strings.Builder
	for _, v := range r.Verdicts() {
		b.WriteString(map[string]string{"PASS": "+", "FAIL": "-", "-": "?"}[v.State()])
	}
	return b.String()
}

// copying adds MiB to those that a run moved.
func copying(mib uint64, r Run) Run {
	r.Windows[0].PagesMoved += mib * pageInMiB
	return r
}

// In turn: settled work, settled local share, more work than kernel, numad, none, bytes.
func TestVerdicts(t *testing.T) {
	failed := runOf(Numavisor, 1, 0, 100, false)
	failed.Failed = "the lab locked up"
	good := runOf(Numavisor, 98e6, 98, 2, true)
	endless := runOf(Numavisor, 98e6, 98, 2, true)
	endless.Windows[15].PagesMoved = 5000
	for _, c := range []struct {
		name    string
		results Results
		want    string
	}{
		{"all met", allOf(good), "++++++"},
		{"a failed run does not count", allOf(failed, good), "++++++"},
		{"too little work", allOf(runOf(Numavisor, 96e6, 98, 2, true)), "-+++++"},
		{"local share too small", allOf(runOf(Numavisor, 98e6, 96, 4, true)), "+-++++"},
		{"one bad run of three: medians count", allOf(good, runOf(Numavisor, 10e6, 10, 90, true), good), "++++++"},
		{"peers are better", allOf(runOf(Numavisor, 40e6, 50, 50, false)), "-----+"},
		{"equal is not better", allOf(runOf(Numavisor, 50e6, 98, 2, false)), "-+---+"},
		{"moves do not end", allOf(endless), "--++++"},
		{"moves do not end in one run of three", allOf(endless, good, good), "++++++"},
		{"1.2 times the bytes", allOf(copying(840, runOf(Numavisor, 98e6, 98, 2, true))), "++++++"},
		{"more bytes", allOf(copying(845, runOf(Numavisor, 98e6, 98, 2, true))), "+++++-"},
		{"not run", allOf(), "??????"},
		{"no baseline", Results{Layouts: []Layout{tight()}, Runs: []Run{good}}, "?????+"},
		{"nothing run", Results{Layouts: []Layout{tight()}}, ""},
	} {
		if got := verdicts(c.results); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// In a layout without a copy the pages of QEMU that the kernel moves are allowed.
func TestVerdicts_WhereNothingNeedBeCopied(t *testing.T) {
	l := Layouts()[0]
	r := Results{Layouts: []Layout{l}, Runs: []Run{copying(20, runOf(Numavisor, 1, 1, 0, true))}}
	r.Runs[0].Layout = l.Name
	if got := verdicts(r); got != "?????+" {
		t.Errorf("24 MiB: %s", got)
	}
	r.Runs[0] = copying(20, r.Runs[0])
	if got := verdicts(r); got != "?????-" {
		t.Errorf("44 MiB: %s", got)
	}
}

// After a change of what the VMs do, only the same part of the baseline's run counts.
func TestSettledPart_IsComparedWithTheSamePart(t *testing.T) {
	l := tight()
	l.VMs[3].Phases = []Phase{{At: 60}}
	ours, baseline := runOf(Numavisor, 50e6, 99, 1, false), runOf(Baseline, 100e6, 100, 0, false)
	for i := 12; i < 16; i++ {
		baseline.Windows[i].Lines[0] = 50e6
	}
	r := Results{Layouts: []Layout{l}, Runs: []Run{ours, baseline}}
	s := r.Summaries()[0]
	if !near(s.SettledWork.Median, 1) || !near(s.SettledLocal.Median, 0.99) || s.Whole[Numavisor].Median > 0.6 {
		t.Errorf("settled %v and %v, whole %v; want all of the work after 60 s, 99 %% local, and some half over all",
			s.SettledWork, s.SettledLocal, s.Whole[Numavisor])
	}
}

func TestTables(t *testing.T) {
	failed := Run{Layout: "tight", Manager: Kernel, Round: 2, Failed: "the lab locked up"}
	second := runOf(Numavisor, 90e6, 96, 4, true)
	second.Round = 2
	r := allOf(copying(800, runOf(Numavisor, 98e6, 98, 2, true)), second, failed)
	rows := map[string]string{}
	for _, row := range r.RunTable()[1:] {
		rows[row[3]] += strings.Join(row, "|") + "\n"
	}
	want := "03:04:05|tight|1|numavisor|130 s|7 %|18.38 M|18.38 M|86.0 %|14.0 %|0.0 %|93 ns|804 MiB|10 s|19.60 M|" +
		"98.0 %|86 ns|10 s\n03:04:05|tight|2|numavisor|130 s|7 %|16.88 M|16.88 M|84.5 %|15.5 %|0.0 %|94 ns|4 MiB|" +
		"10 s|18.00 M|96.0 %|87 ns|10 s\n"
	if rows[Numavisor] != want {
		t.Errorf("rows of numavisor:\n got %s\nwant %s", rows[Numavisor], want)
	}
	if !strings.Contains(rows[Kernel], "kernel|0 s|0 %|failed|-|-") || !strings.Contains(rows[Kernel], "60.0 %") {
		t.Errorf("rows of kernel: %s", rows[Kernel])
	}
	var table strings.Builder
	for _, row := range r.LayoutTable() {
		table.WriteString(strings.Join(row, "|") + "\n")
	}
	want = "LAYOUT|ROUNDS|FAILED|SETTLED WORK|SETTLED LOCAL|NUMAVISOR|NONE|KERNEL|NUMAD|COPIED|CHEAPEST|OF CHEAPEST|" +
		"GOOD FROM|GOALS\n" +
		"tight|2|1|94.0 (90.0-98.0) %|97.0 (96.0-98.0) %|88.1 (84.4-91.9) %|50.0 %|50.0 %|50.0 %|404 (4-804) MiB|" +
		"704 (704-704) MiB|0.57|10 (10-10) s|5 of 6\n"
	if table.String() != want {
		t.Errorf("layouts:\n got %s\nwant %s", table.String(), want)
	}
}

func TestFailuresAreBrief(t *testing.T) {
	r := Results{
		Runs: []Run{{Manager: None},
			{Layout: "tight", Manager: Kernel, Failed: "the lab did not come up: " + strings.Repeat("é console ", 50)},
			{Layout: "eight", Manager: Numad, Failed: "why"}},
	}
	all := r.Failures()
	if len(all) != 2 || len([]rune(all[0])) > 161 ||
		!strings.Contains(all[0], "tight, kernel failed: the lab did not come up") ||
		all[1] != "00:00:00 eight, numad failed: why" {
		t.Errorf("failures: %q", all)
	}
}

func TestMedian(t *testing.T) {
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("of three: %v", m)
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("of four: %v", m)
	}
}
