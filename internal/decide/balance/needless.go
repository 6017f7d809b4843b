package balance

import "math"

// minSaved is the least that a move must save, in CPUs. Less is within the errors
// of the estimate.
const minSaved = 0.01

// soonRepaid is the part of the horizon in which a move that saves little must repay the CPU time of its copy: with the
// default horizon in 45 s, before most loads change.
const soonRepaid = 1.0 / 40

// leastSaved returns how many CPUs changes must save to be worth making: the share
// MinGain of the CPU demand whose memory they copy, or as much as soon repays the copy, if that is
// less. Loads change, and a guest that is copied for little may have to go back soon. Each move within the last day is
// evidence of that, and doubles the least.
func (m *model) leastSaved(group []change) float64 {
	least := 0.0
	for _, c := range group {
		g := &m.guests[c.guest]
		l := &g.layouts[c.layout]
		evidence := g.recentMoves
		if l.homes != nil && m.nodeSet(l).Intersects(g.everLeft) {
			evidence++
		}
		worth := min(m.policy.Balance.MinGain*g.demand*l.copied, m.copyingCPUs(g, l)/soonRepaid)
		least += worth * math.Exp2(float64(evidence))
	}
	return max(minSaved, least)
}

// needless returns the changes of the plan without which its other moves would save
// as much, except for less than changes must save: those of whole moves, and those of
// single guests of an exchange. A change that makes room for another is not needless.
func (p *planner) needless() []change {
	for _, group := range p.groups {
		if p.saves(group) < p.model.leastSaved(group) {
			return group
		}
		for _, c := range group {
			if len(group) > 1 && p.saves([]change{c}) < p.model.leastSaved([]change{c}) {
				return []change{c}
			}
		}
	}
	return nil
}

// saves returns how many more CPUs would be lost without these changes of the plan,
// and many if the others are not possible without them.
func (p *planner) saves(changes []change) float64 {
	const many = 1e9
	m := p.model
	before := m.lost()
	without := make([]change, len(changes))
	for i, c := range changes {
		without[i] = change{c.guest, 0}
	}
	m.apply(without...)
	defer m.apply(changes...)
	peak := 0.0
	for i := range m.nodes {
		peak = max(peak, m.nodes[i].began)
	}
	if !m.allAllowed(p.began, peak) {
		return many
	}
	return m.lost().saved(before)
}
