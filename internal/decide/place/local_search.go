package place

// descend builds a first answer, which branch and bound then has to improve on. From
// every slot as a seed, it adds cells one by one where they cost least, and selects
// the best of these answers.
func (s *search) descend() {
	total := len(s.kindAt)
	if total < 2 {
		return
	}
	add := make([]key, s.slots)
	at := make([]int, 0, total)
	for seed := range s.slots {
		if s.single[0][seed] >= impossible {
			continue
		}
		at = append(at[:0], seed)
		if cost := s.grow(&at, add); cost < min(s.best, impossible) && s.valid(at) {
			s.best = cost
			s.found = append(s.found[:0], at...)
		}
	}
}

// grow completes a partial answer greedily and returns its cost; impossible if no
// slot is left for a cell.
func (s *search) grow(at *[]int, add []key) key {
	cost := s.single[0][(*at)[0]]
	kind := -1
	for cell := 1; cell < len(s.kindAt); cell++ {
		if next := s.kindAt[cell]; next != kind {
			kind = next
			for i := range add {
				add[i] = s.addition(kind, i, *at)
			}
		} else {
			s.update(add, kind, (*at)[cell-1])
		}
		low := 0
		for i := range add {
			if add[i] < add[low] {
				low = i
			}
		}
		if add[low] >= impossible {
			return impossible
		}
		cost += add[low]
		*at = append(*at, low)
	}
	return cost
}

// update records that a cell of the kind has taken a slot.
func (s *search) update(add []key, kind, taken int) {
	for i := range add {
		switch {
		case s.excludes(i, taken):
			add[i] = impossible
		case add[i] < impossible:
			add[i] += s.pair(kind, s.groupOf[i], kind, s.groupOf[taken])
		}
	}
}

// addition is the cost that a cell of a kind in a slot adds to the cells in at.
func (s *search) addition(kind, slot int, at []int) key {
	cost := s.single[kind][slot]
	for cell, j := range at {
		if cost >= impossible || s.excludes(slot, j) {
			return impossible
		}
		cost += s.pair(kind, s.groupOf[slot], s.kindAt[cell], s.groupOf[j])
	}
	return cost
}

// improve exchanges single slots, and the slots of two cells of different kinds,
// as long as that lowers the cost.
func (s *search) improve() {
	if s.found == nil || !s.unconditional() {
		return
	}
	for range len(s.kindAt) * 4 {
		if !s.improveOnce() {
			return
		}
	}
}

func (s *search) improveOnce() bool {
	at := s.found
	for cell := range at {
		old := at[cell]
		kind := s.kindAt[cell]
		before := s.among(kind, old, cell, at)
		for slot := range s.slots {
			if cost := s.among(kind, slot, cell, at); cost < before {
				at[cell] = slot
				s.best += cost - before
				return true
			}
		}
		for other := range cell {
			if s.kindAt[other] == kind {
				continue
			}
			at[cell], at[other] = at[other], at[cell]
			if cost := s.total(at); cost < s.best {
				s.best = cost
				return true
			}
			at[cell], at[other] = at[other], at[cell]
		}
	}
	return false
}

// among is the cost of a cell in a slot, while all other cells of at stay in place.
func (s *search) among(kind, slot, cell int, at []int) key {
	cost := s.single[kind][slot]
	for other, j := range at {
		if other == cell {
			continue
		}
		if cost >= impossible || s.excludes(slot, j) {
			return impossible
		}
		cost += s.pair(kind, s.groupOf[slot], s.kindAt[other], s.groupOf[j])
	}
	return cost
}

// total is the cost of a whole answer.
func (s *search) total(at []int) key {
	cost := key(0)
	for cell, slot := range at {
		cost += s.addition(s.kindAt[cell], slot, at[:cell])
		if cost >= impossible {
			return impossible
		}
	}
	return cost
}

// excludes reports whether no guest may have cells in both columns.
func (s *search) excludes(i, j int) bool {
	return i == j || s.apart[s.groupOf[i]*s.count+s.groupOf[j]]
}
