package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/cputime"
	"github.com/numavisor/numavisor/tools/process"
)

// report collects figures and their goals.
type report struct{ rows []row }

type row struct{ figure, measured, goal, verdict string }

// add adds a figure without a goal.
func (r *report) add(figure, format string, value float64) {
	r.rows = append(r.rows, row{figure, fmt.Sprintf(format, value), "", ""})
}

// below adds a figure that should be less than a goal.
func (r *report) below(figure string, value, goal float64) {
	r.judge(figure, value, fmt.Sprintf("< %g", goal), value < goal)
}

// atLeast adds a figure that should be no less than a goal.
func (r *report) atLeast(figure string, value, goal float64) {
	r.judge(figure, value, fmt.Sprintf(">= %g", goal), value >= goal)
}

func (r *report) judge(figure string, value float64, goal string, met bool) {
	verdict := "missed"
	if met {
		verdict = "met"
	}
	text := fmt.Sprintf("%.2f", value)
	if value >= 100 {
		text = fmt.Sprintf("%.0f", value)
	}
	r.rows = append(r.rows, row{figure, text, goal, verdict})
}

// memoryGoal is that of the server with 10,000 hosts and 100,000 VMs, in MiB.
const memoryGoal = 500

// memory adds what the server has in memory.
func (r *report) memory(when string, pid int) error {
	m, err := process.MemoryOf(pid)
	if err != nil {
		return err
	}
	mib := func(b topology.Bytes) float64 { return float64(b) / float64(topology.MiB) }
	r.below("server, resident "+when+", MiB", mib(m.Resident), memoryGoal)
	r.add("  of that anonymous (the rest are pages of files)", "%.0f", mib(m.Anonymous))
	r.add("  the most so far", "%.0f", mib(m.Peak))
	return nil
}

// table returns the figures as text.
func (r *report) table() string {
	header := row{"figure", "measured", "goal", ""}
	widths := [4]int{}
	rows := append([]row{header}, r.rows...)
	for _, row := range rows {
		for i, cell := range row.cells() {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		c := row.cells()
		line := fmt.Sprintf("%-*s  %*s  %*s  %s", widths[0], c[0], widths[1], c[1], widths[2], c[2], c[3])
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

func (r row) cells() [4]string { return [4]string{r.figure, r.measured, r.goal, r.verdict} }

// others adds how many CPUs other programs used since the clock's start: not this one, nor processes of this tool that
// used some CPU time meanwhile. They make all times longer.
func (r *report) others(c cputime.Clock, known time.Duration) {
	used := c.Others()*float64(runtime.NumCPU()) - known.Seconds()/c.Wall().Seconds()
	r.add("  other programs on this machine meanwhile, CPUs used", "%.2f", max(0, used))
}
