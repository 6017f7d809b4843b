package balance

import (
	"fmt"
	"slices"
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

// relief is a degraded guest, with its cost before and after a move, and how many
// CPUs the move saves for all guests.
type relief struct {
	guest         *subject
	before, after float64
	saved         float64
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
		price.Cost += l.price - g.layout().price
		price.PageTables = max(price.PageTables, l.tables)
	}
	benefit := plan.Benefit{Cost: price.Cost - rise}
	n := m.around(group)
	before, own := m.lostIn(n), m.ownCosts(n)
	was := m.inverse(group)
	m.apply(group...)
	after := m.lostIn(n)
	best := relief{}
	for k, i := range n.guests {
		g := &m.guests[i]
		if own[k] == 0 {
			continue
		}
		if after := m.ownCost(g); best.guest == nil || own[k]-after > best.before-best.after {
			best = relief{guest: g, before: own[k], after: after}
		}
	}
	m.apply(was...)
	benefit.Horizon = p.expected(best.guest)
	benefit.AccessCPUs, benefit.WaitCPUs = before.access-after.access, before.wait-after.wait
	best.saved = before.saved(after)
	return benefit, price, best
}

// trusted is how many times as long as a guest has been degraded a gain is expected to last: a load that has just
// begun may be a short one, such as a VM that boots, and copying much memory slowly would not pay.
const trusted = 30

// lead is about how long a move takes until it copies: it claims its guests, reads their mappings and moves vCPUs. A
// guest that works no more by then is hardly copied (idle.go in internal/host/move). So the guest has been degraded
// for that long, too, when it is copied.
const lead = time.Second

// expected returns how long the gain of a move is expected to last.
func (p *planner) expected(g *subject) time.Duration {
	horizon := time.Duration(p.model.policy.Balance.Horizon)
	if g == nil || p.lasting {
		return horizon
	}
	return min(horizon, trusted*(g.since+lead))
}

// inverse returns the changes that restore the layouts of a group's guests.
func (m *model) inverse(group []change) []change {
	out := make([]change, len(group))
	for i, c := range group {
		out[i] = change{c.guest, m.guests[c.guest].at}
	}
	return out
}

// scope is a part of a model: guests and nodes, as indexes.
type scope struct{ guests, nodes []int }

// whole returns all guests and nodes.
func (m *model) whole() scope {
	p := scope{guests: make([]int, len(m.guests)), nodes: make([]int, len(m.nodes))}
	for i := range p.guests {
		p.guests[i] = i
	}
	for i := range p.nodes {
		p.nodes[i] = i
	}
	return p
}

// around returns the nodes that a group of changes leaves or goes to, and the guests that are on them. What all others
// cost and lose stays the same.
func (m *model) around(group []change) scope {
	p := scope{nodes: slices.Clone(m.touched(group))}
	is := make([]bool, len(m.nodes))
	for _, node := range p.nodes {
		is[node] = true
	}
	for i := range m.guests {
		if slices.ContainsFunc(m.guests[i].layout().on, func(s share) bool { return is[s.node] }) {
			p.guests = append(p.guests, i)
		}
	}
	return p
}

// ownCosts returns the cost of each guest of a scope that was eligible at the start of the
// plan and is still degraded, and 0 for all others. A guest that earlier moves
// of the plan have helped does not justify another move.
func (m *model) ownCosts(of scope) []float64 {
	own := make([]float64, len(of.guests))
	for k, i := range of.guests {
		if g := &m.guests[i]; g.eligible && m.counts(g) {
			own[k] = m.ownCost(g)
		}
	}
	return own
}

// losses are estimates of the CPU time that guests lose, in CPUs.
type losses struct {
	access float64 // CPUs that wait for memory; see wasted
	wait   float64 // CPUs in demand that wait for CPUs; see waitShare
	// beyond is the demand beyond all CPUs of each node, beyond MaxNodeCPU of them, and
	// beyond roomy of them, but no more than what has no CPU; and the same for each set of CPUs to which
	// guests are confined.
	beyond [3]float64
}

// roomy is the CPU use up to which a node has clear room: less than 0.2 % of the demand waits.
const roomy = 0.6

// lost returns what all guests lose.
func (m *model) lost() losses { return m.lostIn(m.whole()) }

// lostIn returns what the guests of a scope lose. With slow = excess latency + contention, an
// access takes 1 + slow times as long as at best; demand times intensity is the number
// of CPUs that always access memory. Dedicated CPUs do not wait.
func (m *model) lostIn(p scope) losses {
	var l losses
	for _, i := range p.guests {
		g := &m.guests[i]
		slow := g.layout().excessLatency
		for _, s := range g.layout().on {
			slow += s.mem * cost.Contention(m.busy(s.node))
		}
		l.access += g.demand * g.intensity * wasted(slow)
	}
	levels := [...]float64{1, m.policy.Balance.MaxNodeCPU, roomy}
	for _, i := range p.nodes {
		n, a, use := &m.nodes[i], &m.usage[i], m.use(i)
		l.wait += m.waiting(i, use)
		without := n.withoutCPU(a, m.policy.Count)
		for k, most := range levels {
			l.beyond[k] += a.bursts*use + beyond(use, most, a.cpu-a.alone-a.unmet, without)
		}
		if !n.divided {
			continue
		}
		for _, c := range m.cpuSets[i].crowds() {
			for k, most := range levels {
				l.beyond[k] += c.bursts*max(0, c.use-use) + beyond(c.use, most, c.demand, c.without)
			}
		}
	}
	return l
}

// beyond returns how much of a demand for CPUs is beyond a use of most, but no more than what has no CPU.
func beyond(use, most, demand, without float64) float64 {
	if use <= most {
		return 0
	}
	return min(without, demand*(1-most/use))
}

// saved returns how many CPUs less are lost after than before. Demand that only goes
// from one full node to another saves nothing, even if it would even out variations:
// less waiting counts up to the demand that leaves the part of nodes that is full.
func (l losses) saved(after losses) float64 {
	left := 0.0
	for k := range l.beyond {
		left = max(left, l.beyond[k]-after.beyond[k])
	}
	return l.access - after.access + min(l.wait-after.wait, left)
}

// cheap is how many times the CPU time that copying takes a move must save within the
// horizon to relieve a guest that waits only a little.
const cheap = 10

// earned returns the CPU time that a move saves within its horizon, in seconds.
func (p *planner) earned(b plan.Benefit) float64 {
	// A cost equal to the latency weight is one CPU that waits for memory all the
	// time; cost over weight is therefore in CPUs, and times seconds in CPU seconds.
	earned := b.Cost * b.Horizon.Seconds()
	if w := p.model.list.Weight(cost.Latency); w > 0 {
		earned /= w
	}
	return earned
}

// repaid returns when a guest will have been degraded for long enough for the move of a group to be expected to save
// the CPU time that its copy takes. ok is false if it is not only that which speaks against the move.
func (p *planner) repaid(group []change) (at time.Time, ok bool) {
	benefit, price, r := p.weigh(group, p.bytes(group))
	if r.guest == nil || benefit.Horizon <= 0 || p.earned(benefit) <= 0 {
		return time.Time{}, false
	}
	needed := time.Duration(price.Took.Seconds() / p.earned(benefit) * float64(benefit.Horizon)) // horizon
	if full := time.Duration(p.model.policy.Balance.Horizon); needed <= benefit.Horizon || needed > full {
		return time.Time{}, false
	}
	benefit.Horizon = needed + time.Millisecond
	if p.gate(group, benefit, price, r) != "" {
		return time.Time{}, false
	}
	return p.now.Add(needed/trusted - lead - r.guest.since), true
}

// shown is the precision of a duration in a reason.
const shown = 100 * time.Millisecond

// gate returns the reason why a move is not worth making, or "" if it is.
func (p *planner) gate(group []change, benefit plan.Benefit, price plan.Price, r relief) string {
	m := p.model
	margin := m.policy.Balance.MinGain
	gain, within := benefit.Cost-price.Cost, benefit.Horizon.Round(shown)
	switch {
	case benefit.Cost > enough && p.earned(benefit) < price.Took.Seconds():
		if _, known := price.Time(); !known {
			return fmt.Sprintf("copying %v takes more CPU time than the move would save within %v, "+
				"by an assumed rate of %v a second", price.Bytes, within, price.BytesPerSecond)
		}
		return fmt.Sprintf("copying takes %v, more CPU time than the move would save within %v",
			price.Took.Round(shown), within)
	case gain <= enough:
		return fmt.Sprintf("the move would lower the host's cost by %.3g, which is not more than its price of %.3g",
			benefit.Cost, price.Cost)
	case r.guest == nil || r.after > r.before*(1-margin):
		return fmt.Sprintf("the move would not lower any degraded VM's cost by %.2g %%", 100*margin)
	}
	if r.guest.mild && r.saved < cheap*price.Cost/cost.Waiting {
		return fmt.Sprintf("%s waits too little for the price of the move", r.guest.name())
	}
	if least := m.leastSaved(group); r.saved < least {
		return fmt.Sprintf("the move would save %.2g CPUs, and %.2g are the least that is worth it", r.saved, least)
	}
	return ""
}
