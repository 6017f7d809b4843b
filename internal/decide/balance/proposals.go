package balance

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// proposal is a move that an earlier plan found for a degraded guest and did not make yet.
type proposal struct {
	plan.Proposal
	relieves string
	group    []change
	saves    float64 // CPUs, now
}

// decisive is how many times the least worthwhile saving makes a move at once: with the
// default MinGain half of the CPU demand whose memory is copied. Noise of loads of 15 %
// does not reach that.
const decisive = 5

// proven reports whether a move may be made now. Waiting varies with the loads: unless
// a move saves much or saves accesses, it must be worth it in every plan of a while.
func (p *planner) proven(group []change, benefit plan.Benefit, r relief) bool {
	least := p.model.leastSaved(group)
	return p.lasting || benefit.AccessCPUs >= least || r.saved >= decisive*least
}

// proves returns for how long a move must be worth it in every plan: for two samples,
// and twice as long for each move within the last day.
func (p *planner) proves(group []change) time.Duration {
	length, recent := time.Duration(p.model.policy.Balance.DegradedFor), 0
	for _, c := range group {
		g := &p.model.guests[c.guest]
		if g.load != nil {
			length = max(length, g.load.Window)
		}
		recent = max(recent, g.recentMoves)
	}
	return length << min(recent, 10)
}

// propose records a move that is not made yet. Its guests stay until the next plan.
func (p *planner) propose(group []change, relieves string) string {
	nodes := map[string]topology.NodeSet{}
	for _, c := range group {
		g := &p.model.guests[c.guest]
		g.waiting = true
		nodes[g.name()] = p.model.nodeSet(&g.layouts[c.layout])
	}
	p.proposed[relieves] = append(p.proposed[relieves], plan.Proposal{Nodes: nodes, Since: p.now})
	return "the move must be worth it for " + p.proves(group).String() + ", because loads vary"
}

// confirm makes the proposals of earlier plans that have been worth it for long enough,
// and records the others that are still worth it. What saves most comes first.
func (p *planner) confirm(past []plan.Degraded, mode policy.Mode) {
	var all []proposal
	for _, d := range past {
		for _, earlier := range d.Proposed {
			group := p.groupOf(earlier, mode)
			if group == nil || p.refusal(group) != "" {
				continue
			}
			_, _, r := p.weigh(group, p.bytes(group))
			all = append(all, proposal{earlier, d.Guest, group, r.saved})
		}
	}
	slices.SortStableFunc(all, func(a, b proposal) int { return cmp.Compare(b.saves, a.saves) })
	for _, each := range all {
		if p.now.Sub(each.Since) < p.proves(each.group) {
			p.proposed[each.relieves] = append(p.proposed[each.relieves], each.Proposal)
		} else if p.groupOf(each.Proposal, mode) != nil && p.refusal(each.group) == "" {
			p.make(each.group)
		}
	}
}

// groupOf returns the changes of a proposal; nil if its guests cannot make them now.
func (p *planner) groupOf(earlier plan.Proposal, mode policy.Mode) []change {
	var group []change
	for _, i := range p.movable(mode) {
		g := &p.model.guests[i]
		nodes, ok := earlier.Nodes[g.name()]
		for l := range g.layouts {
			if ok && l != g.at && !g.layouts[l].rejected && p.model.nodeSet(&g.layouts[l]).Equal(nodes) {
				group = append(group, change{i, l})
				break
			}
		}
	}
	if len(group) != len(earlier.Nodes) {
		return nil
	}
	return group
}

// withProposals adds the proposals for the guests of a list to it.
func (p *planner) withProposals(degraded []plan.Degraded) {
	for i := range degraded {
		d := &degraded[i]
		for _, each := range p.proposed[d.Guest] {
			same := func(o plan.Proposal) bool { return maps.EqualFunc(o.Nodes, each.Nodes, topology.NodeSet.Equal) }
			if !slices.ContainsFunc(d.Proposed, same) { // the earlier one comes first
				d.Proposed = append(d.Proposed, each)
			}
		}
	}
}
