package balance

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// bytes is what a group of changes has to copy.
func (p *planner) bytes(group []change) topology.Bytes {
	var sum topology.Bytes
	for _, c := range group {
		g := &p.model.guests[c.guest]
		sum += topology.Bytes(g.layouts[c.layout].copied * float64(g.resident))
	}
	return sum
}

// relief is a degraded guest, with what a move does to its cost.
type relief struct {
	guest         *subject
	before, after float64
}

// forever is as long as a copy is said to take at most, in nanoseconds: 146
// years, which a time.Duration can still say.
const forever = 1 << 62

// weigh values a move: benefit for the host, price, and the guest that
// is degraded and gains most by it; relief.guest is nil where there is none.
func (p *planner) weigh(group []change, bytes topology.Bytes) (plan.Benefit, plan.Price, relief) {
	m := p.model
	price := plan.Price{Bytes: bytes}
	price.BytesPerSecond, price.RateFrom = m.policy.Balance.CopyRate(m.host.MoverBytesPerSecond)
	price.Took = time.Duration(min(forever, float64(bytes)/float64(price.BytesPerSecond)*float64(time.Second)))
	rise, _ := m.try(group...)
	for _, c := range group {
		g := &m.guests[c.guest]
		l := &g.layouts[c.layout]
		price.Cost += g.demand * (l.price - g.layout().price)
		price.PageTables = max(price.PageTables, l.tables)
	}
	benefit := plan.Benefit{Cost: price.Cost - rise, Horizon: time.Duration(m.policy.Balance.Horizon)}
	farBefore, waitBefore := m.lost()
	own := m.owns()
	was := m.back(group)
	m.make(group...)
	farAfter, waitAfter := m.lost()
	best := relief{}
	for i := range m.guests {
		g := &m.guests[i]
		if own[i] == 0 {
			continue
		}
		if after := m.own(g); best.guest == nil || own[i]-after > best.before-best.after {
			best = relief{g, own[i], after}
		}
	}
	m.make(was...)
	benefit.AccessCPUs, benefit.WaitCPUs = farBefore-farAfter, waitBefore-waitAfter
	return benefit, price, best
}

// back returns the changes that undo a group.
func (m *model) back(group []change) []change {
	out := make([]change, len(group))
	for i, c := range group {
		out[i] = change{c.guest, m.guests[c.guest].at}
	}
	return out
}

// owns returns what guests cost now that had been degraded for long when the round
// began, and still do: whom the moves before have helped needs no further ones.
func (m *model) owns() []float64 {
	own := make([]float64, len(m.guests))
	for i := range m.guests {
		if g := &m.guests[i]; g.patient && m.isDegraded(g, m.policy.Balance.Clear) {
			own[i] = m.own(g)
		}
	}
	return own
}

// lost is CPU time that guests lose to far or busy memory, and to waiting, in CPUs.
func (m *model) lost() (access, wait float64) {
	for i := range m.guests {
		g := &m.guests[i]
		slow := g.layout().far
		for _, s := range g.layout().on {
			slow += s.mem * cost.Contention(m.busy(s.node))
		}
		access += g.demand * g.intensity * slow / (1 + slow)
	}
	for i := range m.nodes {
		if use := m.use(i); use > 1 {
			wait += (m.asked[i].cpu - m.asked[i].alone) * (1 - 1/use)
		}
	}
	return access, wait
}

// gate says why a move is not worth making; empty if it is.
func (p *planner) gate(benefit plan.Benefit, price plan.Price, r relief) string {
	m := p.model
	margin := m.policy.Balance.MinGain
	gain := benefit.Cost - price.Cost
	switch {
	case gain <= enough:
		return fmt.Sprintf("moving would save a cost of %.3g, its price is %.3g", benefit.Cost, price.Cost)
	case r.guest == nil || r.after > r.before*(1-margin):
		return fmt.Sprintf("no degraded guest would lose %.2g %% less", 100*margin)
	}
	saved := gain // a cost of the latency weight is a CPU that waits for memory all the time
	if w := m.list.Weight(cost.Latency); w > 0 {
		saved /= w
	}
	if earned := saved * benefit.Horizon.Seconds(); earned < price.Took.Seconds() {
		return fmt.Sprintf("copying takes %v and would not be earned within %v", price.Took.Round(time.Second),
			benefit.Horizon)
	}
	return ""
}
