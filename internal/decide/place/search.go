package place

import (
	"math/bits"
	"slices"
)

// search chooses a slot for every cell of one division of the guest into cells, so
// that the sum of the single costs and of the access between cells is least (a
// quadratic assignment problem).
//
// Slots with equal distances to all other slots form a group, usually the nodes of
// a socket. The access cost between cells depends on their groups alone, and once
// these are known the best slots are a linear assignment. The search therefore
// branches over groups, the most demanding cell first, and leaves the slots to the
// assignment, which also bounds the cost of the missing cells.
//
// Here a slot is identified by its column: the slots of a group have adjacent columns.
type search struct {
	kinds   []demand
	load    [][]int64 // traffic, by kind and kind
	traffic []int64   // by kind: traffic of one cell with all others
	kindAt  []int     // by cell, in the order of kinds
	slots   int
	slot    []int   // by column: the slot of the division
	single  [][]key // by kind and column
	groups
	steps int // steps left
	used  int
	// side conditions, see condition
	must   uint64
	splits int // the largest number of slots with two nodes

	best  key
	found []int // column by cell; nil: none yet
	// open is a lower bound of the cost of the placements that were not examined: below
	// best only if the steps were used up.
	open key

	// The branch under examination.
	at      []placed
	missing []int      // by kind: cells not placed
	free    []int      // by group: slots not taken
	blocked []int      // by group: cells in groups that may not be combined with it
	access  []key      // by kind and group: access cost between one more cell there and those in at
	may     [][]bool   // by cells placed, then kind and group: whether a cell may go there
	pool    [][]choice // by cells placed

	bounds
	hungarian assignment
	trial     []int
}

// placed is a cell of a kind in a group.
type placed struct{ kind, group int }

// choice is a group that the next cell could use.
type choice struct {
	group int
	extra key // additional cost over the bound of an answer with a cell there
	spare key // the same of an answer without any cell there
}

// newSearch prepares the tables for kinds of cells on slots of the problem. The
// caller must have removed slots that fit no kind.
func newSearch(p *problem, kinds []demand, slots []slot, single [][]key, steps int) *search {
	s := &search{kinds: kinds, slots: len(slots), steps: steps, best: impossible, open: impossible}
	for i := range kinds {
		for range kinds[i].cells {
			s.kindAt = append(s.kindAt, i)
		}
	}
	s.load = make([][]int64, len(kinds))
	s.traffic = make([]int64, len(kinds))
	for i := range kinds {
		s.load[i] = make([]int64, len(kinds))
		for j := range kinds {
			s.load[i][j] = traffic(&kinds[i], &kinds[j])
			s.traffic[i] += int64(len(kinds[j].cells)) * (s.load[i][j] + traffic(&kinds[j], &kinds[i]))
		}
	}
	s.condition(p)
	s.slot = s.form(p, slots)
	s.single = make([][]key, len(kinds))
	flat := make([]key, len(kinds)*s.slots)
	for k := range kinds {
		s.single[k], flat = flat[:s.slots], flat[s.slots:]
		for column, i := range s.slot {
			s.single[k][column] = single[k][i]
		}
	}
	s.classify(s.single)
	s.prepareBounds()
	s.prepareBranch()
	return s
}

// prepareBranch allocates the memory for a branch, once for all steps.
func (s *search) prepareBranch() {
	n, cells, kinds := s.count, len(s.kindAt), len(s.kinds)
	s.at = make([]placed, 0, cells)
	s.free, s.blocked = make([]int, n), make([]int, n)
	s.access = make([]key, kinds*n)
	s.pool, s.may = make([][]choice, cells), make([][]bool, cells)
	choices, may := make([]choice, cells*n), slices.Repeat([]bool{true}, cells*kinds*n)
	for i := range cells {
		s.pool[i], choices = choices[:n:n], choices[n:]
		s.may[i], may = may[:kinds*n], may[kinds*n:]
	}
	for g := range n {
		s.free[g] = s.from[g+1] - s.from[g]
	}
	for k := range kinds {
		s.missing = append(s.missing, len(s.kinds[k].cells))
	}
}

// condition sets the side conditions on the whole set of slots: the nodes of
// required devices, and the greatest number of nodes allowed.
func (s *search) condition(p *problem) {
	cells := len(s.kindAt)
	s.splits = cells
	if limit := p.spec.Limits.MaxNodes; limit > 0 {
		s.splits = min(cells, limit-cells)
	}
	s.must = 1<<p.required.Len() - 1
}

// unconditional reports whether the search has no side conditions.
func (s *search) unconditional() bool { return s.must == 0 && s.splits == len(s.kindAt) }

// valid reports whether the columns satisfy the side conditions.
func (s *search) valid(at []int) bool {
	covered, splits := uint64(0), 0
	for _, column := range at {
		g := s.groupOf[column]
		covered |= s.covers[g]
		if s.split[g] {
			splits++
		}
	}
	return covered == s.must && splits <= s.splits
}

// hopeless reports whether the placed cells take too many nodes, or the missing
// cells are too few to cover the required nodes; a slot covers two at most.
func (s *search) hopeless() bool {
	covered, splits := uint64(0), 0
	for _, c := range s.at {
		covered |= s.covers[c.group]
		if s.split[c.group] {
			splits++
		}
	}
	return splits > s.splits || bits.OnesCount64(s.must&^covered) > 2*(len(s.kindAt)-len(s.at))
}

// run searches for an answer better than best; the result is in found, best and
// open. Where the ways are nested, that needs no branches.
func (s *search) run() {
	s.descend()
	if s.solveNested() {
		return
	}
	s.improve()
	s.branch(0)
}

// pair is the access cost of a cell of kind k in group a and one of kind l in group b.
func (s *search) pair(k, a, l, b int) key {
	n := s.count
	return (s.load[k][l]*s.way[a*n+b] + s.load[l][k]*s.way[b*n+a]) >> shareBits
}
