package place

import "slices"

// assignment finds the cheapest one-to-one choice of columns for rows. It is
// the Hungarian method with potentials, by shortest augmenting paths, O(rows^2
// columns). Calls reuse its memory.
type assignment struct {
	column []int // by row: the column chosen
	rows   []row
	u, v   []key // potentials of rows and columns
	holder []int // by column: its row, -1: none
	least  []key // by column: shortest way to it from the row that needs a column
	from   []int // by column: the row before it on that way
	done   []bool
	path   []int // columns done
	ahead  []int // columns reached and not done
}

// row is the costs of one row by column, and the columns it may have.
type row struct {
	cost    []key
	columns []int
}

// solve returns the least sum; impossible where the rows cannot all have a
// column. Invariant: costs of columns that a row may have are possible.
func (a *assignment) solve(rows []row, columns int) key {
	a.reset(rows, columns)
	total := key(0)
	for i := range rows {
		if !a.takeFree(i) && !a.augment(i) {
			return impossible
		}
	}
	for i, j := range a.column {
		total += rows[i].cost[j]
	}
	return total
}

// reduced is the least growth of the sum if row i has column j.
func (a *assignment) reduced(i, j int) key { return a.rows[i].cost[j] - a.u[i] - a.v[j] }

// spare is the least growth of the sum if no row has a column from begin up to end.
func (a *assignment) spare(begin, end int) (sum key) {
	for _, v := range a.v[begin:end] {
		sum -= v
	}
	return sum
}

func (a *assignment) reset(rows []row, columns int) {
	a.rows = rows
	if cap(a.column) < len(rows) || len(a.v) < columns {
		a.column, a.u = make([]int, len(rows)), make([]key, len(rows))
		a.v, a.least = make([]key, columns), slices.Repeat([]key{impossible}, columns)
		a.from, a.holder, a.done = make([]int, columns), make([]int, columns), make([]bool, columns)
	}
	a.column, a.u = a.column[:len(rows)], a.u[:len(rows)]
	clear(a.v)
	for j := range a.holder {
		a.holder[j] = -1
	}
}

// takeFree gives row i its cheapest column if it is free.
func (a *assignment) takeFree(i int) bool {
	r, low, at := &a.rows[i], impossible, -1
	for _, j := range r.columns {
		if c := r.cost[j] - a.v[j]; c < low {
			low, at = c, j
		}
	}
	if at < 0 || a.holder[at] >= 0 {
		return false
	}
	a.u[i], a.holder[at], a.column[i] = low, i, at
	return true
}

// augment finds the cheapest way from row i to a free column, over rows that change
// their column; false if none exists.
func (a *assignment) augment(i int) bool {
	a.path, a.ahead, a.u[i] = a.path[:0], a.ahead[:0], 0
	at, low := i, key(0)
	for at >= 0 {
		a.relax(at, low)
		if len(a.ahead) == 0 {
			a.forget()
			return false
		}
		next := 0
		for n, j := range a.ahead {
			if a.least[j] < a.least[a.ahead[next]] {
				next = n
			}
		}
		j := a.ahead[next]
		a.ahead[next] = a.ahead[len(a.ahead)-1]
		a.ahead = a.ahead[:len(a.ahead)-1]
		a.path, a.done[j] = append(a.path, j), true
		at, low = a.holder[j], a.least[j]
	}
	a.u[i] = low
	last := len(a.path) - 1
	for _, j := range a.path[:last] {
		a.u[a.holder[j]] += low - a.least[j]
		a.v[j] -= low - a.least[j]
	}
	a.hand(a.path[last], i)
	a.forget()
	return true
}

// relax extends the paths from a row at distance low from the start.
func (a *assignment) relax(at int, low key) {
	r := &a.rows[at]
	base := low - a.u[at]
	for _, j := range r.columns {
		d := base + r.cost[j] - a.v[j]
		if d >= a.least[j] || a.done[j] {
			continue
		}
		if a.least[j] == impossible {
			a.ahead = append(a.ahead, j)
		}
		a.least[j], a.from[j] = d, at
	}
}

// hand gives a free column to the row before it, gives that row's column to the row
// before that, and so on up to the first.
func (a *assignment) hand(column, first int) {
	for {
		r := a.from[column]
		a.holder[column] = r
		column, a.column[r] = a.column[r], column
		if r == first {
			return
		}
	}
}

// forget clears the ways found.
func (a *assignment) forget() {
	for _, j := range a.path {
		a.least[j], a.done[j] = impossible, false
	}
	for _, j := range a.ahead {
		a.least[j] = impossible
	}
}
