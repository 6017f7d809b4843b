package balance

import "math"

// preferRepin replaces a change that copies a degraded guest's memory by one
// that only repins its vCPUs to the memory, if that alone ends the degradation.
// A repin takes effect at once and costs next to nothing. Copying memory must save
// as much more as a move of its own would have to.
func (m *model) preferRepin(wanted []change) []change {
	first := m.state()
	defer m.restore(first)
	m.apply(wanted...)
	out := make([]change, len(wanted))
	for i, c := range wanted {
		out[i] = c
		if g := &m.guests[c.guest]; g.degraded && g.layouts[c.layout].copied > maxUnmovable {
			if l, ok := m.withoutCopy(c.guest, first[c.guest]); ok {
				copied := m.lost()
				m.apply(change{c.guest, l})
				if m.lost().saved(copied) > m.leastSaved([]change{c}) {
					m.apply(c) // copying saves so much more that it is worth a move of its own
					continue
				}
				out[i].layout = l
			}
		}
	}
	return out
}

// withoutCopy returns the cheapest layout of a guest, other than its initial
// one, that copies at most maxUnmovable of its memory and ends its degradation.
func (m *model) withoutCopy(guest, began int) (layout int, ok bool) {
	g := &m.guests[guest]
	low := math.Inf(1)
	for l := range g.layouts {
		if l == began || g.layouts[l].rejected || g.layouts[l].copied > maxUnmovable {
			continue
		}
		if rise, legal := m.try(change{guest, l}); legal && rise < low && m.adequate(guest, l) {
			layout, low, ok = l, rise, true
		}
	}
	return layout, ok
}

// adequate reports whether a layout would end a guest's degradation and leave
// enough CPUs to the other guests of its nodes: a core for each vCPU, or a CPU
// where the policy counts threads. Demand is a mean, and says little about how
// often vCPUs want to run at the same time. No layout is adequate for a guest
// that waits for CPUs now, because its wait on other nodes is unknown.
func (m *model) adequate(guest, layout int) bool {
	g := &m.guests[guest]
	was := g.at
	m.apply(change{guest, layout})
	defer m.apply(change{guest, was})
	for _, on := range g.layout().on {
		n, a := &m.nodes[on.node], &m.usage[on.node]
		if m.full(n, a) || m.fullestSet(on.node) > 0 || a.vcpus > n.room(a, m.policy.Count)+slack {
			return false
		}
	}
	return !m.isDegraded(g, m.policy.Balance.Clear)
}
