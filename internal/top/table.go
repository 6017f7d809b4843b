package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// table is one pane: rows of cells under columns, drawn as wide and high as the
// screen allows. The library's own table has columns of fixed width and rows
// without tones, so top has its own.
type table struct {
	name    string
	columns []column
	rows    []row
}

type column struct {
	title string
	// width is the least number of cells, most the largest width; 0: the column
	// does not grow.
	width, most int
	// rank is the order in which columns are dropped on a narrow screen: the
	// greatest first. 0 stays.
	rank  int
	right bool // right-aligned, for figures
	fixed bool // nothing to sort by
	// high says that sorting begins with the greatest.
	high bool
}

// row is one object. Its key identifies it while rows come, go and change
// places.
type row struct {
	key   string
	cells []cell // by column
}

type cell struct {
	text string
	// draw returns the text for a given width instead.
	draw func(width int) string
	tone tone
	// order is the sort value of rows; if it is equal, the text decides.
	order float64
}

// sorting is the column by which rows are sorted; the zero value is the first.
type sorting struct {
	column  int
	reverse bool
}

// arranged returns the rows that contain the filter's text, sorted.
func (t *table) arranged(by sorting, filter string) []row {
	var rows []row
	for _, r := range t.rows {
		if r.holds(filter) {
			rows = append(rows, r)
		}
	}
	if by.column >= len(t.columns) || t.columns[by.column].fixed {
		return rows
	}
	sign := 1
	if t.columns[by.column].high != by.reverse {
		sign = -1
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		x, y := a.cells[by.column], b.cells[by.column]
		return sign * cmp.Or(cmp.Compare(x.order, y.order), strings.Compare(x.text, y.text))
	})
	return rows
}

func (r *row) holds(filter string) bool {
	if filter == "" || strings.Contains(strings.ToLower(r.key), strings.ToLower(filter)) {
		return true
	}
	return slices.ContainsFunc(r.cells, func(c cell) bool {
		return strings.Contains(strings.ToLower(c.text), strings.ToLower(filter))
	})
}

// widths returns the width of each column on a screen of a given width; -1: no
// room for it. Columns of the greatest rank are dropped first; then the columns
// that grow share the rest.
func (t *table) widths(screen int) []int {
	widths := make([]int, len(t.columns))
	total := -1
	for i, c := range t.columns {
		widths[i] = c.width
		total += c.width + 1
	}
	for total > screen {
		last := -1
		for i, c := range t.columns {
			if widths[i] >= 0 && c.rank > 0 && (last < 0 || c.rank >= t.columns[last].rank) {
				last = i
			}
		}
		if last < 0 {
			return widths
		}
		total -= widths[last] + 1
		widths[last] = -1
	}
	for grown := true; total < screen && grown; {
		grown = false
		for i, c := range t.columns {
			if widths[i] >= 0 && widths[i] < c.most && total < screen {
				widths[i]++
				total++
				grown = true
			}
		}
	}
	return widths
}

// heading is the line above the rows: the pane's name in its first column, the
// number of shown rows, and the sorted column.
func (t *table) heading(widths []int, by sorting, shown string) string {
	var parts []string
	for i, c := range t.columns {
		if widths[i] < 0 {
			continue
		}
		title := c.title
		if i == 0 && shown != "" {
			title += " " + shown
		}
		if i == by.column && !c.fixed {
			sign := "▲"
			if c.high != by.reverse {
				sign = "▼"
			}
			title = strings.TrimRight(fit(title, min(widths[i]-1, len(title))), " ") + sign
		}
		if c.right {
			parts = append(parts, fitRight(title, widths[i]))
		} else {
			parts = append(parts, fit(title, widths[i]))
		}
	}
	return strings.Join(parts, " ")
}

// line draws one row; without tones if it is selected, so that the whole row
// stands out.
func (t *table) line(r row, widths []int, toned bool) string {
	var parts []string
	for i, c := range r.cells {
		if widths[i] < 0 {
			continue
		}
		text := c.text
		if c.draw != nil {
			text = c.draw(widths[i])
		}
		if t.columns[i].right {
			text = fitRight(text, widths[i])
		} else {
			text = fit(text, widths[i])
		}
		if toned {
			text = c.tone.render(text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

// window returns which rows to show in a number of lines: those around the
// selected one.
func window(rows, lines, chosen int) (first, end int) {
	first = max(0, min(chosen-lines/2, rows-lines))
	return first, min(rows, first+lines)
}

// shown describes a window: "200", "3-9/200".
func shown(first, end, rows int) string {
	if end-first == rows || end == first {
		return fmt.Sprint(rows)
	}
	return fmt.Sprintf("%d-%d/%d", min(first+1, end), end, rows)
}
