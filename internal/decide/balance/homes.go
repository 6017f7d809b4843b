package balance

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// cells returns the numbers of cells into which a running guest may be divided.
func (m *model) cells(g *subject) []int {
	if p := g.seen.Placement; p != nil && g.spec.Topology.Mode != guest.TopologyOff {
		return []int{len(p.Cells)}
	}
	return place.Cells(g.spec, len(m.nodes))
}

// allSets is the largest number of node sets for which homeSets proposes all.
const allSets = 32

// homeSets proposes homes for the cells. It always proposes the current homes,
// and those with one home replaced. To these it adds every set of nodes if
// there are at most allSets, else for every node the set of its nearest nodes.
func (m *model) homeSets(g *subject, divided []part) [][]topology.NodeID {
	if len(divided) == 1 {
		return m.singleHomes(g)
	}
	var out [][]topology.NodeID
	add := func(homes []int) {
		ids := make([]topology.NodeID, len(homes))
		for i, n := range homes {
			ids[i] = m.nodes[n].id
		}
		if !slices.ContainsFunc(out, func(have []topology.NodeID) bool { return slices.Equal(have, ids) }) {
			out = append(out, ids)
		}
	}
	now := m.homesNow(g, len(divided))
	if now != nil {
		add(now)
	}
	all := m.sets(g, len(divided))
	for _, set := range all {
		add(arranged(set, now))
	}
	for seed := range m.nodes {
		if all == nil && m.home(g, seed) {
			if set := m.nearest(g, seed, len(divided)); set != nil {
				add(arranged(set, now))
			}
		}
		if now == nil || slices.Contains(now, seed) || !m.home(g, seed) {
			continue
		}
		for i := range now {
			other := slices.Clone(now)
			other[i] = seed
			add(other)
		}
	}
	return out
}

// singleHomes returns every node that may be the home of a guest with one cell, the current one first.
func (m *model) singleHomes(g *subject) [][]topology.NodeID {
	flat := make([]topology.NodeID, 0, len(m.nodes))
	now := m.homesNow(g, 1)
	for _, i := range now {
		flat = append(flat, m.nodes[i].id)
	}
	for i := range m.nodes {
		if m.home(g, i) && !slices.Contains(now, i) {
			flat = append(flat, m.nodes[i].id)
		}
	}
	return slices.Collect(slices.Chunk(flat, 1))
}

// sets returns every set of k nodes that may be homes, or nil if there are more
// than allSets.
func (m *model) sets(g *subject, k int) (all [][]int) {
	var homes []int
	for i := range m.nodes {
		if m.home(g, i) {
			homes = append(homes, i)
		}
	}
	var extend func(set []int, from int)
	extend = func(set []int, from int) {
		if len(set) == k {
			all = append(all, slices.Clone(set))
			return
		}
		for i := from; i <= len(homes)-(k-len(set)) && len(all) <= allSets; i++ {
			extend(append(set, homes[i]), i+1)
		}
	}
	extend(make([]int, 0, k), 0)
	if len(all) > allSets {
		return nil
	}
	return all
}

// home reports whether a node may be the home of a cell of the guest.
func (m *model) home(g *subject, i int) bool {
	n, limits := &m.nodes[i], &g.spec.Limits
	return n.cpus > 0 && n.memory > 0 && (limits.Nodes.IsEmpty() || limits.Nodes.Contains(n.id))
}

// nearest returns the seed and the k-1 nodes with the lowest latency to and
// from it. Among equals it prefers nodes with the lowest CPU use.
func (m *model) nearest(g *subject, seed, k int) []int {
	set := append(make([]int, 0, k), seed)
	for _, i := range m.neighbours(seed) {
		if len(set) == k {
			break
		}
		if m.home(g, i) {
			set = append(set, i)
		}
	}
	if len(set) < k {
		return nil
	}
	slices.Sort(set)
	return set
}

// neighbours returns all nodes but the seed in the order of nearest. The order is that
// of the first call for a seed; nearest is called only before the plan changes the use.
func (m *model) neighbours(seed int) []int {
	if m.nearTo[seed] != nil {
		return m.nearTo[seed]
	}
	latency := make([]float64, len(m.nodes))
	others := make([]int, 0, len(m.nodes))
	for i := range m.nodes {
		latency[i] = m.access.Latency(seed, i) + m.access.Latency(i, seed)
		if i != seed {
			others = append(others, i)
		}
	}
	slices.SortStableFunc(others, func(a, b int) int {
		return cmp.Or(cmp.Compare(latency[a], latency[b]), cmp.Compare(m.use(a), m.use(b)))
	})
	m.nearTo[seed] = others
	return others
}

// homesNow returns the current homes of a guest's cells: those of its placement,
// else the nodes that hold most of its memory; nil if there are fewer than k.
func (m *model) homesNow(g *subject, k int) []int {
	var homes []int
	if p := g.seen.Placement; p != nil && len(p.Cells) == k {
		for _, c := range p.Cells {
			id, _ := c.Nodes.First()
			if i := m.position(id); i >= 0 && m.home(g, i) && !slices.Contains(homes, i) {
				homes = append(homes, i)
			}
		}
	} else {
		on := slices.Clone(g.layouts[0].on)
		slices.SortStableFunc(on, func(a, b share) int { return cmp.Compare(b.mem, a.mem) })
		for _, s := range on {
			if len(homes) < k && s.mem > 0 && m.home(g, s.node) {
				homes = append(homes, s.node)
			}
		}
	}
	if len(homes) != k {
		return nil
	}
	return homes
}

// arranged orders homes so that as many cells as possible keep their node.
func arranged(set, now []int) []int {
	if len(now) != len(set) {
		return set
	}
	out := slices.Repeat([]int{-1}, len(set))
	rest := slices.Clone(set)
	for i, n := range now {
		if at := slices.Index(rest, n); at >= 0 {
			out[i] = n
			rest = slices.Delete(rest, at, at+1)
		}
	}
	for i := range out {
		if out[i] < 0 {
			out[i], rest = rest[0], rest[1:]
		}
	}
	return out
}
