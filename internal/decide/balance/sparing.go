package balance

import (
	"math"

	"github.com/numavisor/numavisor/internal/policy"
)

// sparing replaces changes that copy the memory of a guest by ones that bring
// its vCPUs to it, where those alone end the guest's degradation: they take
// effect at once and cost next to nothing. Copying for the sake of a still
// better state would be a move that nobody is degraded for.
func (m *model) sparing(wanted []change) []change {
	first := m.state()
	defer m.restore(first)
	m.make(wanted...)
	out := make([]change, len(wanted))
	for i, c := range wanted {
		out[i] = c
		if g := &m.guests[c.guest]; g.degraded && g.layouts[c.layout].copied > copiedAtMost {
			if l, ok := m.uncopied(c.guest, first[c.guest]); ok {
				out[i].layout = l
				m.make(out[i])
			}
		}
	}
	return out
}

// uncopied is the best layout of a guest, other than the one it began with,
// that copies nothing to speak of and leaves it without a reason to be degraded.
func (m *model) uncopied(guest, began int) (layout int, ok bool) {
	g := &m.guests[guest]
	low := math.Inf(1)
	for l := range g.layouts {
		if l == began || g.layouts[l].barred || g.layouts[l].copied > copiedAtMost {
			continue
		}
		if rise, legal := m.try(change{guest, l}); legal && rise < low && m.content(guest, l) {
			layout, low, ok = l, rise, true
		}
	}
	return layout, ok
}

// content reports whether a guest would not be degraded with a layout, and would
// leave those beside it enough of their node: a core for each vCPU, or a CPU
// where the policy counts threads, for what guests ask for on average says
// little of how often they ask at once. Whoever
// waits for CPUs now is not content with any: how long it would wait elsewhere
// is not known.
func (m *model) content(guest, layout int) bool {
	g := &m.guests[guest]
	was := g.at
	m.make(change{guest, layout})
	defer m.make(change{guest, was})
	for _, on := range g.layout().on {
		n, a := &m.nodes[on.node], &m.asked[on.node]
		room := n.cpus - a.dedicated
		if m.policy.Count == policy.CountCores {
			room = min(room, float64(n.cores))
		}
		if m.use(on.node) > m.policy.Balance.MaxNodeCPU || a.vcpus > room+slack {
			return false
		}
	}
	return !m.isDegraded(g, m.policy.Balance.Clear)
}
