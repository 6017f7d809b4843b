package place

import (
	"cmp"
	"math"
	"slices"
)

// bounds holds the tables that the bound on missing cells reads.
type bounds struct {
	around []int64 // group by group: lower bound of the way there and back, see sortGroups
	order  [][]int // by group: groups that it can be combined with, cheapest first
	// busiest lists, by kind, all kinds, those with the most traffic with it first.
	busiest [][]int

	near    []reach // by group
	table   [][]key // by kind and column: lower bound of the cost of a missing cell
	columns [][]int // by kind: the columns that are possible
	fitting [][]int // by kind and group: columns of the group where such a cell fits
	rows    []row   // of all cells, those placed first
	row     []int   // by kind: the first row of its missing cells
	sums    []int64
}

// reach is the cheapest slots around a group, as stretches of one price.
type reach struct {
	stretches []stretch
	enough    bool // the group has as many slots around it as requested
}

// stretch is a run of slots of one price; end is the number of slots up to its end.
type stretch struct {
	price int64
	end   int
}

// prepareBounds allocates the memory that the bound needs, once for all steps.
func (s *search) prepareBounds() {
	s.row = make([]int, len(s.kinds))
	s.near = make([]reach, s.count)
	flat := make([]stretch, s.count*min(len(s.kindAt), s.count))
	for g := range s.near {
		n := len(flat) / (s.count - g)
		s.near[g].stretches, flat = flat[:0:n], flat[n:]
	}
	s.table, s.columns = make([][]key, len(s.kinds)), make([][]int, len(s.kinds))
	keys, columns := make([]key, len(s.kinds)*s.slots), make([]int, 2*len(s.kinds)*s.slots)
	for k := range s.table {
		s.table[k], keys = keys[:s.slots], keys[s.slots:]
		s.columns[k], columns = columns[:0:s.slots], columns[s.slots:]
		for g := range s.count {
			fitting := columns[:0]
			for column := s.from[g]; column < s.from[g+1]; column++ {
				if s.single[k][column] < impossible {
					fitting = append(fitting, column)
				}
			}
			s.fitting = append(s.fitting, fitting)
			columns = columns[len(fitting):]
		}
	}
	s.sortGroups()
	s.sortKinds()
}

// lopsided is the greatest difference between the traffic in the two directions
// of two kinds, as a share of both directions together.
func (s *search) lopsided() (share float64) {
	for i := range s.load {
		for j := range i {
			if both := s.busy(i, j); both > 0 {
				share = max(share, math.Abs(float64(s.load[i][j]-s.load[j][i]))/float64(both))
			}
		}
	}
	return share
}

// sortGroups prices the ways between groups, so that two cells pay at least half of
// their mutual traffic times the way around. With traffic a and b and ways v and w
// they pay av + bw = ((a+b)(v+w) + (a-b)(v-w))/2.
func (s *search) sortGroups() {
	lopsided := s.lopsided()
	n := s.count
	s.around, s.order = make([]int64, n*n), make([][]int, n)
	flat := make([]int, n*n)
	for g := range n {
		order := flat[g*n : g*n : (g+1)*n]
		prices := s.around[g*n : (g+1)*n]
		for h := range n {
			there, back := s.way[g*n+h], s.way[h*n+g]
			prices[h] = there + back - int64(math.Ceil(lopsided*math.Abs(float64(there-back))))
			if !s.apart[g*n+h] {
				order = append(order, h)
			}
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(prices[a], prices[b]) })
		s.order[g] = order
	}
}

func (s *search) sortKinds() {
	n := len(s.kinds)
	s.busiest = make([][]int, n)
	flat := make([]int, n*n)
	for k := range n {
		s.busiest[k], flat = flat[:n], flat[n:]
		for l := range n {
			s.busiest[k][l] = l
		}
		slices.SortFunc(s.busiest[k], func(a, b int) int { return cmp.Compare(s.busy(k, b), s.busy(k, a)) })
	}
}

// busy is the traffic between two cells, in both directions.
func (s *search) busy(k, l int) int64 { return s.load[k][l] + s.load[l][k] }

// bound is a lower bound of the cost of every answer that extends the branch, given
// the access cost among the placed cells. Every missing cell pays for itself, for
// access to the placed cells, and for half of the least possible access cost to the
// other missing cells (Gilmore and Lawler's bound; the others pay the other half).
// All cells share the slots.
func (s *search) bound(paid key) key {
	s.survey(len(s.kindAt) - len(s.at) - 1)
	s.rows = s.rows[:0]
	for _, c := range s.at {
		s.rows = append(s.rows, row{s.single[c.kind], s.fitting[c.kind*s.count+c.group]})
	}
	for k, missing := range s.missing {
		s.row[k] = len(s.rows)
		if missing > 0 {
			s.fill(k)
		}
		for range missing {
			s.rows = append(s.rows, row{s.table[k], s.columns[k]})
		}
	}
	return min(impossible, paid+s.hungarian.solve(s.rows, s.slots))
}

// survey finds the slots around each group that the given number of cells would take at best.
func (s *search) survey(others int) {
	for g := range s.near {
		r := &s.near[g]
		r.stretches = r.stretches[:0]
		taken := 0
		for _, h := range s.order[g] {
			if taken >= others {
				break
			}
			room := s.free[h]
			if h == g {
				room--
			}
			if room <= 0 || s.blocked[h] > 0 {
				continue
			}
			taken = min(others, taken+room)
			price := s.around[g*s.count+h]
			if last := len(r.stretches) - 1; last >= 0 && r.stretches[last].price == price {
				r.stretches[last].end = taken
			} else {
				r.stretches = append(r.stretches, stretch{price, taken})
			}
		}
		r.enough = taken >= others
	}
}

// fill writes the row of a missing cell of the kind, and records groups that the
// cell can no longer use.
func (s *search) fill(kind int) {
	out, own, columns := s.table[kind], s.single[kind], s.columns[kind][:0]
	may := s.may[len(s.at)][kind*s.count : (kind+1)*s.count]
	sums := s.sumTraffic(kind)
	for g, ok := range may {
		if !ok {
			continue
		}
		fitting := s.fitting[kind*s.count+g]
		if s.free[g] == 0 || s.blocked[g] > 0 || !s.near[g].enough || len(fitting) == 0 {
			may[g] = false
			continue
		}
		more := s.access[kind*s.count+g] + s.near[g].half(sums)
		for _, column := range fitting {
			out[column] = own[column] + more
		}
		columns = append(columns, fitting...)
	}
	s.columns[kind] = columns
}

// sumTraffic adds up the traffic between a missing cell of the kind and the other
// missing cells, busiest first: [i] is the sum for the i busiest.
func (s *search) sumTraffic(kind int) []int64 {
	sum := int64(0)
	s.sums = append(s.sums[:0], sum)
	for _, other := range s.busiest[kind] {
		cells := s.missing[other]
		if other == kind {
			cells--
		}
		for range cells {
			sum += s.busy(kind, other)
			s.sums = append(s.sums, sum)
		}
	}
	return s.sums
}

// half is half the least price of access to the other missing cells.
func (r *reach) half(sums []int64) key {
	sum, begin := int64(0), 0
	for _, t := range r.stretches {
		sum += t.price * (sums[t.end] - sums[begin])
		begin = t.end
	}
	// Each pair's price is rounded down separately: allow for that.
	return max(0, sum>>(shareBits+2)-int64(begin+1)/2)
}
