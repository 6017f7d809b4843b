package scale

import (
	"math"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// GuestOf returns a guest as its placement describes it, with the vCPUs that it uses and its memory by node; ok is
// false if its number of vCPUs does not follow its demand. Cells without vCPUs have nothing to decide.
func GuestOf(name string, p *guest.Placement, used guest.VCPUSet, memory topology.MemoryByNode) (g Guest, ok bool) {
	if p == nil || p.Scale == nil {
		return Guest{}, false
	}
	g = Guest{Name: name, Weight: p.Scale.Weight, Min: p.Scale.Min}
	for i := range p.Cells {
		c := &p.Cells[i]
		if c.VCPUs.IsEmpty() {
			continue
		}
		cell := Cell{Nodes: c.Nodes, VCPUs: c.VCPUs, Used: used.Intersect(c.VCPUs)}
		for n := range c.Nodes.All() {
			cell.Memory += memory[n]
		}
		g.Cells = append(g.Cells, cell)
	}
	return g, true
}

// Room returns the CPUs that each node has for guests whose number of vCPUs follows their demand: the shared ones of
// the topology, less what the sample shows in use by others. Guests apart are those guests themselves, and all that do
// not run on shared CPUs. A part of a CPU that is left counts as one from half on. Before the first sample with a
// window, nothing is known to be in use.
func Room(
	t *topology.Topology, shared topology.CPUSet, s *inventory.Sample, apart map[string]bool,
) map[topology.NodeID]int {
	others := map[topology.NodeID]float64{}
	if s.Window > 0 {
		for i := range s.Nodes {
			others[s.Nodes[i].Node] = s.Nodes[i].CPU
		}
		for i := range s.Guests {
			if g := &s.Guests[i]; apart[g.Name] {
				for n, used := range g.CPUByNode {
					others[n] -= used
				}
			}
		}
	}
	room := map[topology.NodeID]int{}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		left := float64(n.CPUs.Intersect(shared).Len()) - max(0, others[n.ID])
		room[n.ID] = int(max(0, math.Floor(left+0.5)))
	}
	return room
}
