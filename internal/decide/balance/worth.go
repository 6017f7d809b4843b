package balance

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// bytes returns how much memory a group of changes has to copy.
func (p *planner) bytes(group []change) topology.Bytes {
	var sum topology.Bytes
	for _, c := range group {
		g := &p.model.guests[c.guest]
		sum += topology.Bytes(g.layouts[c.layout].copied * float64(g.resident))
	}
	return sum
}

// relief is a degraded guest, with its cost before and after a move.
type relief struct {
	guest         *subject
	before, after float64
}

// maxTook bounds the estimated time of a copy, in nanoseconds: 146 years, so
// that it fits into a time.Duration.
const maxTook = 1 << 62

// weigh returns a move's benefit for the host, its price, and the degraded guest
// whose cost it lowers most; relief.guest is nil if it helps no degraded guest.
// The benefit is the fall of the host's cost without the price of the move.
func (p *planner) weigh(group []change, bytes topology.Bytes) (plan.Benefit, plan.Price, relief) {
	m := p.model
	price := plan.Price{Bytes: bytes}
	price.BytesPerSecond, price.RateFrom = m.policy.Balance.CopyRate(m.host.MoverBytesPerSecond)
	price.RateMeasured = m.host.MoverBytesPerSecond > 0
	price.Took = time.Duration(min(maxTook, float64(bytes)/float64(price.BytesPerSecond)*float64(time.Second)))
	rise, _ := m.try(group...)
	for _, c := range group {
		g := &m.guests[c.guest]
		l := &g.layouts[c.layout]
		price.Cost += g.demand * (l.price - g.layout().price)
		price.PageTables = max(price.PageTables, l.tables)
	}
	benefit := plan.Benefit{Cost: price.Cost - rise, Horizon: time.Duration(m.policy.Balance.Horizon)}
	farBefore, waitBefore := m.lostCPUs()
	own := m.ownCosts()
	was := m.inverse(group)
	m.apply(group...)
	farAfter, waitAfter := m.lostCPUs()
	best := relief{}
	for i := range m.guests {
		g := &m.guests[i]
		if own[i] == 0 {
			continue
		}
		if after := m.ownCost(g); best.guest == nil || own[i]-after > best.before-best.after {
			best = relief{g, own[i], after}
		}
	}
	m.apply(was...)
	benefit.AccessCPUs, benefit.WaitCPUs = farBefore-farAfter, waitBefore-waitAfter
	return benefit, price, best
}

// inverse returns the changes that restore the layouts of a group's guests.
func (m *model) inverse(group []change) []change {
	out := make([]change, len(group))
	for i, c := range group {
		out[i] = change{c.guest, m.guests[c.guest].at}
	}
	return out
}

// ownCosts returns the cost of each guest that was eligible at the start of the
// plan and is still degraded, and 0 for all others. A guest that earlier moves
// of the plan have helped does not justify another move.
func (m *model) ownCosts() []float64 {
	own := make([]float64, len(m.guests))
	for i := range m.guests {
		if g := &m.guests[i]; g.eligible && m.isDegraded(g, m.policy.Balance.Clear) {
			own[i] = m.ownCost(g)
		}
	}
	return own
}

// lostCPUs estimates the CPU time that guests lose, in CPUs.
//
// access: with slow = excess latency + contention, an access takes 1 + slow
// times as long as at best, so a CPU that always accesses memory wastes
// slow / (1 + slow) of its time; demand times intensity is the number of such CPUs.
//
// wait: a demand of u*n CPUs on n CPUs leaves the share 1 - 1/u waiting, for
// u > 1. Dedicated CPUs do not wait.
func (m *model) lostCPUs() (access, wait float64) {
	for i := range m.guests {
		g := &m.guests[i]
		slow := g.layout().excessLatency
		for _, s := range g.layout().on {
			slow += s.mem * cost.Contention(m.busy(s.node))
		}
		access += g.demand * g.intensity * slow / (1 + slow)
	}
	for i := range m.nodes {
		if use := m.use(i); use > 1 {
			wait += (m.usage[i].cpu - m.usage[i].alone) * (1 - 1/use)
		}
	}
	return access, wait
}

// gate returns the reason why a move is not worth making, or "" if it is.
func (p *planner) gate(benefit plan.Benefit, price plan.Price, r relief) string {
	m := p.model
	margin := m.policy.Balance.MinGain
	gain := benefit.Cost - price.Cost
	switch {
	case gain <= enough:
		return fmt.Sprintf("the move would lower the host's cost by %.3g, which is not more than its price of %.3g",
			benefit.Cost, price.Cost)
	case r.guest == nil || r.after > r.before*(1-margin):
		return fmt.Sprintf("the move would not lower any degraded VM's cost by %.2g %%", 100*margin)
	}
	// A cost equal to the latency weight is one CPU that waits for memory all the
	// time; cost over weight is therefore in CPUs, and times seconds in CPU seconds.
	saved := gain
	if w := m.list.Weight(cost.Latency); w > 0 {
		saved /= w
	}
	if earned := saved * benefit.Horizon.Seconds(); earned < price.Took.Seconds() {
		if _, known := price.Time(); !known {
			return fmt.Sprintf("copying %v takes more CPU time than the move would save within %v, "+
				"by an assumed rate of %v a second", price.Bytes, benefit.Horizon, price.BytesPerSecond)
		}
		return fmt.Sprintf("copying takes %v, more CPU time than the move would save within %v",
			price.Took.Round(time.Second), benefit.Horizon)
	}
	return ""
}
