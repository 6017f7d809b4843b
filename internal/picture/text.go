package picture

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	boxWidth = 37 // columns of a node's box; two boxes fit in 80 columns
	memBar   = 16 // columns of the memory bar
)

// Text draws the host in at most width columns, or in one column of boxes where the screen is narrower.
func Text(inv *inventory.Host, width int) string {
	var b strings.Builder
	fmt.Fprintln(&b, summary(inv))
	perRow := max(1, (width+1)/(boxWidth+1))
	for _, s := range socketsOf(inv) {
		b.WriteString("\n")
		if s.several {
			fmt.Fprintln(&b, s.title())
		}
		for i := 0; i < len(s.nodes); i += perRow {
			writeBoxes(&b, s.nodes[i:min(i+perRow, len(s.nodes))])
		}
	}
	if len(inv.Topology.Nodes) > 1 {
		writeDistances(&b, &inv.Topology)
	}
	return b.String()
}

// writeBoxes draws nodes side by side, all boxes as high as the highest.
func writeBoxes(b *strings.Builder, nodes []node) {
	boxes := make([][]string, len(nodes))
	height := 0
	for i := range nodes {
		boxes[i] = content(&nodes[i])
		height = max(height, len(boxes[i]))
	}
	line := func(part func(i int) string) {
		parts := make([]string, len(nodes))
		for i := range nodes {
			parts[i] = part(i)
		}
		fmt.Fprintln(b, strings.Join(parts, " "))
	}
	line(func(i int) string {
		title := "┌ " + nodes[i].title() + " "
		return title + strings.Repeat("─", boxWidth-1-ansi.StringWidth(title)) + "┐"
	})
	for row := range height {
		line(func(i int) string {
			words := ""
			if row < len(boxes[i]) {
				words = boxes[i][row]
			}
			return "│ " + fit(words, boxWidth-4) + " │"
		})
	}
	line(func(int) string { return "└" + strings.Repeat("─", boxWidth-2) + "┘" })
}

// content gives the lines within a node's box.
func content(n *node) []string {
	lines := append([]string{}, n.cpus...)
	if len(n.cpus) > 0 {
		lines = append(lines, n.cores)
	}
	if n.memory > 0 {
		lines = append(lines, bar(n.used)+" "+n.percent(), n.usage)
	}
	lines = append(append(lines, n.pools...), n.device...)
	for _, v := range n.vms {
		lines = append(lines, "VM "+v.line())
	}
	return lines
}

// bar draws a share from 0 to 1.
func bar(share float64) string {
	full := min(int(share*memBar+0.5), memBar)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", memBar-full) + "]"
}

// fit cuts or pads a line to a width in columns. A cut shows as an ellipsis.
func fit(words string, width int) string {
	cut := ansi.Truncate(words, width, "…")
	return cut + strings.Repeat(" ", width-ansi.StringWidth(cut))
}

func writeDistances(b *strings.Builder, t *topology.Topology) {
	heading, rows := distances(t)
	widest := 0
	for _, row := range rows {
		for _, cell := range row {
			widest = max(widest, len(cell))
		}
	}
	fmt.Fprintf(b, "\n%s\n", text.Visible(heading))
	for _, row := range rows {
		for _, cell := range row {
			fmt.Fprintf(b, "%*s ", widest+1, cell)
		}
		fmt.Fprintln(b)
	}
}
