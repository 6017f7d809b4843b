package place

import (
	"cmp"
	"math/bits"
	"slices"
)

// search chooses a slot for every cell of one division of the guest into
// cells: the sum of singles and of access between them is least.
type search struct {
	kinds  []demand
	single [][]key   // by kind and slot
	way    []int64   // slot by slot: weighted price, not scaled by traffic; see problem.way
	apart  []bool    // slot by slot: not both
	class  []int     // slots of one class can be exchanged without any difference
	load   [][]int64 // traffic, by kind and kind
	kindAt []int     // by cell, in the order of kinds
	ends   []int     // by kind: cells of all kinds up to it
	ways   [][]int64 // by slot: two-way prices to other slots, cheapest first
	half   [][]key   // by cells placed and kind, then slot; see missing. nil: not needed yet
	slots  int
	steps  int // left
	used   int
	// side conditions, see newSearch
	covers []uint64 // by slot: which of the nodes that the guest must have
	must   uint64
	split  []bool // by slot: takes two nodes
	splits int    // so many of those at most

	best      key
	found     []int // slot by cell, in the order of kinds; nil: none yet
	at        []int // slots chosen so far
	pool      [][]candidate
	table     [][]key // bound by missing cell and slot, see assign
	hungarian assignment
}

// candidate is a slot that the next cell could take.
type candidate struct {
	slot  int
	add   key // what the objective grows by
	bound key // add, and the least that access to cells still missing can cost
}

// newSearch prepares the tables for kinds of cells on slots of the problem.
// Slots that suit no kind must have been left out.
func newSearch(p *problem, kinds []demand, slots []slot, single [][]key, steps int) *search {
	n := len(slots)
	s := &search{kinds: kinds, single: single, slots: n, steps: steps, best: impossible}
	s.way = make([]int64, n*n)
	s.apart = make([]bool, n*n)
	for i, a := range slots {
		for j, b := range slots {
			if i == j {
				continue
			}
			s.apart[i*n+j] = !p.together(a, b)
			if !s.apart[i*n+j] {
				s.way[i*n+j] = int64(p.way(a, b))
			}
		}
	}
	cells := 0
	s.load = make([][]int64, len(kinds))
	for i := range kinds {
		for range kinds[i].cells {
			s.kindAt = append(s.kindAt, i)
		}
		cells += len(kinds[i].cells)
		s.ends = append(s.ends, cells)
		s.load[i] = make([]int64, len(kinds))
	}
	for i := range kinds {
		for j := range kinds {
			s.load[i][j] = traffic(&kinds[i], &kinds[j])
		}
	}
	s.condition(p, slots, cells)
	s.sortWays(cells)
	s.half = make([][]key, (cells+1)*len(kinds))
	s.classify()
	s.at = make([]int, 0, cells)
	s.pool = make([][]candidate, cells+1)
	flat := make([]candidate, (cells+1)*n)
	for i := range s.pool {
		s.pool[i] = flat[i*n : i*n : (i+1)*n]
	}
	return s
}

// condition notes what the whole set of slots must have beside being cheap:
// the nodes of required devices, and no more nodes than allowed.
func (s *search) condition(p *problem, slots []slot, cells int) {
	s.splits = cells
	if limit := p.spec.Limits.MaxNodes; limit > 0 {
		s.splits = min(cells, limit-cells)
	}
	s.covers = make([]uint64, len(slots))
	s.split = make([]bool, len(slots))
	bit := uint64(1)
	for node := range p.required.All() {
		s.must |= bit
		for i, a := range slots {
			if p.nodes[a.cpu].node.ID == node || p.nodes[a.mem].node.ID == node {
				s.covers[i] |= bit
			}
		}
		bit <<= 1
	}
	for i, a := range slots {
		s.split[i] = !a.whole()
	}
}

// free reports that there are no side conditions.
func (s *search) free() bool { return s.must == 0 && s.splits == cap(s.at) }

// valid reports whether the slots keep the side conditions.
func (s *search) valid(at []int) bool {
	covered, splits := uint64(0), 0
	for _, i := range at {
		covered |= s.covers[i]
		if s.split[i] {
			splits++
		}
	}
	return covered == s.must && splits <= s.splits
}

// hopeless reports that the required nodes outnumber the cells still missing
// after those in s.at; a slot covers two nodes at most.
func (s *search) hopeless() bool {
	covered := uint64(0)
	for _, i := range s.at {
		covered |= s.covers[i]
	}
	return bits.OnesCount64(s.must&^covered) > 2*(cap(s.at)-len(s.at))
}

// sortWays fills ways.
func (s *search) sortWays(cells int) {
	n := s.slots
	s.ways = make([][]int64, n)
	flat := make([]int64, 0, n*n)
	for i := range n {
		from := len(flat)
		for j := range n {
			if i != j && !s.apart[i*n+j] {
				flat = append(flat, s.way[i*n+j]+s.way[j*n+i])
			}
		}
		row := flat[from:]
		slices.Sort(row)
		s.ways[i] = row[:min(len(row), cells)]
	}
}

// classify finds slots that can be exchanged: same prices for every kind,
// same ways to all others, same way to each other in both directions.
func (s *search) classify() {
	s.class = make([]int, s.slots)
	var first []int
	for i := range s.slots {
		c := slices.IndexFunc(first, func(j int) bool { return s.same(i, j) })
		if c < 0 {
			c = len(first)
			first = append(first, i)
		}
		s.class[i] = c
	}
}

func (s *search) same(i, j int) bool {
	n := s.slots
	for k := range s.kinds {
		if s.single[k][i] != s.single[k][j] {
			return false
		}
	}
	if s.covers[i] != s.covers[j] || s.way[i*n+j] != s.way[j*n+i] || s.apart[i*n+j] != s.apart[j*n+i] {
		return false
	}
	for x := range n {
		if x != i && x != j && (s.way[i*n+x] != s.way[j*n+x] || s.way[x*n+i] != s.way[x*n+j] || s.apart[i*n+x] != s.apart[j*n+x]) {
			return false
		}
	}
	return true
}

// run searches; proven reports that nothing better exists.
func (s *search) run() (proven bool) {
	s.descend()
	s.improve()
	s.kind(0, 0)
	return s.steps > 0
}

// pair is the access cost of a cell of kind k in slot a and one of kind l in slot b.
func (s *search) pair(k, a, l, b int) key {
	n := s.slots
	return (s.load[k][l]*s.way[a*n+b] + s.load[l][k]*s.way[b*n+a]) >> shareBits
}

// missing bounds from below, for each slot, half the access cost between a
// cell of the kind there and the other cells that are missing once so many
// are placed, wherever these go: the busiest of them by the cheapest way, the
// next by the next (Gilmore and Lawler's bound). The other half is theirs.
func (s *search) missing(kind, placed int) []key {
	row := &s.half[placed*len(s.kinds)+kind]
	if *row != nil {
		return *row
	}
	traffic := make([]int64, 0, cap(s.at))
	for cell := placed; cell < cap(s.at); cell++ {
		other := s.kindAt[cell]
		traffic = append(traffic, min(s.load[kind][other], s.load[other][kind]))
	}
	if own := slices.Index(traffic, s.load[kind][kind]); own >= 0 && s.kindAfter(kind, placed) {
		traffic = slices.Delete(traffic, own, own+1)
	}
	slices.Sort(traffic)
	slices.Reverse(traffic)
	*row = make([]key, s.slots)
	for i, ways := range s.ways {
		if len(ways) < len(traffic) {
			(*row)[i] = impossible
			continue
		}
		sum := int64(0)
		for j, t := range traffic {
			sum += t * ways[j]
		}
		// Each pair's price is rounded down by itself: allow for that.
		(*row)[i] = max(0, sum>>(shareBits+1)-int64(len(traffic)))
	}
	return *row
}

// kindAfter reports whether a cell of the kind is missing when so many are placed.
func (s *search) kindAfter(kind, placed int) bool { return s.ends[kind] > placed }

// kind begins with the cells of one kind, after those in s.at; g is the cost so far.
func (s *search) kind(k int, g key) {
	if k == len(s.kinds) {
		if g < s.best && s.valid(s.at) {
			s.best = g
			s.found = append(s.found[:0], s.at...)
		}
		return
	}
	rest := s.later(k)
	s.bounded(k, len(s.kinds[k].cells), s.candidates(k), g, rest)
}

// assignRows is up to how many missing cells the assignment bound is worth its time.
const assignRows = 12

// later bounds from below what the kinds after k cost, each by itself, and
// begins the table of the assignment bound with them.
func (s *search) later(k int) (rest key) {
	s.table = s.table[:0]
	for later := k + 1; later < len(s.kinds); later++ {
		list := s.candidates(later)
		low := cheapest(list, len(s.kinds[later].cells))
		if low >= impossible {
			return impossible
		}
		rest += low
		if cap(s.at)-len(s.at) <= assignRows {
			s.addRows(list, len(s.kinds[later].cells))
		}
	}
	return rest
}

// bounded goes on with the missing cells of kind k unless they and the later
// kinds, which later has just bounded, cannot beat the best found: not even
// if every cell may choose its slot before all others of its kind, and not if
// cells of all kinds must share the slots.
func (s *search) bounded(k, missing int, list []candidate, g, rest key) {
	if rest >= impossible || g+rest+cheapest(list, missing) >= s.best || s.must != 0 && s.hopeless() {
		return
	}
	if len(s.table) > 0 {
		s.addRows(list, missing)
		if g+s.hungarian.solve(s.table) >= s.best {
			return
		}
	}
	s.cells(k, missing, list, g, rest)
}

// addRows adds the bounds of one kind to the table, once for each of its cells.
func (s *search) addRows(list []candidate, cells int) {
	for i := range cells {
		n := len(s.table)
		if n == cap(s.table) {
			s.table = append(s.table, make([]key, s.slots))
		} else {
			s.table = s.table[:n+1]
		}
		row := s.table[n]
		if row == nil {
			row = make([]key, s.slots)
			s.table[n] = row
		}
		if i > 0 {
			copy(row, s.table[n-1])
			continue
		}
		for j := range row {
			row[j] = impossible
		}
		for _, c := range list {
			row[c.slot] = c.bound
		}
	}
}

// candidates lists the slots that a cell of the kind could take now.
func (s *search) candidates(k int) []candidate {
	list := s.pool[len(s.at)][:0]
	more := s.missing(k, len(s.at))
	for i := range s.slots {
		add := s.single[k][i]
		if add >= impossible {
			continue
		}
		for cell, j := range s.at {
			if j == i || s.apart[i*s.slots+j] {
				add = impossible
				break
			}
			add += s.pair(k, i, s.kindAt[cell], j)
		}
		if add < impossible && more[i] < impossible {
			list = append(list, candidate{i, add, add + more[i]})
		}
	}
	s.pool[len(s.at)] = list
	return list
}

// cheapest sums the n least bounds; impossible if there are fewer.
func cheapest(list []candidate, n int) key {
	if len(list) < n {
		return impossible
	}
	var few [16]key
	least := few[:0]
	if n > len(few) {
		all := make([]key, len(list))
		for i := range list {
			all[i] = list[i].bound
		}
		slices.Sort(all)
		return sum(all[:n])
	}
	for i := range list {
		b := list[i].bound
		if len(least) == n && b >= least[n-1] {
			continue
		}
		if len(least) < n {
			least = append(least, b)
		} else {
			least[n-1] = b
		}
		for j := len(least) - 1; j > 0 && least[j] < least[j-1]; j-- {
			least[j], least[j-1] = least[j-1], least[j]
		}
	}
	return sum(least)
}

func sum(keys []key) (total key) {
	for _, k := range keys {
		total += k
	}
	return total
}

// cells places the missing cells of kind k, at least one. list must not be
// shared with the caller beyond this depth; rest bounds later kinds from below.
func (s *search) cells(k, missing int, list []candidate, g, rest key) {
	if missing == 1 && k == len(s.kinds)-1 && s.free() {
		s.last(list, g)
		return
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.bound, b.bound), cmp.Compare(a.slot, b.slot))
	})
	depth := len(s.at)
	for len(list) >= missing {
		low := g + rest
		for i := range missing {
			low += list[i].bound
		}
		if low >= s.best || s.steps <= 0 {
			return
		}
		s.steps--
		s.used++
		c := list[0]
		s.at = append(s.at, c.slot)
		if missing == 1 {
			s.kind(k+1, g+c.add)
		} else {
			rest := s.later(k)
			s.bounded(k, missing-1, s.next(k, c.slot, list[1:]), g+c.add, rest)
		}
		s.at = s.at[:depth]
		list = s.without(list[1:], s.class[c.slot])
	}
}

// last places the last cell: in the cheapest slot, the lowest of equals.
func (s *search) last(list []candidate, g key) {
	s.steps--
	s.used++
	low := list[0]
	for _, c := range list[1:] {
		if c.add < low.add || c.add == low.add && c.slot < low.slot {
			low = c
		}
	}
	s.best = g + low.add
	s.found = append(append(s.found[:0], s.at...), low.slot)
}

// next narrows the candidates once a cell of kind k took a slot.
func (s *search) next(k, taken int, list []candidate) []candidate {
	depth := len(s.at)
	out := s.pool[depth][:0]
	load, n := s.load[k][k], s.slots
	more := s.missing(k, depth)
	for _, c := range list {
		if s.apart[c.slot*n+taken] {
			continue
		}
		add := c.add + (load*s.way[c.slot*n+taken]+load*s.way[taken*n+c.slot])>>shareBits
		if m := more[c.slot]; m < impossible {
			out = append(out, candidate{c.slot, add, add + m})
		}
	}
	s.pool[depth] = out
	return out
}

// without drops a class: whatever it could give was tried with its first member.
func (s *search) without(list []candidate, class int) []candidate {
	return slices.DeleteFunc(list, func(c candidate) bool { return s.class[c.slot] == class })
}
