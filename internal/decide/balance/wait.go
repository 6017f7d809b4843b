package balance

// explainWait compares the measured wait of a guest in its present layout with the
// wait that the CPU use of its nodes explains. What is measured beyond that comes from
// bursts that coincide: it is assumed to change by as many percentage points of itself
// as the use of the nodes.
func (m *model) explainWait(g *subject) {
	if g.load == nil {
		return
	}
	g.explained, _ = m.predicted(g)
	measured := ratio(g.load.Wait, g.load.Demand())
	g.unseen = max(0, g.explained-measured)
	g.bursts = max(0, measured-g.explained)
	for _, s := range g.layout().on {
		m.usage[s.node].bursts += g.demand * g.bursts * (s.cpu - s.alone)
		if s.set > 0 {
			m.cpuSets[s.node].bursts[s.set-1] += g.demand * g.bursts * s.confinedPart()
		}
	}
	_, colliding := m.predicted(g)
	g.others = g.bursts - colliding
}

// predicted returns the share of a guest's demand that waits by the CPU use of its
// nodes, and by its bursts.
func (m *model) predicted(g *subject) (busy, bursts float64) {
	for _, s := range g.layout().on {
		n, a := &m.nodes[s.node], &m.usage[s.node]
		use := n.use(a)
		share, part := n.waitShare(a, use, m.policy.Count), s.confinedPart()
		busy += (s.cpu - s.alone) * share
		bursts += (s.cpu - s.alone) * g.bursts * use
		if part > 0 {
			c := m.cpuSets[s.node].crowds()[s.set-1]
			busy += part * max(0, c.share-share)
			bursts += part * g.bursts * max(0, c.use-use)
		}
	}
	return busy, bursts
}

// waits returns the share of a guest's demand that waits, 0 to 1: as measured in its
// first layout, predicted in others and after moves of other guests. A guest that
// waited less than its nodes explain waits less in proportion on nodes that are less
// busy, and as much less on busier ones.
func (m *model) waits(g *subject) float64 {
	busy, bursts := m.predicted(g)
	if less := busy <= g.explained; less && g.explained > 0 {
		busy *= 1 - g.unseen/g.explained
	} else {
		busy -= g.unseen
	}
	return max(0, min(1, busy+bursts+g.others))
}
