package balance

import (
	"fmt"
	"math"
	"strings"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// kind classifies a group of changes.
func (p *planner) kind(group []change) plan.MoveKind {
	if len(group) > 1 {
		return plan.Swap
	}
	m := p.model
	g := &m.guests[group[0].guest]
	now, then := g.layout(), &g.layouts[group[0].layout]
	from, to := m.vcpuNodes(now), m.vcpuNodes(then)
	switch {
	case then.copied == 0:
		return plan.Repin
	case from.Equal(to):
		return plan.FetchLocal
	case to.Len() > from.Len() && from.Len() == 1:
		return plan.Split
	case to.Len() < from.Len() && m.nodeSet(then).SubsetOf(m.nodeSet(now)):
		return plan.Consolidate
	case m.crowded(g):
		return plan.Spread
	}
	return plan.MoveGuest
}

// crowded reports whether the memory bandwidth of a guest's nodes is used up
// to the policy's threshold or beyond.
func (m *model) crowded(g *subject) bool {
	use := 0.0
	for _, s := range g.layout().on {
		use += s.mem * m.busy(s.node)
	}
	return use >= m.policy.Balance.Traffic
}

// why explains a move: the degradation that it ends, the nodes, the change in
// CPU use, the benefit and the price.
func (p *planner) why(group []change, r relief, benefit plan.Benefit, price plan.Price) string {
	m := p.model
	var b strings.Builder
	degraded := m.degradation(r.guest, m.policy.Balance.Clear).Why
	switch {
	case r.guest.mild:
		degraded = fmt.Sprintf("its vCPUs have waited for CPUs for a while, now %.0f %% of the time they are runnable",
			100*m.waits(r.guest))
	case degraded == "":
		degraded = "earlier moves of this plan end its degradation"
	}
	fmt.Fprintf(&b, "%s: %s; the move lowers its cost by %.0f %%", r.guest.name(), degraded,
		100*(1-ratio(r.after, r.before)))
	for _, c := range group {
		g := &m.guests[c.guest]
		then := &g.layouts[c.layout]
		fmt.Fprintf(&b, "; %s (CPU demand %.3g) moves from vCPUs on nodes %s and memory %s to nodes %s", g.name(),
			g.demand, m.vcpuNodes(g.layout()), m.memoryOf(g.layout()), m.vcpuNodes(then))
		if then.apart {
			fmt.Fprintf(&b, "; its memory stays on nodes %s: %s", topology.SetOf(g.seen.Seen.MemoryByNode.Nodes()...),
				whyPinned(g.seen))
		}
	}
	var uses []string
	before := map[int]float64{}
	touched := m.touched(group)
	for _, i := range touched {
		before[i] = m.use(i)
	}
	was := m.inverse(group)
	m.apply(group...)
	for i := range m.nodes {
		if was, ok := before[i]; ok && m.nodes[i].cpus > 0 && m.use(i) != was {
			uses = append(uses, fmt.Sprintf("node %d %.0f -> %.0f %%", m.nodes[i].id, tidy(100*was),
				tidy(100*m.use(i))))
		}
	}
	m.apply(was...)
	if len(uses) > 0 {
		fmt.Fprintf(&b, "; CPU demand: %s", strings.Join(uses, ", "))
	}
	fmt.Fprintf(&b, "; saves %.3g CPUs lost to slow memory and %.3g CPUs of waiting", tidy(benefit.AccessCPUs),
		tidy(benefit.WaitCPUs))
	fmt.Fprintf(&b, "; %v", price)
	return b.String()
}

// tidy removes the errors of rounding in sums, and the sign of a zero.
func tidy(figure float64) float64 {
	const exact = 1e6
	return math.Round(figure*exact)/exact + 0
}

func (m *model) memoryOf(l *layout) string {
	var parts []string
	for _, s := range l.on {
		if s.mem >= 0.005 {
			parts = append(parts, fmt.Sprintf("%.0f %% on %d", 100*s.mem, m.nodes[s.node].id))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
