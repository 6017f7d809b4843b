package place

import "math/bits"

// nest is a set of slots with the same ways to and from every slot outside: one slot, or two
// nests. The access cost between two nests therefore depends only on the number of cells of each kind
// in them, and so does the least cost of a nest: a table of all numbers of cells is exact.
type nest struct {
	column int // the slot, of a nest of one
	group  int // the group of one of the slots: it has the nest's ways to other nests
	slots  int
	halves [2]*nest
	least  []key // by counts, see nesting; impossible where the slots do not hold these cells
	held   []int // the counts that they hold, ascending
}

// nesting is the search over nests. Numbers of cells of each kind are one number, counts: that
// of kind k counts unit[k].
type nesting struct {
	*search
	unit []int
	in   [][]int // by counts: the number of cells of each kind
	kind []int   // by counts: the first kind of which there are cells
	// packed holds the counts in fields, whose highest bit the sum with over gets where the
	// guest has fewer cells: those bits are tooMany.
	packed        []uint64
	over, tooMany uint64
	ways          []key // by counts: access cost of these cells to those of another nest
}

// Limits of the search over nests: beyond them branch and bound is faster, or as good.
const (
	mostCounts = 1 << 12
	mostNested = 4000 // steps
)

// solveNested searches all answers by the counts of nests, and reports whether it could: slots
// whose ways have no such order are left to branch and bound, and so are many kinds of cells.
func (s *search) solveNested() bool {
	if !s.unconditional() {
		return false
	}
	n := &nesting{search: s}
	all, ok := n.list()
	if !ok {
		return false
	}
	root := s.nests()
	if root == nil {
		return false
	}
	steps := 1 + n.work(root)/stepSize
	if steps > min(s.steps, mostNested) {
		return false
	}
	s.steps -= steps
	s.used += steps
	n.fill(root)
	if cost := root.least[all]; cost < s.best {
		at := make([][]int, len(s.kinds))
		n.trace(root, all, at)
		s.best, s.found = cost, s.found[:0]
		for _, columns := range at {
			s.found = append(s.found, columns...)
		}
	}
	return true
}

// list lists all numbers of cells and returns the counts of all cells; false if there are too many.
func (n *nesting) list() (all int, ok bool) {
	size := 1
	for k := range n.kinds {
		n.unit = append(n.unit, size)
		if size *= len(n.kinds[k].cells) + 1; size > mostCounts {
			return 0, false
		}
	}
	n.in, n.kind = make([][]int, size), make([]int, size)
	n.packed, n.ways = make([]uint64, size), make([]key, size)
	flat := make([]int, size*len(n.kinds))
	for c := range n.in {
		n.in[c], flat = flat[:len(n.kinds)], flat[len(n.kinds):]
		for k := range n.kinds {
			n.in[c][k] = c / n.unit[k] % (len(n.kinds[k].cells) + 1)
			if c >= n.unit[k] {
				n.kind[c] = k
			}
		}
	}
	n.pack()
	return size - 1, true
}

// pack prepares the test whether the guest has the cells of two nests.
func (n *nesting) pack() {
	at := 0
	for k := range n.kinds {
		cells := len(n.kinds[k].cells)
		width := bits.Len(uint(cells))
		for c := range n.in {
			n.packed[c] |= uint64(n.in[c][k]) << at
		}
		n.over |= uint64(1<<width-1-cells) << at
		n.tooMany |= 1 << (at + width)
		at += width + 1
	}
}

// exceeds reports whether the guest has fewer cells than two counts together.
func (n *nesting) exceeds(a, b int) bool { return (n.packed[a]+n.packed[b]+n.over)&n.tooMany != 0 }

// nests joins the slots to nests and these to larger ones; nil if the ways of some have no such order.
func (s *search) nests() *nest {
	var all []*nest
	for g := range s.count {
		whole := &nest{column: s.from[g], group: g, slots: 1}
		for column := s.from[g] + 1; column < s.from[g+1]; column++ {
			whole = joined(whole, &nest{column: column, group: g, slots: 1})
		}
		all = append(all, whole)
	}
	for len(all) > 1 {
		i, j := s.twins(all)
		if i < 0 {
			return nil
		}
		all[i] = joined(all[i], all[j])
		all = append(all[:j], all[j+1:]...)
	}
	return all[0]
}

// joined makes a nest of two. The second half is the smaller one: fill computes prices for each of its counts.
func joined(a, b *nest) *nest {
	if a.slots < b.slots {
		a, b = b, a
	}
	return &nest{group: a.group, slots: a.slots + b.slots, halves: [2]*nest{a, b}}
}

// twins returns two nests with the same ways to and from all others; -1 if there are none.
func (s *search) twins(all []*nest) (i, j int) {
	for j := range all {
		for i := range j {
			if s.twin(all, i, j) {
				return i, j
			}
		}
	}
	return -1, -1
}

func (s *search) twin(all []*nest, i, j int) bool {
	a, b, n := all[i].group, all[j].group, s.count
	for k, other := range all {
		x := other.group
		if k != i && k != j && (s.way[a*n+x] != s.way[b*n+x] || s.way[x*n+a] != s.way[x*n+b] ||
			s.apart[a*n+x] != s.apart[b*n+x]) {
			return false
		}
	}
	return true
}

// work is the number of prices that fill computes at most, each of which it uses once at most.
func (n *nesting) work(t *nest) int {
	within := make([]int, len(n.kindAt)+1) // by number of cells: how many counts have that many or fewer
	for _, in := range n.in {
		cells := 0
		for _, c := range in {
			cells += c
		}
		within[cells]++
	}
	for i := range len(within) - 1 {
		within[i+1] += within[i]
	}
	var sum func(t *nest) int
	sum = func(t *nest) int {
		if t.halves[0] == nil {
			return len(n.kinds)
		}
		a, b := t.halves[0], t.halves[1]
		return sum(a) + sum(b) + len(n.in)*within[min(b.slots, len(n.kindAt))]
	}
	return sum(t)
}

// fill computes the least cost of a nest for all counts.
func (n *nesting) fill(t *nest) {
	t.least = make([]key, len(n.in))
	for c := range t.least {
		t.least[c] = impossible
	}
	if t.halves[0] == nil {
		t.least[0] = 0
		for k, unit := range n.unit {
			t.least[unit] = n.single[k][t.column]
		}
	} else {
		n.fill(t.halves[0])
		n.fill(t.halves[1])
		n.join(t)
	}
	for c, cost := range t.least {
		if cost < impossible {
			t.held = append(t.held, c)
		}
	}
}

// join computes the least cost of a nest from those of its halves.
func (n *nesting) join(t *nest) {
	a, b := t.halves[0], t.halves[1]
	for _, cb := range b.held {
		n.price(a, b, cb)
		for _, ca := range a.held {
			if !n.exceeds(ca, cb) {
				t.least[ca+cb] = min(t.least[ca+cb], a.least[ca]+b.least[cb]+n.ways[ca])
			}
		}
	}
}

// price computes the access cost between all counts of cells in nest a and the given ones in nest b.
func (n *nesting) price(a, b *nest, counts int) {
	each := make([]key, len(n.kinds)) // of one cell in a
	for k := range each {
		for l, cells := range n.in[counts] {
			each[k] += key(cells) * n.pair(k, a.group, l, b.group)
		}
	}
	apart := counts > 0 && n.apart[a.group*n.count+b.group]
	for c := 1; c < len(n.ways); c++ {
		k := n.kind[c]
		if n.ways[c] = n.ways[c-n.unit[k]] + each[k]; apart {
			n.ways[c] = impossible
		}
	}
}

// trace adds the columns of the least cost, by kind; among equals as many cells as possible are in
// the first half.
func (n *nesting) trace(t *nest, counts int, at [][]int) {
	a, b := t.halves[0], t.halves[1]
	if a == nil {
		for k, unit := range n.unit {
			if counts == unit {
				at[k] = append(at[k], t.column)
			}
		}
		return
	}
	for i := len(a.held) - 1; i >= 0; i-- {
		ca := a.held[i]
		cb := counts - ca
		if cb < 0 || b.least[cb] >= impossible {
			continue
		}
		n.price(a, b, cb)
		if !n.exceeds(ca, cb) && a.least[ca]+b.least[cb]+n.ways[ca] == t.least[counts] {
			n.trace(a, ca, at)
			n.trace(b, cb, at)
			return
		}
	}
}
