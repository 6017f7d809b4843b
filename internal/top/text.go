package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// fit cuts or fills a text to a number of cells of the screen.
func fit(text string, width int) string {
	text = ansi.Truncate(oneLine(text), max(width, 0), "…")
	return text + strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
}

// fitRight is fit for figures: right-aligned.
func fitRight(text string, width int) string {
	text = ansi.Truncate(oneLine(text), max(width, 0), "…")
	return strings.Repeat(" ", max(width-ansi.StringWidth(text), 0)) + text
}

// oneLine replaces characters that would move the cursor or reverse the writing
// direction: names and reasons come from other programs.
func oneLine(raw string) string {
	return strings.Map(func(r rune) rune {
		if text.Hidden(r) {
			return ' '
		}
		return r
	}, raw)
}

// wrapped breaks a text into lines of at most a number of cells, the later ones
// indented.
func wrapped(text string, width, indent int) []string {
	width = max(width, indent+8)
	first, rest, more := strings.Cut(ansi.Wrap(oneLine(text), width, ""), "\n")
	lines := []string{first}
	if !more {
		return lines
	}
	rest = strings.ReplaceAll(rest, "\n", " ")
	for _, l := range strings.Split(ansi.Wrap(rest, width-indent, ""), "\n") {
		lines = append(lines, strings.Repeat(" ", indent)+strings.TrimLeft(l, " "))
	}
	return lines
}

// percent shows a share from 0 to 1 in at most four cells: "7%", "100%".
func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// short shows memory in at most four cells below 1000 TiB: "16G", "1.5T", "512M".
func short(b topology.Bytes) string {
	for _, u := range []struct {
		letter string
		size   topology.Bytes
	}{{"T", topology.TiB}, {"G", topology.GiB}, {"M", topology.MiB}, {"K", topology.KiB}} {
		v := float64(b) / float64(u.size)
		if v < 999.5/1024 { // the next unit needs at most three digits
			continue
		}
		if v < 9.95 && b%u.size != 0 {
			return fmt.Sprintf("%.1f%s", v, u.letter)
		}
		return fmt.Sprintf("%.0f%s", v, u.letter)
	}
	return fmt.Sprintf("%dB", uint64(b))
}

// cpus shows a number of CPUs in at most five cells.
func cpus(n float64) string {
	if n < 99.95 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// traffic shows MB (10^6 bytes) a second; "-" where it is not measured.
func traffic(mbps float64) string {
	switch {
	case mbps <= 0:
		return "-"
	case mbps >= 1000:
		return fmt.Sprintf("%.1fGB/s", mbps/1000)
	}
	return fmt.Sprintf("%.0fMB/s", mbps)
}

// span shows a duration in its greatest unit: "4s", "12m", "3h", "5d".
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// remaining shows how long something lasts, rounded up: "2h", "1h31m", "12m",
// and by the second within the last minute.
func remaining(d time.Duration) string {
	unit := time.Minute
	if d < time.Minute {
		unit = time.Second
	}
	return length((max(d, 0) + unit - 1).Truncate(unit))
}

// length shows a duration as vmStates write it: "30m", "1h30m".
func length(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// fine shows a duration of work with two digits: "3.1ms", "850us".
func fine(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%dus", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// number shows a measured value without needless digits.
func number(v float64) string { return fmt.Sprintf("%.3g", v) }

// byNode shows memory per node in a number of cells: "0:12G 3:512M". If they
// are too few, it shows the nodes with most memory, and the number of the
// others.
func byNode(memory topology.MemoryByNode, width int) string {
	nodes := memory.Nodes()
	if len(nodes) == 0 {
		return "-"
	}
	most := slices.Clone(nodes)
	slices.SortStableFunc(most, func(a, b topology.NodeID) int { return cmp.Compare(memory[b], memory[a]) })
	for shown := len(nodes); ; shown-- {
		var parts []string
		for _, n := range nodes {
			if slices.Contains(most[:shown], n) {
				parts = append(parts, fmt.Sprintf("%d:%s", n, short(memory[n])))
			}
		}
		if shown < len(nodes) {
			parts = append(parts, fmt.Sprintf("+%d", len(nodes)-shown))
		}
		if text := strings.Join(parts, " "); len(text) <= width || shown == 1 {
			return text
		}
	}
}
