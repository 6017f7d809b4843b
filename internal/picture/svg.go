package picture

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Sizes in pixels.
const (
	svgBox     = 290 // width of a node's box
	svgLine    = 18  // height of a line of text
	svgPad     = 12
	svgPerRow  = 4
	svgBarHigh = 10
	svgCell    = 44 // width of a cell of the distance matrix
)

// Colours: of a socket, a node, memory in use and free, a VM.
const (
	svgSocket = "#eef2f6"
	svgNode   = "#ffffff"
	svgUsed   = "#4878a8"
	svgFree   = "#d8e2ec"
	svgEdge   = "#8899aa"
	svgVM     = "#fff1d6"
)

// SVG draws the host as a self-contained SVG document.
func SVG(inv *inventory.Host) string {
	d := &drawing{}
	d.text(svgPad, 26, 16, "bold", summary(inv))
	y := 40
	width := 0
	for _, s := range socketsOf(inv) {
		right, bottom := d.socket(&s, y)
		width, y = max(width, right), bottom+svgPad
	}
	if len(inv.Topology.Nodes) > 1 {
		right, bottom := d.distances(inv, y)
		width, y = max(width, right), bottom
	}
	width, y = max(width, 700)+svgPad, y+svgPad
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/>`+"\n%s</svg>\n",
		width, y, width, y, d.b.String())
}

type drawing struct{ b strings.Builder }

// rect draws a box with round corners.
func (d *drawing) rect(x, y, width, height int, fill, stroke string) {
	fmt.Fprintf(&d.b, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="%s"/>`+"\n",
		x, y, width, height, fill, stroke)
}

// text writes a line; y is its baseline. Names come from VMs and devices, so it is escaped.
func (d *drawing) text(x, y, size int, weight, words string) {
	fmt.Fprintf(&d.b, `<text x="%d" y="%d" font-size="%d" font-weight="%s">`, x, y, size, weight)
	xml.EscapeText(&d.b, []byte(words)) //nolint:errcheck // a strings.Builder does not fail
	d.b.WriteString("</text>\n")
}

// socket draws a socket with its nodes, four in a row, and returns its right and bottom edge.
func (d *drawing) socket(s *socket, y int) (right, bottom int) {
	rows := [][]node{}
	for i := 0; i < len(s.nodes); i += svgPerRow {
		rows = append(rows, s.nodes[i:min(i+svgPerRow, len(s.nodes))])
	}
	heading := svgPad
	if s.several {
		heading += svgLine
	}
	high := heading
	for _, row := range rows {
		high += rowHeight(row) + svgPad
	}
	right = svgPad + min(len(s.nodes), svgPerRow)*(svgBox+svgPad) + svgPad
	d.rect(svgPad, y, right-svgPad, high, svgSocket, svgEdge)
	if s.several {
		d.text(2*svgPad, y+svgLine, 13, "bold", s.title())
	}
	top := y + heading
	for _, row := range rows {
		for i := range row {
			d.node(&row[i], 2*svgPad+i*(svgBox+svgPad), top, rowHeight(row))
		}
		top += rowHeight(row) + svgPad
	}
	return right, y + high
}

// rowHeight is the height of the highest node of a row.
func rowHeight(row []node) int {
	most := 0
	for i := range row {
		n := &row[i]
		lines := 1 + len(n.cpus) + len(n.pools) + len(n.device) + len(n.vms)
		if len(n.cpus) > 0 {
			lines++
		}
		if n.memory > 0 {
			lines += 2
		}
		most = max(most, lines*svgLine+svgPad)
	}
	return most
}

func (d *drawing) node(n *node, x, y, high int) {
	d.rect(x, y, svgBox, high, svgNode, svgEdge)
	y += svgLine
	line := func(words string) { d.text(x+svgPad, y, 12, "normal", fitSVG(words)); y += svgLine }
	d.text(x+svgPad, y, 12, "bold", n.title())
	y += svgLine
	for _, c := range n.cpus {
		line(c)
	}
	if len(n.cpus) > 0 {
		line(n.cores)
	}
	if n.memory > 0 {
		inner := svgBox - 2*svgPad
		d.rect(x+svgPad, y-svgBarHigh, inner, svgBarHigh, svgFree, "none")
		d.rect(x+svgPad, y-svgBarHigh, int(n.used*float64(inner)), svgBarHigh, svgUsed, "none")
		y += svgLine
		line(n.percent() + ": " + n.usage)
	}
	for _, words := range append(append([]string{}, n.pools...), n.device...) {
		line(words)
	}
	for _, v := range n.vms {
		d.rect(x+svgPad/2, y-svgLine+5, svgBox-svgPad, svgLine-2, svgVM, "none")
		line("VM " + v.line())
	}
}

// fitSVG cuts a line that would leave its box; about 6 pixels a character.
func fitSVG(words string) string {
	const most = (svgBox - 2*svgPad) / 6
	if r := []rune(words); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return words
}

// distances draws the matrix; near pairs are light, far ones dark.
func (d *drawing) distances(inv *inventory.Host, y int) (right, bottom int) {
	heading, rows := distances(&inv.Topology)
	d.text(svgPad, y+svgLine, 13, "bold", heading)
	y += svgLine + svgPad
	for i, row := range rows {
		for j, cell := range row {
			x := svgPad + j*svgCell
			if i > 0 && j > 0 {
				from, to := &inv.Topology.Nodes[i-1], inv.Topology.Nodes[j-1].ID
				d.rect(x, y, svgCell-2, svgLine, classColour(string(from.Classes[to])), "none")
			}
			d.text(x+6, y+13, 12, map[bool]string{true: "bold", false: "normal"}[i == 0 || j == 0], cell)
		}
		y += svgLine + 2
	}
	return svgPad + len(rows)*svgCell, y
}

// classColour is the colour of a distance class.
func classColour(class string) string {
	switch class {
	case "local":
		return "#e3f2e1"
	case "neighbour":
		return "#fdf3c8"
	case "remote":
		return "#f8d3c5"
	}
	return "#eeeeee"
}
