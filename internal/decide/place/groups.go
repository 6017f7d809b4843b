package place

import "slices"

// groups are sets of slots with equal distances to all other slots and to each
// other: the slots of a group differ only in the cost of a cell by itself.
type groups struct {
	count   int
	groupOf []int    // by column
	from    []int    // by group: its first column; one more than there are groups
	way     []int64  // group by group: weighted price, not scaled by traffic; see problem.way
	apart   []bool   // group by group: a guest may not use both
	class   []int    // while empty, groups of one class are interchangeable
	covers  []uint64 // nodes in the group that the guest must have
	split   []bool   // takes two nodes
}

// form groups the slots and returns their order in columns.
func (g *groups) form(p *problem, slots []slot) (order []int) {
	d := newDistances(p, slots)
	var members [][]int
	for i := range slots {
		k := slices.IndexFunc(members, func(m []int) bool { return d.same(m[0], i) })
		if k < 0 {
			k = len(members)
			members = append(members, nil)
		}
		members[k] = append(members[k], i)
	}
	n := len(members)
	g.count = n
	g.way, g.apart = make([]int64, n*n), make([]bool, n*n)
	for a, m := range members {
		g.from = append(g.from, len(order))
		order = append(order, m...)
		for range m {
			g.groupOf = append(g.groupOf, a)
		}
		g.covers = append(g.covers, d.covers[m[0]])
		g.split = append(g.split, !slots[m[0]].whole())
		for b, other := range members {
			to := other[0]
			if a == b {
				to = m[len(m)-1]
			}
			g.way[a*n+b], g.apart[a*n+b] = d.way[m[0]*d.n+to], d.apart[m[0]*d.n+to]
		}
	}
	g.from = append(g.from, len(order))
	return order
}

// distances are the properties that define groups, slot by slot.
type distances struct {
	n      int
	way    []int64
	apart  []bool
	covers []uint64
	slots  []slot
}

func newDistances(p *problem, slots []slot) *distances {
	n := len(slots)
	d := &distances{n: n, way: make([]int64, n*n), apart: make([]bool, n*n), covers: make([]uint64, n), slots: slots}
	for i, a := range slots {
		for j, b := range slots {
			if i == j {
				continue
			}
			d.apart[i*n+j] = !p.together(a, b)
			if !d.apart[i*n+j] {
				d.way[i*n+j] = int64(p.way(a, b))
			}
		}
	}
	bit := uint64(1)
	for node := range p.required.All() {
		for i, a := range slots {
			if p.nodes[a.cpu].node.ID == node || p.nodes[a.mem].node.ID == node {
				d.covers[i] |= bit
			}
		}
		bit <<= 1
	}
	return d
}

// same reports whether slots i and j belong to one group. If so, all ways within
// the group are equal, since each of them is also a way between one slot and the
// others.
func (d *distances) same(i, j int) bool {
	n := d.n
	if d.apart[i*n+j] || d.way[i*n+j] != d.way[j*n+i] ||
		d.covers[i] != d.covers[j] || d.slots[i].whole() != d.slots[j].whole() {
		return false
	}
	for x := range n {
		if x != i && x != j &&
			(d.way[i*n+x] != d.way[j*n+x] || d.way[x*n+i] != d.way[x*n+j] || d.apart[i*n+x] != d.apart[j*n+x]) {
			return false
		}
	}
	return true
}

// classify finds interchangeable groups: groups with the same ways, where every slot
// of one has a slot of the other with the same prices.
func (g *groups) classify(single [][]key) {
	g.class = make([]int, g.count)
	var first []int
	for a := range g.count {
		c := slices.IndexFunc(first, func(b int) bool { return g.alike(a, b) && g.pricedAlike(a, b, single) })
		if c < 0 {
			c = len(first)
			first = append(first, a)
		}
		g.class[a] = c
	}
}

func (g *groups) alike(a, b int) bool {
	n := g.count
	if g.from[a+1]-g.from[a] != g.from[b+1]-g.from[b] || g.covers[a] != g.covers[b] || g.split[a] != g.split[b] ||
		g.way[a*n+a] != g.way[b*n+b] || g.way[a*n+b] != g.way[b*n+a] || g.apart[a*n+b] != g.apart[b*n+a] {
		return false
	}
	for x := range n {
		if x != a && x != b &&
			(g.way[a*n+x] != g.way[b*n+x] || g.way[x*n+a] != g.way[x*n+b] || g.apart[a*n+x] != g.apart[b*n+x]) {
			return false
		}
	}
	return true
}

// pricedAlike pairs the slots of two groups of one size.
func (g *groups) pricedAlike(a, b int, single [][]key) bool {
	equal := func(i, j int) bool {
		for k := range single {
			if single[k][i] != single[k][j] {
				return false
			}
		}
		return true
	}
	left := make([]int, 0, g.from[b+1]-g.from[b])
	for j := g.from[b]; j < g.from[b+1]; j++ {
		left = append(left, j)
	}
	for i := g.from[a]; i < g.from[a+1]; i++ {
		at := slices.IndexFunc(left, func(j int) bool { return equal(i, j) })
		if at < 0 {
			return false
		}
		left = slices.Delete(left, at, at+1)
	}
	return true
}
