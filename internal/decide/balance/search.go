package balance

import (
	"math"
	"slices"
)

// search looks for the best state of the host that moves of the movable guests
// can reach.
type search struct {
	m       *model
	movable []int // indexes of guests
	steps   int   // remaining evaluations
}

// enough is the smallest fall of the cost that counts as an improvement; less is
// rounding.
const enough = 1e-9

// sweepSteps is the number of evaluations for each of the policy's search steps:
// an evaluation here is a few sums and much cheaper than a step of package place.
const sweepSteps = 10

// targets returns the changes that lead to the best states found, best first. It
// leaves the model unchanged.
func (m *model) targets(movable []int, moves int) [][]change {
	s := &search{m: m, movable: movable}
	near := m.descent(movable, moves)
	if !s.few() {
		return [][]change{near}
	}
	far := m.changes(m.state(), s.enumerate())
	if m.costAfter(far) < m.costAfter(near) {
		return [][]change{far, near}
	}
	return [][]change{near, far}
}

// costAfter returns the host's cost after changes.
func (m *model) costAfter(changes []change) float64 {
	was := m.inverse(changes)
	m.apply(changes...)
	total := m.total()
	m.apply(was...)
	return total
}

// descent returns the changes of the best of several descents: one from the
// current state and, if at most fewMovable guests can move, one without each of
// them and one from each of their other layouts. All share the same steps.
func (m *model) descent(movable []int, moves int) []change {
	s := &search{m: m, movable: movable, steps: sweepSteps * m.policy.SearchSteps}
	first, began := m.state(), slices.Clone(m.usage)
	best, low := first, m.total()
	s.descend(moves, func() {
		if m.allowedSince(first, began) {
			best, low = m.state(), m.total()
		}
	})
	m.restore(first)
	if len(movable) > fewMovable {
		return m.changes(first, best)
	}
	again := func() {
		s.descend(moves, func() {})
		if total := m.total(); total < low-enough && m.allowedSince(first, began) {
			best, low = m.state(), total
		}
		m.restore(first)
	}
	for k, g := range movable {
		s.movable = slices.Delete(slices.Clone(movable), k, k+1)
		again()
		for l := range m.guests[g].layouts {
			c := change{g, l}
			if l != m.guests[g].at && !m.guests[g].layouts[l].rejected {
				m.apply(c) // it need not be allowed alone: further changes may make room
				again()
			}
		}
	}
	return m.changes(first, best)
}

// fewMovable is the number of movable guests up to which descent starts again
// from each guest's other layouts.
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
			m.apply(change{i, at[i]})
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

// few reports whether the combinations of all layouts are few enough to try all.
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

// enumerate returns the best allowed combination of all layouts.
func (s *search) enumerate() []int {
	first := s.m.state()
	began := slices.Clone(s.m.usage)
	best, low := first, s.m.total()-enough
	var try func(k int)
	try = func(k int) {
		if k == len(s.movable) {
			if cost := s.m.total(); cost < low && s.m.allowedSince(first, began) {
				best, low = s.m.state(), cost-enough
			}
			return
		}
		g := s.movable[k]
		was := s.m.guests[g].at
		for l := range s.m.guests[g].layouts {
			if !s.m.guests[g].layouts[l].rejected {
				s.m.apply(change{g, l})
				try(k + 1)
			}
		}
		s.m.apply(change{g, was})
	}
	try(0)
	s.m.restore(first)
	copy(s.m.usage, began) // discard rounding errors
	s.m.clock++
	for i := range s.m.priced {
		s.m.priced[i], s.m.stamps[i] = math.NaN(), s.m.clock
	}
	return best
}

// allAllowed reports whether every node allows the change from its usage in began
// to its present usage; peak is as for allowed.
func (m *model) allAllowed(began []usage, peak float64) bool {
	for i := range m.nodes {
		if !m.allowed(i, &began[i], peak) {
			return false
		}
	}
	return true
}

// allowedSince reports whether the changes from an earlier state to the present one are
// allowed together; began is the usage then. Allowed steps are not always: a guest that
// comes from a crowded node may fill a calm one as much, also if it was only on the way there.
func (m *model) allowedSince(first []int, began []usage) bool {
	touched, peak := m.touched(m.changes(m.state(), first)), 0.0
	for _, i := range touched {
		peak = max(peak, m.nodes[i].use(&began[i]))
	}
	for _, i := range touched {
		if !m.allowed(i, &began[i], peak) {
			return false
		}
	}
	return true
}

// descend repeatedly makes the best single move, or the best pair if no single
// move helps, until nothing helps or the number of moves is reached. It calls made after each.
func (s *search) descend(moves int, made func()) {
	for range moves {
		found, rise := s.single()
		if rise > -enough {
			found, rise = s.pair()
		}
		if rise > -enough {
			return
		}
		s.m.apply(found...)
		made()
	}
}

// options yields every other layout of a guest that was not rejected.
func (s *search) options(g int, yield func(change)) {
	for l := range s.m.guests[g].layouts {
		if l != s.m.guests[g].at && !s.m.guests[g].layouts[l].rejected && s.steps > 0 {
			s.steps--
			yield(change{g, l})
		}
	}
}

func (s *search) single() (best []change, low float64) {
	low = math.Inf(1)
	for _, g := range s.movable {
		s.options(g, func(c change) {
			if rise, ok := s.m.tryOne(c); ok && rise < low-enough {
				best, low = []change{c}, rise
			}
		})
	}
	return best, low
}

// pair looks for two moves that help together: a swap, or a move that makes room
// for another. The second guest is on a node that the first moves to.
func (s *search) pair() (best []change, low float64) {
	low = math.Inf(1)
	for _, g := range s.movable {
		s.options(g, func(c change) {
			if rise, _ := s.m.try(c); rise > -enough && !s.m.guests[g].degraded {
				return // it does not help alone, and the guest is not degraded
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

// meets reports whether a guest is on a target node of a change.
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
