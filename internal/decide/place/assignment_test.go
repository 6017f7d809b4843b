package place

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAssignmentAgainstEnumeration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 4).Draw(t, "rows")
		columns := rapid.IntRange(rows, 6).Draw(t, "columns")
		cost := make([][]key, rows)
		for i := range cost {
			cost[i] = make([]key, columns)
			for j := range cost[i] {
				cost[i][j] = rapid.Int64Range(-5, 20).Draw(t, "cost")
				if rapid.IntRange(0, 3).Draw(t, "possible") == 3 {
					cost[i][j] = impossible
				}
			}
		}
		var a assignment
		for range 2 { // calls reuse the memory
			if got, want := a.solve(whole(cost), columns), enumerate(cost, 0, make([]bool, columns)); got != want {
				t.Fatalf("least sum %d, enumeration says %d", got, want)
			}
		}
	})
}

func enumerate(cost [][]key, row int, taken []bool) key {
	if row == len(cost) {
		return 0
	}
	best := impossible
	for j, c := range cost[row] {
		if taken[j] || c >= impossible {
			continue
		}
		taken[j] = true
		if rest := enumerate(cost, row+1, taken); rest < impossible {
			best = min(best, c+rest)
		}
		taken[j] = false
	}
	return best
}

// whole creates rows that may have every possible column.
func whole(cost [][]key) []row {
	var rows []row
	for _, c := range cost {
		r := row{cost: c}
		for j := range c {
			if c[j] < impossible {
				r.columns = append(r.columns, j)
			}
		}
		rows = append(rows, r)
	}
	return rows
}
