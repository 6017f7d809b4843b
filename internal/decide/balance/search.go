package balance

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// search looks for the best state of the host that moves of the movable guests
// can reach.
type search struct {
	m       *model
	movable []int // indexes of guests
	pairs   bool  // a descent may move two guests together
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

// targets yields the changes that lead to the best states found, best first; none if no state is better. Whenever it
// yields, the model is as before. Where few guests are movable, it tries pairs of moves only if the search of all
// combinations does not end, or if its result is not wanted: trying all pairs takes as long as that search.
func (m *model) targets(movable []int, moves int) iter.Seq[[]change] {
	few, s := len(movable) <= fewMovable, &search{m: m, movable: movable}
	return func(yield func([]change) bool) {
		effort := withPairs
		if few {
			effort = singleMoves
		}
		near := m.descent(movable, moves, effort)
		best, exact := s.bestOfAll(m.costAfter(near), equal*m.price(near))
		far := m.changes(m.state(), best)
		switch {
		case !exact && few:
			near = m.descent(movable, moves, withRestarts)
		case exact && len(far) > 0:
			if !yield(far) {
				return
			}
			if few {
				near = m.descent(movable, moves, withPairs)
			}
		}
		if len(near) > 0 {
			yield(near)
		}
	}
}

// bestInstead returns the changes that lead to the best state found; none if no state is better than a known one. As in
// targets, a better state must be cheaper by a margin.
func (m *model) bestInstead(movable []int, known []change, moves int) []change {
	s := &search{m: m, movable: movable}
	best, exact := s.bestOfAll(m.costAfter(known), equal*m.price(known))
	switch {
	case exact:
		return m.changes(m.state(), best)
	case len(movable) <= fewMovable:
		return m.descent(movable, moves, withRestarts)
	}
	return m.descent(movable, moves, withPairs)
}

// price returns what the copies of changes cost.
func (m *model) price(changes []change) (sum float64) {
	for _, c := range changes {
		sum += m.guests[c.guest].layouts[c.layout].price
	}
	return sum
}

// costAfter returns the host's cost after changes.
func (m *model) costAfter(changes []change) float64 {
	was := m.inverse(changes)
	m.apply(changes...)
	total := m.total()
	m.apply(was...)
	return total
}

// effort is how thoroughly a descent searches.
type effort int

const (
	singleMoves  effort = iota // one guest moves at a time
	withPairs                  // two guests move together where no single move helps
	withRestarts               // and again without each movable guest, and from each of their other layouts
)

// descent returns the changes of the best of several descents, or of one from the current state. All share the same
// steps.
func (m *model) descent(movable []int, moves int, effort effort) []change {
	s := &search{m: m, movable: movable, pairs: effort >= withPairs, steps: sweepSteps * m.policy.SearchSteps}
	first, began := m.state(), slices.Clone(m.usage)
	best, low := first, m.total()
	s.descend(moves, func() {
		if m.allowedSince(first, began) {
			best, low = m.state(), m.total()
		}
	})
	m.restore(first)
	if effort < withRestarts {
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

// fewMovable is the number of movable guests up to which all combinations of their layouts are searched, or a descent
// starts again from each of their other layouts.
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

// bestOfAll returns the best allowed combination of all layouts, and whether the search has ended:
// it ends without an answer after the policy's SearchSteps. near is the cost of a
// state that is known; another one must cost less by a margin.
//
// It is a branch and bound: the movable guests leave the host, and come back one by one. A part
// of a combination is not continued if, with the cheapest layout of each missing guest, it
// costs more than the best combination so far. The more guests are on a node, the more each adds, so what a missing
// guest adds to those that are back is a bound. Where vCPUs have no CPU that need not hold: then the search goes on
// with what each guest adds if all others are missing, from the best combination so far.
func (s *search) bestOfAll(near, margin float64) (best []int, exact bool) {
	m := s.m
	first, began, sets := m.state(), slices.Clone(m.usage), slices.Clone(m.cpuSets)
	if n := len(s.movable); stepsEach*n*n/2 > m.policy.SearchSteps {
		return first, false // it would end before the first combination
	}
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
	adds := make([][]addition, len(s.movable))
	for k, g := range s.movable {
		adds[k] = m.additions(g)
	}
	b := &branching{search: s, first: first, began: began, best: slices.Clone(first),
		low: min(now, near-margin) - enough, steps: m.policy.SearchSteps, rises: make([]float64, len(m.nodes)),
		levels: newLevels(adds)}
	b.findSecond(adds)
	nodes := 0.0
	for i := range m.nodes {
		nodes += m.costNow(i)
		b.peak = max(b.peak, m.nodes[i].use(&began[i]))
	}
	b.extend(0, fixed+nodes, adds)
	if b.crowds() { // and where vCPUs have no CPU, one more guest may add less than the one before
		b.alone, b.second = true, nil
		b.extend(0, fixed+nodes, adds)
	}
	return b.best, b.steps > 0
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

// stepsEach is the number of steps for each guest that is missing from a part of a combination: one of its layouts is
// evaluated, and one of the guest that comes back next.
const stepsEach = 2

// branching is the state of bestOfAll.
type branching struct {
	*search
	first []int
	began []usage
	peak  float64 // the highest use of a node at the beginning
	best  []int
	low   float64 // an answer must cost less
	steps int     // left
	alone bool    // a guest is taken to add as little as if no other movable one were on the host

	// second is the least that each guest adds with each of its layouts if another movable guest is on the same node.
	// nil: not known.
	second [][]float64
	rises  []float64 // by node; used by leastOf
	levels []level   // by position of the guest that comes back next
}

// level has the slices of one level of the search, used again for each part of a combination.
type level struct {
	after [][]addition // of the guests from this position on
	order []int        // of the layouts of the guest at this position
}

// findSecond finds what guests add as the second one on a node, if that takes a small part of the steps.
func (b *branching) findSecond(adds [][]addition) {
	const part = 8
	layouts, m := 0, b.m
	for k := range adds {
		layouts += len(adds[k])
	}
	tries := layouts * (len(adds) - 1)
	if tries > b.steps/part {
		return
	}
	b.steps -= tries
	b.second = make([][]float64, len(adds))
	for k, of := range adds {
		b.second[k] = make([]float64, len(of))
		for l := range of {
			b.second[k][l] = math.Inf(1)
		}
	}
	for k, g := range b.movable {
		for l := range adds[k] {
			placed := &m.guests[g].layouts[l]
			if len(placed.on) != 1 || math.IsInf(adds[k][l].cost, 1) {
				continue
			}
			was := m.guests[g].at
			m.guests[g].at = l
			m.put(g, 1)
			b.addSecond(k, placed, adds)
			m.put(g, -1)
			m.guests[g].at = was
		}
	}
}

// addSecond notes what each other guest adds on the node of a layout that one guest has now.
func (b *branching) addSecond(first int, placed *layout, adds [][]addition) {
	for k, g := range b.movable {
		for l := range adds[k] {
			on := b.m.guests[g].layouts[l].on
			if k != first && len(on) == 1 && on[0].node == placed.on[0].node && !math.IsInf(adds[k][l].cost, 1) {
				b.second[k][l] = min(b.second[k][l], b.m.addition(g, l))
			}
		}
	}
}

// leastOf returns the least that the guests from position k on add. Each adds the least alone, but of those that add
// the least on the same node, all but one add as much as the second guest there, or as with their next best layout.
// Which one of them is alone does not matter: the rise of the others counts, without the greatest.
func (b *branching) leastOf(k int, adds [][]addition) (sum float64) {
	for i, of := range adds {
		best := least(of)
		sum += of[best].cost
		on := b.m.guests[b.movable[k+i]].layouts[best].on
		if b.second == nil || len(on) != 1 {
			continue
		}
		next := b.second[k+i][best]
		for l := range of {
			if l != best {
				next = min(next, of[l].cost)
			}
		}
		rise, highest := max(0, next-of[best].cost), &b.rises[on[0].node]
		if !math.IsInf(rise, 1) {
			sum += min(rise, *highest)
			*highest = max(rise, *highest)
		}
	}
	clear(b.rises)
	return sum
}

// crowds reports whether vCPUs have no CPU in the best state.
func (b *branching) crowds() bool {
	for _, g := range b.movable {
		b.m.guests[g].at = b.best[g]
		b.m.put(g, 1)
	}
	crowds := b.m.withoutCPU() > slack
	for _, g := range b.movable {
		b.m.put(g, -1)
		b.m.guests[g].at = b.first[g]
	}
	return crowds
}

// allows reports whether the nodes of a layout may have the guests that have come back. If not, they may not have more
// either.
func (b *branching) allows(l *layout) bool {
	for i := range l.on {
		if node := l.on[i].node; !b.m.allowed(node, &b.began[node], b.peak) {
			return false
		}
	}
	return true
}

// addition is what a guest that left the host adds to its cost when it comes back with a layout. If others have come to
// nodes of the layout since, it is the least that it adds: the more guests are on a node, the more each adds.
type addition struct {
	cost     float64
	outdated bool
}

// extend tries all layouts of the guest at position k. cost is what the guests that are on the
// host cost, with their nodes; adds is what the guests from position k on add.
func (b *branching) extend(k int, cost float64, adds [][]addition) {
	m := b.m
	if k == len(b.movable) {
		if cost < b.low && m.allowedSince(b.first, b.began) {
			b.best, b.low = m.state(), cost-enough
		}
		return
	}
	if b.steps -= stepsEach * len(adds); b.steps <= 0 {
		return
	}
	rest := b.leastOf(k+1, adds[1:])
	g := b.movable[k]
	was := m.guests[g].at
	for _, l := range b.ascending(k, adds[0]) {
		if cost+adds[0][l].cost+rest >= b.low {
			break
		}
		added := adds[0][l].cost
		if adds[0][l].outdated || b.alone {
			added = m.addition(g, l)
		}
		if cost+added+rest >= b.low {
			continue
		}
		m.guests[g].at = l
		m.put(g, 1)
		if placed := &m.guests[g].layouts[l]; b.allows(placed) {
			b.extend(k+1, cost+added, b.after(placed, k+1, adds[1:]))
		}
		m.put(g, -1)
	}
	m.guests[g].at = was
}

// least returns the index of the layout that adds least.
func least(adds []addition) int {
	best := 0
	for l := range adds {
		if adds[l].cost < adds[best].cost {
			best = l
		}
	}
	return best
}

// newLevels returns the levels of a search in which guests have these layouts.
func newLevels(adds [][]addition) []level {
	levels := make([]level, len(adds)+1)
	for k := range levels {
		levels[k].after = make([][]addition, len(adds)-k)
	}
	return levels
}

// ascending returns the indexes of the layouts of the guest at position k, those that add least first. The result is
// valid until the next call for this position.
func (b *branching) ascending(k int, adds []addition) []int {
	out := b.levels[k].order[:0]
	for l := range adds {
		out = append(out, l)
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(adds[a].cost, adds[b].cost) })
	b.levels[k].order = out
	return out
}

// after returns what the guests from position k on add once a guest has come back with a layout. What the layout of
// each that adds least adds is computed again. The result is valid until the next call for this position.
func (b *branching) after(placed *layout, k int, before [][]addition) [][]addition {
	if b.alone {
		return before
	}
	after := b.levels[k].after
	for i := range before {
		after[i] = append(after[i][:0], before[i]...)
		adds, g := after[i], b.movable[k+i]
		for l := range adds {
			adds[l].outdated = adds[l].outdated || b.m.guests[g].layouts[l].meets(placed)
		}
		for l := least(adds); adds[l].outdated && !math.IsInf(adds[l].cost, 1); l = least(adds) {
			adds[l] = addition{cost: b.m.addition(g, l)}
		}
	}
	return after
}

// meets reports whether two layouts use a node in common.
func (l *layout) meets(other *layout) bool {
	for i := range l.on {
		for k := range other.on {
			if l.on[i].node == other.on[k].node {
				return true
			}
		}
	}
	return false
}

// additions returns what a guest that left the host adds to its cost when it comes back, with each of its layouts;
// infinite: the layout is rejected.
func (m *model) additions(guest int) []addition {
	g := &m.guests[guest]
	out := make([]addition, len(g.layouts))
	for l := range out {
		if out[l].cost = math.Inf(1); !g.layouts[l].rejected || l == g.at {
			out[l].cost = m.addition(guest, l)
		}
	}
	return out
}

// addition returns what a guest that left the host adds to its cost when it comes back with a layout.
func (m *model) addition(guest, layout int) float64 {
	g := &m.guests[guest]
	was := g.at
	defer func() { g.at = was }()
	g.at = layout
	before := m.costOn(g.layout())
	m.put(guest, 1)
	added := g.fixedCost() + m.costOn(g.layout()) - before
	m.put(guest, -1)
	return added
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

// descend repeatedly makes the best single move, or, if it may, the best pair if no single
// move helps, until nothing helps or the number of moves is reached. It calls made after each.
func (s *search) descend(moves int, made func()) {
	for range moves {
		found, rise := s.single()
		if rise > -enough && s.pairs {
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
