package place

import "testing"

// If the search treated different groups as exchangeable, it would skip
// assignments that differ and could miss the optimum. Each figure that differs
// must make two groups unlike.
func TestGroups_AlikeComparesEveryFigure(t *testing.T) {
	const other, a, b, n = 0, 1, 2, 3
	alikeGroups := func() *groups {
		return &groups{
			count: n,
			from:  []int{0, 1, 3, 5}, // the other group has one slot
			way: []int64{
				7, 4, 4,
				3, 1, 2,
				3, 2, 1,
			},
			apart: []bool{
				false, true, true,
				true, false, false,
				true, false, false,
			},
			covers: []uint64{2, 1, 1},
			split:  []bool{false, true, true},
		}
	}
	if g := alikeGroups(); !g.alike(a, b) || !g.alike(b, a) {
		t.Error("equal groups are not alike")
	}
	for name, change := range map[string]func(*groups){
		"first has fewer slots":            func(g *groups) { g.from = []int{0, 1, 2, 4} },
		"first has more slots":             func(g *groups) { g.from = []int{0, 1, 3, 4} },
		"required nodes":                   func(g *groups) { g.covers[b] = 3 },
		"whole or split":                   func(g *groups) { g.split[b] = false },
		"way within the group":             func(g *groups) { g.way[b*n+b] = 9 },
		"way from one to the other":        func(g *groups) { g.way[a*n+b] = 9 },
		"way to the other group":           func(g *groups) { g.way[b*n+other] = 9 },
		"way from the other group":         func(g *groups) { g.way[other*n+b] = 9 },
		"apart from the other group":       func(g *groups) { g.apart[b*n+other] = false },
		"apart from each other in one way": func(g *groups) { g.apart[a*n+b] = true },
	} {
		t.Run(name, func(t *testing.T) {
			g := alikeGroups()
			change(g)
			if g.alike(a, b) || g.alike(b, a) {
				t.Error("groups that differ are alike")
			}
		})
	}
}
