package place

import (
	"cmp"
	"slices"
)

// branch extends the branch with the cells in s.at; paid is the access cost among
// them.
func (s *search) branch(paid key) {
	if !s.unconditional() && s.hopeless() {
		return
	}
	for more := true; more; {
		s.pay()
		low := s.bound(paid)
		if low >= s.best {
			return
		}
		s.offer()
		left := len(s.kindAt) - len(s.at)
		if low >= s.best || left == 0 || left == 1 && s.unconditional() {
			return // the assignment is exact once one cell is missing
		}
		more = s.try(s.choose(low), low, paid)
	}
}

// stepSize is the number of prices of cells in slots that one step examines.
const stepSize = 512

// pay counts the steps of one bound: more where the bound is large, so that the
// limit on steps also limits time.
func (s *search) pay() {
	n := 1 + len(s.kindAt)*s.slots/stepSize
	s.steps -= n
	s.used += n
}

// few is the number of choices that are tried one by one. With more choices it is
// cheaper to compute the bound again without those tried.
const few = 8

// try extends the branch with a cell of the kind in every allowed group. It
// reports whether many choices are left, which need another pass.
func (s *search) try(kind int, low, paid key) (more bool) {
	for list := s.choices(kind); low+s.rest(kind, list) < s.best; list = s.without(kind, list) {
		if s.steps <= 0 {
			s.open = min(s.open, low+s.rest(kind, list))
			return false
		}
		if more && len(list) > few {
			return true
		}
		g, depth := list[0].group, len(s.at)
		also := s.access[kind*s.count+g]
		s.put(kind, g)
		if depth+1 < len(s.may) {
			copy(s.may[depth+1], s.may[depth])
		}
		s.branch(paid + also)
		s.takeBack(kind, g)
		low += list[0].spare
		more = true
	}
	return false
}

// choose selects the kind to place next: one with much traffic and few groups left.
// It excludes groups where an answer costs too much from this point on.
func (s *search) choose(low key) (kind int) {
	n, may := s.count, s.may[len(s.at)]
	most, fewest := int64(-1), int64(1)
	for k, missing := range s.missing {
		if missing == 0 {
			continue
		}
		left := int64(1)
		for g := range n {
			if i := k*n + g; may[i] && low+s.extra(k, g) < s.best {
				left++
			} else {
				may[i] = false
			}
		}
		if s.traffic[k]*fewest > most*left {
			kind, most, fewest = k, s.traffic[k], left
		}
	}
	return kind
}

// extra is the additional cost over the bound of an answer that has a missing cell
// of the kind in the group: the assignment's reduced cost.
func (s *search) extra(kind, g int) key {
	more := impossible
	for _, column := range s.fitting[kind*s.count+g] {
		more = min(more, s.hungarian.reduced(s.row[kind], column))
	}
	return more
}

// choices lists the groups for the next cell of the kind, most promising first.
func (s *search) choices(kind int) []choice {
	list := s.pool[len(s.at)][:0]
	only := s.missing[kind] == len(s.kindAt)-len(s.at)
	for g := range s.count {
		if !s.may[len(s.at)][kind*s.count+g] {
			continue
		}
		c := choice{group: g, extra: s.extra(kind, g)}
		if only && s.empty(g) {
			c.spare = s.hungarian.spare(s.from[g], s.from[g+1])
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.extra, b.extra), cmp.Compare(b.spare, a.spare), cmp.Compare(a.group, b.group))
	})
	return list
}

// rest is the additional cost over the bound of an answer that has all missing cells
// of the kind in groups of the list.
func (s *search) rest(kind int, list []choice) (sum key) {
	missing := s.missing[kind]
	for _, c := range list {
		cells := min(missing, s.free[c.group])
		sum += key(cells) * c.extra
		if missing -= cells; missing == 0 {
			return sum
		}
	}
	return impossible
}

// without drops the first choice, which was tried. If the group is empty, the trial
// also covered every other empty group of its class.
func (s *search) without(kind int, list []choice) []choice {
	may := s.may[len(s.at)]
	tried := list[0].group
	return slices.DeleteFunc(list, func(c choice) bool {
		drop := c.group == tried || s.class[c.group] == s.class[tried] && s.empty(tried) && s.empty(c.group)
		if drop {
			may[kind*s.count+c.group] = false
		}
		return drop
	})
}

func (s *search) empty(g int) bool { return s.free[g] == s.from[g+1]-s.from[g] }

// put adds a cell of kind k in group g to the branch.
func (s *search) put(k, g int) {
	s.at = append(s.at, placed{k, g})
	s.missing[k]--
	s.free[g]--
	s.charge(k, g, 1)
}

// takeBack reverses put.
func (s *search) takeBack(k, g int) {
	s.at = s.at[:len(s.at)-1]
	s.missing[k]++
	s.free[g]++
	s.charge(k, g, -1)
}

// charge adds the access cost of the other cells for a cell of kind k in group g, or subtracts it.
func (s *search) charge(k, g int, sign key) {
	for h := range s.count {
		if s.apart[g*s.count+h] {
			s.blocked[h] += int(sign)
		}
		for l := range s.kinds {
			s.access[l*s.count+h] += sign * s.pair(l, h, k, g)
		}
	}
}

// offer accepts the assignment of the last bound as an answer if it is better.
func (s *search) offer() {
	s.trial = s.trial[:0]
	row := len(s.at)
	for k := range s.kinds {
		for i, c := range s.at {
			if c.kind == k {
				s.trial = append(s.trial, s.hungarian.column[i])
			}
		}
		s.trial = append(s.trial, s.hungarian.column[row:row+s.missing[k]]...)
		row += s.missing[k]
	}
	if cost := s.total(s.trial); cost < s.best && s.valid(s.trial) {
		s.best = cost
		s.found = append(s.found[:0], s.trial...)
		s.improve()
	}
}
