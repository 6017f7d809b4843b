package room

import (
	"slices"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// candidate is a guest that may move.
type candidate struct {
	guest    *inventory.Guest
	spec     guest.Spec
	resident topology.Bytes
	options  []option
	least    topology.Bytes // what the cheapest option copies
	leaves   []amount       // what it holds now
	sources  []int          // nodes on which it holds vCPUs
}

// option is one target of a guest.
type option struct {
	homes []topology.NodeID // of its cells, in their order
	bytes topology.Bytes    // to copy
	takes []amount
}

// amount is what a guest holds on a node. Where a figure depends on pools of huge pages,
// it errs to the side of more room: the bound of the search must not be too high.
type amount struct {
	node   int
	small  float64 // bytes of small pages
	wanted float64 // bytes that the new guest could have instead
	vcpus  float64 // vCPUs that share CPUs; an exclusive CPU counts as the policy's overcommit
}

// candidates returns the guests that may move, in the order of the inventory.
func (s *search) candidates() []candidate {
	held := map[string][]inventory.Holding{}
	for _, h := range s.host.Holdings("") {
		held[h.Name] = append(held[h.Name], h)
	}
	names := map[string]int{}
	for i := range s.host.Guests {
		names[s.host.Guests[i].Name]++
	}
	var all []candidate
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		_, busy := s.host.Claim(g.Name)
		if busy || names[g.Name] > 1 || balance.MemoryPinned(g) || balance.Immovable(g, s.policy).Kind != "" {
			continue
		}
		c := candidate{guest: g, spec: balance.SpecOf(g), resident: g.Seen.MemoryByNode.Total()}
		for _, h := range held[g.Name] {
			n, ok := s.position[h.Node]
			if !ok {
				continue
			}
			a := amount{node: n, small: float64(h.Memory()),
				vcpus: h.VCPUs + s.policy.Overcommit*float64(h.Exclusive.Len())}
			if size := s.spec.PageSize; size == 0 || size == h.PageSize || s.policy.MayGrow(size) {
				a.wanted = a.small
			}
			c.leaves = append(c.leaves, a)
			if a.vcpus > 0 {
				c.sources = append(c.sources, n)
			}
		}
		s.addOptions(&c)
		if len(c.options) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// allSets is the largest number of node sets of which all are options.
const allSets = 64

// addOptions adds the targets of a guest: each set of as many nodes as it has now, or
// fewer where its cells allow, that are no farther apart than its nodes now.
func (s *search) addOptions(c *candidate) {
	now := s.homesNow(c.guest)
	counts := place.Cells(c.spec, len(s.nodes))
	if p := c.guest.Placement; p != nil && c.spec.Topology.Mode != guest.TopologyOff {
		counts = []int{len(p.Cells)}
	}
	apart := s.apart(now)
	for _, k := range counts {
		if k > max(1, len(now)) {
			break
		}
		sets, all := s.sets(c, now, k)
		s.partial = s.partial || !all
		for _, homes := range sets {
			if k > 1 && s.apart(homes) > apart || c.guest.CheckNodes(topology.SetOf(homes...)) != nil {
				continue
			}
			o := s.option(c, homes)
			if p := c.guest.Placement; p != nil && o.bytes == 0 && p.Nodes.Equal(topology.SetOf(homes...)) {
				continue // it is there already
			}
			c.options = append(c.options, o)
		}
	}
	for i, o := range c.options {
		if i == 0 || o.bytes < c.least {
			c.least = o.bytes
		}
	}
}

// homesNow returns the nodes of a guest's cells, else those that hold its memory.
func (s *search) homesNow(g *inventory.Guest) []topology.NodeID {
	var homes []topology.NodeID
	if p := g.Placement; p != nil {
		for _, c := range p.Cells {
			for id := range c.Nodes.All() {
				if !slices.Contains(homes, id) {
					homes = append(homes, id)
				}
			}
		}
		return homes
	}
	return g.Seen.MemoryByNode.Nodes()
}

// apart returns the greatest distance between nodes, in the units of the firmware.
func (s *search) apart(nodes []topology.NodeID) (most int) {
	for _, a := range nodes {
		for _, b := range nodes {
			if d, ok := s.host.Topology.Distance(a, b); a != b && ok {
				most = max(most, d)
			}
		}
	}
	return most
}

// sets returns the sets of k nodes to which a guest could move, and whether they are
// all. Cells that can stay keep their node.
func (s *search) sets(c *candidate, now []topology.NodeID, k int) (sets [][]topology.NodeID, all bool) {
	var homes []topology.NodeID
	for i := range s.nodes {
		n := &s.host.Topology.Nodes[i]
		limit := c.spec.Limits.Nodes
		if !n.CPUs.IsEmpty() && n.Memory > 0 && (limit.IsEmpty() || limit.Contains(n.ID)) {
			homes = append(homes, n.ID)
		}
	}
	var extend func(set []topology.NodeID, from int)
	extend = func(set []topology.NodeID, from int) {
		if len(set) == k {
			sets = append(sets, arranged(set, now))
			return
		}
		for i := from; i <= len(homes)-(k-len(set)) && len(sets) <= allSets; i++ {
			extend(append(set, homes[i]), i+1)
		}
	}
	extend(make([]topology.NodeID, 0, k), 0)
	return sets, len(sets) <= allSets
}

// arranged orders nodes so that as many cells as possible keep theirs.
func arranged(set, now []topology.NodeID) []topology.NodeID {
	if len(now) != len(set) {
		return slices.Clone(set)
	}
	out, rest := slices.Clone(now), slices.Clone(set)
	for _, id := range now {
		rest = slices.DeleteFunc(rest, func(r topology.NodeID) bool { return r == id })
	}
	for i := range out {
		if !slices.Contains(set, out[i]) {
			out[i], rest = rest[0], rest[1:]
		}
	}
	return out
}

// option returns what a guest takes on its new nodes, and how much of its memory is
// elsewhere.
func (s *search) option(c *candidate, homes []topology.NodeID) option {
	o := option{homes: homes}
	for i, id := range homes {
		memory, vcpus := part(&c.spec, i, len(homes))
		share := 1 / float64(len(homes))
		if len(c.spec.Topology.Cells) == len(homes) && c.spec.Memory > 0 {
			share = float64(memory) / float64(c.spec.Memory)
		}
		there := topology.Bytes(share * float64(c.resident))
		o.bytes += there - min(there, c.guest.Seen.MemoryByNode[id])
		a := amount{node: s.position[id], vcpus: float64(vcpus)}
		if c.spec.CPU.Binding == guest.CPUExclusive {
			a.vcpus *= s.policy.Overcommit
		}
		small := c.spec.PageSize == 0
		if small {
			a.small = float64(memory)
		}
		if size := s.spec.PageSize; size == c.spec.PageSize || small && s.policy.MayGrow(size) {
			a.wanted = float64(memory)
		}
		o.takes = append(o.takes, a)
	}
	return o
}

// part returns at least how much the i-th of k cells of a guest takes: placing rounds
// equal parts to whole pages and vCPUs.
func part(spec *guest.Spec, i, k int) (memory topology.Bytes, vcpus int) {
	if cells := spec.Topology.Cells; len(cells) == k {
		return cells[i].Memory, cells[i].VCPUs
	}
	if k == 1 {
		return spec.Memory, spec.VCPUs
	}
	unit := max(spec.PageSize, topology.MiB)
	return spec.Memory / topology.Bytes(k) / unit * unit, spec.VCPUs / k
}

// copied returns how much of a guest's memory a placement puts on other nodes.
func copied(g *inventory.Guest, p *guest.Placement) (sum topology.Bytes) {
	var promised topology.Bytes
	for _, r := range p.Reservations {
		promised += r.Memory
	}
	if promised == 0 {
		return 0
	}
	for _, r := range p.Reservations {
		part := float64(r.Memory) / float64(promised)
		there := topology.Bytes(part * float64(g.Seen.MemoryByNode.Total()))
		sum += there - min(there, g.Seen.MemoryByNode[r.Node])
	}
	return sum
}
