package balance

import (
	"math"
	"slices"
)

// search looks for the best state of the host that allowed guests can reach.
type search struct {
	m       *model
	movable []int // guests
	steps   int   // evaluations left
}

// enough is by how much a change must lower the cost to count.
const enough = 1e-9

// sweepSteps is how many evaluations a search may take for each of the
// policy's search steps: one is a few sums.
const sweepSteps = 10

// targets returns the changes that lead to the best states found, the best
// state first; the model is left as it was.
func (m *model) targets(movable []int, moves int) [][]change {
	s := &search{m: m, movable: movable}
	near := m.descent(movable, moves)
	if !s.few() {
		return [][]change{near}
	}
	far := m.changes(m.state(), s.enumerate())
	if m.after(far) < m.after(near) {
		return [][]change{far, near}
	}
	return [][]change{near, far}
}

// after is what the host costs after changes.
func (m *model) after(changes []change) float64 {
	was := m.back(changes)
	m.make(changes...)
	total := m.total()
	m.make(was...)
	return total
}

// descent returns the changes of the best of several descents: one from the
// state as it is, and where few guests can move one without each of them and
// one from each of their other layouts. All share the steps.
func (m *model) descent(movable []int, moves int) []change {
	s := &search{m: m, movable: movable, steps: sweepSteps * m.policy.SearchSteps}
	first := m.state()
	s.descend(moves)
	best, low := m.state(), m.total()
	m.restore(first)
	if len(movable) > fewMovable {
		return m.changes(first, best)
	}
	began := slices.Clone(m.asked)
	again := func() {
		s.descend(moves)
		if total := m.total(); total < low-enough && m.allHold(began) {
			best, low = m.state(), total
		}
		m.restore(first)
	}
	for k, g := range movable {
		s.movable = slices.Delete(slices.Clone(movable), k, k+1)
		again()
		for l := range m.guests[g].layouts {
			c := change{g, l}
			if l != m.guests[g].at && !m.guests[g].layouts[l].barred {
				m.make(c) // it need not be possible alone: what follows may make room
				again()
			}
		}
	}
	return m.changes(first, best)
}

// fewMovable is up to how many guests a descent is begun anew from each.
const fewMovable = 16

func (m *model) state() []int {
	at := make([]int, len(m.guests))
	for i := range m.guests {
		at[i] = m.guests[i].at
	}
	return at
}

func (m *model) restore(at []int) {
	for i := range at {
		if m.guests[i].at != at[i] {
			m.make(change{i, at[i]})
		}
	}
}

func (m *model) changes(from, to []int) []change {
	var out []change
	for i := range from {
		if from[i] != to[i] {
			out = append(out, change{i, to[i]})
		}
	}
	return out
}

// few reports whether all combinations can be tried.
func (s *search) few() bool {
	product := 1
	for _, g := range s.movable {
		product *= len(s.m.guests[g].layouts)
		if product > s.m.policy.SearchSteps {
			return false
		}
	}
	return true
}

// enumerate returns the best of all combinations that fill no node's CPUs
// beyond the limit.
func (s *search) enumerate() []int {
	first := s.m.state()
	began := slices.Clone(s.m.asked)
	best, low := first, s.m.total()-enough
	var try func(k int)
	try = func(k int) {
		if k == len(s.movable) {
			if cost := s.m.total(); cost < low && s.m.allHold(began) {
				best, low = s.m.state(), cost-enough
			}
			return
		}
		g := s.movable[k]
		was := s.m.guests[g].at
		for l := range s.m.guests[g].layouts {
			if !s.m.guests[g].layouts[l].barred {
				s.m.make(change{g, l})
				try(k + 1)
			}
		}
		s.m.make(change{g, was})
	}
	try(0)
	s.m.restore(first)
	copy(s.m.asked, began) // sums may have lost a little
	return best
}

// allHold reports whether the state may be reached from the one that began.
func (m *model) allHold(began []asked) bool {
	for i := range m.nodes {
		if !m.holds(i, &began[i], 0) {
			return false
		}
	}
	return true
}

// descend makes the best single move, or where there is none the best pair,
// until nothing helps or enough guests have moved.
func (s *search) descend(moves int) {
	for range moves {
		found, rise := s.single()
		if rise > -enough {
			found, rise = s.pair()
		}
		if rise > -enough {
			return
		}
		s.m.make(found...)
	}
}

// options calls yield for every layout that a guest could have instead of its own.
func (s *search) options(g int, yield func(change)) {
	for l := range s.m.guests[g].layouts {
		if l != s.m.guests[g].at && !s.m.guests[g].layouts[l].barred && s.steps > 0 {
			s.steps--
			yield(change{g, l})
		}
	}
}

func (s *search) single() (best []change, low float64) {
	low = math.Inf(1)
	for _, g := range s.movable {
		s.options(g, func(c change) {
			if rise, ok := s.m.try(c); ok && rise < low-enough {
				best, low = []change{c}, rise
			}
		})
	}
	return best, low
}

// pair looks for two moves that help together: a swap, or one that makes room
// for the other. The second concerns a node that the first fills.
func (s *search) pair() (best []change, low float64) {
	low = math.Inf(1)
	for _, g := range s.movable {
		s.options(g, func(c change) {
			if rise, _ := s.m.try(c); rise > -enough && !s.m.guests[g].degraded {
				return // alone it makes nothing better, and nobody waits for it
			}
			for _, other := range s.movable {
				if other == g || !s.m.meets(other, c) {
					continue
				}
				s.options(other, func(d change) {
					if rise, ok := s.m.try(c, d); ok && rise < low-enough {
						best, low = []change{c, d}, rise
					}
				})
			}
		})
	}
	return best, low
}

// meets reports whether a guest is on a node that a change goes to.
func (m *model) meets(guest int, c change) bool {
	for _, s := range m.guests[c.guest].layouts[c.layout].on {
		for _, t := range m.guests[guest].layout().on {
			if s.node == t.node {
				return true
			}
		}
	}
	return false
}
