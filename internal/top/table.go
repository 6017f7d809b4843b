package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// table is one pane: rows of cells under columns, which is drawn as wide and
// high as there is room. The library's own table has columns of fixed width and
// rows without tones, so this is ours.
type table struct {
	name    string
	columns []column
	rows    []row
}

type column struct {
	title string
	// width is how many cells it takes at least, most up to how many it grows; 0: it does not.
	width, most int
	// rank says how early it goes where the screen is narrow: the greatest first. 0 stays.
	rank  int
	right bool // figures stand at the right
	fixed bool // nothing to sort by
	// high says that sorting begins with the greatest.
	high bool
}

// row is one object. Its key names it while rows come, go and change places.
type row struct {
	key   string
	cells []cell // by column
}

type cell struct {
	text string
	// draw makes the text for a width instead.
	draw func(width int) string
	tone tone
	// order is what rows are sorted by; where it is equal, the text.
	order float64
}

// sorting is by which column rows are sorted; the zero value is by the first.
type sorting struct {
	column  int
	reverse bool
}

// arranged returns the rows that hold the filter's text, sorted.
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

// widths says how wide each column is on a screen so wide; -1: there is no room
// for it. First those of the greatest rank go, then what is left over goes to
// columns that grow, in turns.
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

// heading is the line above the rows: the pane's name in its first column,
// which rows are shown of how many, and by which column they are sorted.
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

// line draws one row; without tones if it is chosen, so that it stands out whole.
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

// window says which rows are shown in so many lines: those around the chosen one.
func window(rows, lines, chosen int) (first, end int) {
	first = max(0, min(chosen-lines/2, rows-lines))
	return first, min(rows, first+lines)
}

// shown tells of a window: "200", "3-9/200".
func shown(first, end, rows int) string {
	if end-first == rows || end == first {
		return fmt.Sprint(rows)
	}
	return fmt.Sprintf("%d-%d/%d", min(first+1, end), end, rows)
}
