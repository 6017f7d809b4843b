package peers

import (
	"strings"
	"testing"
	"time"
)

// runOf is a run of 80 s, with moves in its second window if they are wanted.
func runOf(manager string, lines, local, neighbour uint64, moves bool) Run {
	r := Run{Manager: manager, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for i := range 16 {
		w := windowOf(lines, local, neighbour, 0, 0)
		if moves && i < 2 {
			w = windowOf(lines/2, neighbour, local, 0, uint64(i)*1024)
		}
		r.Windows = append(r.Windows, w)
	}
	return r
}

// allOf has each manager's runs, with Numavisor's as given.
func allOf(ours ...Run) Results {
	r := Results{Layout: Layout{Guests: 1}, Runs: ours}
	for _, name := range []string{None, Kernel, Numad, Auto, AutoMass} {
		r.Runs = append(r.Runs, runOf(name, 50e6, 60, 40, false))
	}
	r.Runs = append(r.Runs, runOf(Baseline, 100e6, 100, 0, false))
	return r
}

// verdicts writes + for a promise that holds, - for one that does not, ? for
// one that is not known.
func verdicts(r Results) string {
	var b strings.Builder
	for _, v := range r.Verdicts() {
		switch {
		case !v.Known:
			b.WriteByte('?')
		case v.Met:
			b.WriteByte('+')
		default:
			b.WriteByte('-')
		}
	}
	return b.String()
}

// In turn: work, local share, more work than none, kernel, numad, auto, auto-mass, good in time.
func TestVerdicts(t *testing.T) {
	failed := runOf(Numavisor, 1, 0, 100, false)
	failed.Failed = "the lab locked up"
	for _, c := range []struct {
		name    string
		results Results
		want    string
	}{
		{"all met", allOf(runOf(Numavisor, 96e6, 97, 3, true)), "++++++++"},
		{"a failed run does not count", allOf(failed, runOf(Numavisor, 96e6, 97, 3, true)), "++++++++"},
		{"too little work", allOf(runOf(Numavisor, 94e6, 97, 3, true)), "-+++++++"},
		{"local share too small", allOf(runOf(Numavisor, 96e6, 94, 6, true)), "+-+++++-"},
		{"one bad run of three: medians are met, each run is " +
			"not", allOf(runOf(Numavisor, 96e6, 97, 3, true), runOf(Numavisor, 96e6, 97, 3, true),
			runOf(Numavisor, 10e6, 10, 90, true)), "+++++++-"},
		{"peers are better", allOf(runOf(Numavisor, 40e6, 50, 50, false)), "--------"},
		{"more work counts, from farther memory too", allOf(runOf(Numavisor, 60e6, 50, 50, false)), "--+++++-"},
		{"not run", allOf(), "????????"},
		{"no baseline", Results{Runs: []Run{runOf(Numavisor, 96e6, 97, 3, true)}}, "???????+"},
	} {
		if got := verdicts(c.results); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestVerdicts_UnknownIfMovesNeverEnd(t *testing.T) {
	r := runOf(Numavisor, 96e6, 97, 3, true)
	r.Windows[15].PagesMoved = 5000
	if got := verdicts(allOf(r)); got != "??++++++" {
		t.Errorf("%s: work after moves that never end is not known", got)
	}
}

func TestTables(t *testing.T) {
	failed := Run{Manager: Kernel, Failed: "the lab locked up"}
	r := allOf(runOf(Numavisor, 96e6, 97, 3, true), failed)
	rows := map[string]string{}
	for _, row := range r.RunTable()[1:] {
		rows[row[1]] += strings.Join(row, "|") + "\n"
	}
	if want := "03:04:05|numavisor|18.00 M|18.00 M|85.2 %|14.8 %|0.0 %|93 ns|4 MiB|10 s|19.20 M|97.0 %|87 ns|10 " +
		"s\n"; rows[Numavisor] != want {
		t.Errorf("row of numavisor:\n got %s\nwant %s", rows[Numavisor], want)
	}
	if !strings.Contains(rows[Kernel], "kernel|failed|-|-") || !strings.Contains(rows[Kernel], "60.0 %") {
		t.Errorf("rows of kernel: %s", rows[Kernel])
	}
	for _, row := range r.MedianTable()[1:] {
		if row[0] == Kernel && (row[1] != "1" || row[2] != "1" || row[4] != "50.0 %") {
			t.Errorf("kernel: 1 run, 1 failed, half of the hand-pinned baseline's work: %v", row)
		}
		if row[0] == Numavisor && (row[8] != "96.0 %" || row[9] != "97.0 %") {
			t.Errorf("numavisor after its moves: 96 %% of the hand-pinned baseline's work, 97 %% local: %v", row)
		}
	}
}

func TestFailuresAreBrief(t *testing.T) {
	r := Results{
		Runs: []Run{{Manager: None},
			{Manager: Kernel, Failed: "the lab did not come up: " + strings.Repeat("é console ", 50)},
			{Manager: Numad, Failed: "why"}},
	}
	all := r.Failures()
	if len(all) != 2 || len([]rune(all[0])) > 161 ||
		!strings.Contains(all[0], "kernel failed: the lab did not come up") ||
		all[1] != "00:00:00 numad failed: why" {
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
