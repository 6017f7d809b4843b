package place

import "slices"

// assignment finds the cheapest one-to-one choice of columns for rows: the
// bound for cells of several kinds that all want the same few slots. It is
// the Hungarian method with potentials, O(rows^2 columns); its memory is kept
// from call to call.
type assignment struct {
	u, v, least []key
	row, from   []int
	done        []bool
}

// solve returns the least sum; impossible where no choice avoids impossible
// entries. Invariant: rows are of equal length, and no more than columns.
func (a *assignment) solve(cost [][]key) key {
	rows, columns := len(cost), len(cost[0])
	a.reset(rows, columns)
	for i := 1; i <= rows; i++ {
		a.row[0] = i
		last := a.augment(cost, columns)
		if last < 0 {
			return impossible
		}
		for last != 0 {
			a.row[last] = a.row[a.from[last]]
			last = a.from[last]
		}
	}
	total := key(0)
	for j := 1; j <= columns; j++ {
		if i := a.row[j]; i != 0 {
			total += cost[i-1][j-1]
		}
	}
	return total
}

// reset makes room; index 0 of rows and columns stands for none.
func (a *assignment) reset(rows, columns int) {
	a.u = slices.Grow(a.u[:0], rows+1)[:rows+1]
	a.v = slices.Grow(a.v[:0], columns+1)[:columns+1]
	a.least = slices.Grow(a.least[:0], columns+1)[:columns+1]
	a.row = slices.Grow(a.row[:0], columns+1)[:columns+1]
	a.from = slices.Grow(a.from[:0], columns+1)[:columns+1]
	a.done = slices.Grow(a.done[:0], columns+1)[:columns+1]
	clear(a.u)
	clear(a.v)
	clear(a.row)
}

// augment finds the cheapest way from the row in row[0] to a free column and
// returns that column; -1 if there is none.
func (a *assignment) augment(cost [][]key, columns int) int {
	for j := range a.least {
		a.least[j] = impossible
		a.done[j] = false
	}
	at := 0
	for a.row[at] != 0 {
		a.done[at] = true
		i, next, delta := a.row[at], 0, impossible
		for j := 1; j <= columns; j++ {
			if a.done[j] {
				continue
			}
			if c := cost[i-1][j-1]; c < impossible {
				if reduced := c - a.u[i] - a.v[j]; reduced < a.least[j] {
					a.least[j], a.from[j] = reduced, at
				}
			}
			if a.least[j] < delta {
				delta, next = a.least[j], j
			}
		}
		if delta >= impossible {
			return -1
		}
		for j := 0; j <= columns; j++ {
			if a.done[j] {
				a.u[a.row[j]] += delta
				a.v[j] -= delta
			} else if a.least[j] < impossible {
				a.least[j] -= delta
			}
		}
		at = next
	}
	return at
}
