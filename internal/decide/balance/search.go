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

// equal is the part of the price of all moves by which a better state must be cheaper to be
// looked for: VMs with memory on the same nodes can be exchanged in many ways that differ
// by a few MiB.
const equal = 0.01

// targets returns the changes that lead to the best states found, best first. It
// leaves the model unchanged.
func (m *model) targets(movable []int, moves int) [][]change {
	s := &search{m: m, movable: movable}
	near := m.descent(movable, moves, false)
	price := 0.0
	for _, c := range near {
		price += m.guests[c.guest].layouts[c.layout].price
	}
	best, exact := s.bestOfAll(m.costAfter(near), equal*price)
	switch {
	case !exact && len(movable) > fewMovable:
		return [][]change{near}
	case !exact:
		return [][]change{m.descent(movable, moves, true)}
	}
	if far := m.changes(m.state(), best); len(far) > 0 {
		return [][]change{far, near}
	}
	return [][]change{near}
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
// current state and, if it starts again, one without each movable guest and one from each of
// their other layouts. All share the same steps.
func (m *model) descent(movable []int, moves int, again bool) []change {
	s := &search{m: m, movable: movable, steps: sweepSteps * m.policy.SearchSteps}
	first, began := m.state(), slices.Clone(m.usage)
	best, low := first, m.total()
	s.descend(moves, func() {
		if m.allowedSince(first, began) {
			best, low = m.state(), m.total()
		}
	})
	m.restore(first)
	if !again {
		return m.changes(first, best)
	}
	restart := func() {
		s.descend(moves, func() {})
		if total := m.total(); total < low-enough && m.allowedSince(first, began) {
			best, low = m.state(), total
		}
		m.restore(first)
	}
	for k, g := range movable {
		s.movable = slices.Delete(slices.Clone(movable), k, k+1)
		restart()
		for l := range m.guests[g].layouts {
			c := change{g, l}
			if l != m.guests[g].at && !m.guests[g].layouts[l].rejected {
				m.apply(c) // it need not be allowed alone: further changes may make room
				restart()
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

// bestOfAll returns the best allowed combination of all layouts, and whether it is proven:
// the search ends without an answer after the policy's SearchSteps. near is the cost of a
// state that is known; another one must cost less by a margin.
//
// It is a branch and bound: the movable guests leave the host, and come back one by one. A part
// of a combination is not continued if, with the cheapest layout of each missing guest, it
// costs more than the best combination so far.
func (s *search) bestOfAll(near, margin float64) (best []int, exact bool) {
	m := s.m
	first, began, sets := m.state(), slices.Clone(m.usage), slices.Clone(m.cpuSets)
	now := m.total()
	defer func() {
		copy(m.usage, began) // discard rounding errors: what tryOne returned is still right
		copy(m.cpuSets, sets)
		for i := range m.priced {
			m.priced[i] = math.NaN()
		}
	}()
	fixed := 0.0
	for i := range m.guests {
		fixed += m.guests[i].fixedCost()
	}
	for _, g := range s.movable {
		fixed -= m.guests[g].fixedCost()
		m.put(g, -1)
	}
	missing := make([]float64, len(s.movable)+1) // by position: the least for this guest and those after it
	for k, g := range slices.Backward(s.movable) {
		missing[k] = missing[k+1] + m.cheapest(g)
	}
	b := &branching{search: s, first: first, began: began, missing: missing,
		best: slices.Clone(first), low: min(now, near-margin) - enough, steps: m.policy.SearchSteps}
	nodes := 0.0
	for i := range m.nodes {
		nodes += m.costNow(i)
	}
	b.extend(0, fixed, nodes)
	return b.best, b.steps > 0
}

// cheapest returns what a guest that left the host adds to its cost at least when it comes
// back: with other guests on its nodes it adds no less.
func (m *model) cheapest(guest int) float64 {
	g := &m.guests[guest]
	was, low := g.at, math.Inf(1)
	for l := range g.layouts {
		if g.layouts[l].rejected && l != was {
			continue
		}
		g.at = l
		before := m.costOn(&g.layouts[l])
		m.put(guest, 1)
		low = min(low, g.fixedCost()+m.costOn(&g.layouts[l])-before)
		m.put(guest, -1)
	}
	g.at = was
	return low
}

// costOn returns what the nodes of a layout cost.
func (m *model) costOn(l *layout) (sum float64) {
	for _, s := range l.on {
		sum += m.costNow(s.node)
	}
	return sum
}

// put adds a guest's layout to the usage of its nodes (sign 1), or subtracts it (sign -1).
func (m *model) put(guest int, sign float64) {
	g := &m.guests[guest]
	m.add(g, g.layout(), sign)
	for _, s := range g.layout().on {
		m.priced[s.node] = math.NaN()
	}
}

// branching is the state of bestOfAll.
type branching struct {
	*search
	first   []int
	began   []usage
	missing []float64
	best    []int
	low     float64 // an answer must cost less
	steps   int     // left
}

// extend tries all layouts of the guest at position k. own is what the guests that are on the
// host cost without their nodes, and nodes is what the nodes cost.
func (b *branching) extend(k int, own, nodes float64) {
	m := b.m
	if b.steps--; b.steps <= 0 {
		return
	}
	least := own + b.missing[k] + nodes
	if least >= b.low {
		return
	}
	if k == len(b.movable) {
		if m.allowedSince(b.first, b.began) {
			b.best, b.low = m.state(), least-enough
		}
		return
	}
	g := &m.guests[b.movable[k]]
	was := g.at
	for l := range g.layouts {
		if g.layouts[l].rejected && l != was {
			continue
		}
		g.at = l
		without := m.costOn(g.layout())
		m.put(b.movable[k], 1)
		b.extend(k+1, own+g.fixedCost(), nodes+m.costOn(g.layout())-without)
		m.put(b.movable[k], -1)
	}
	g.at = was
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
