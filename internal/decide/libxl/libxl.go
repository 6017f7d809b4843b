// Package libxl chooses nodes as Xen's toolstack does (libxl's automatic NUMA placement, 4.2 to
// 4.20), so that our choice can be compared with it.
package libxl

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// mostNodes is the number of nodes above which libxl places nothing.
const mostNodes = 16

// candidate is a set of nodes with what libxl compares.
type candidate struct {
	nodes []int // positions in the topology
	vcpus int   // of other guests that may run there, counted once on each node
	free  topology.Bytes
}

// before reports whether libxl prefers c: fewer vCPUs there, then more free memory.
func (c *candidate) before(o *candidate) bool {
	if c.vcpus != o.vcpus {
		return c.vcpus < o.vcpus
	}
	return c.free > o.free
}

// Choose returns the nodes that libxl would choose for a guest: the fewest nodes with enough free memory and
// CPUs together, of these the ones with the fewest vCPUs, then with the most free memory. It is false
// where libxl chooses none: on one node, on more than 16, or if nothing fits.
//
// libxl counts a vCPU on each node on which it may run, however busy it is. Distances, huge pages and
// CPUs dedicated to guests do not count. The vCPUs of dom0, which libxl counts too, are not in an inventory.
func Choose(h *inventory.Host, s *guest.Spec) (topology.NodeSet, bool) {
	limits, err := h.WithinPool(guest.Limits{Pool: s.Limits.Pool})
	nodes := h.Topology.Nodes
	if err != nil || len(nodes) <= 1 || len(nodes) > mostNodes {
		return topology.NodeSet{}, false
	}
	cpus, equal := make([]int, len(nodes)), true
	for i := range nodes {
		on := nodes[i].CPUs
		if !limits.CPUs.IsEmpty() {
			on = on.Intersect(limits.CPUs)
		}
		cpus[i] = on.Len()
		equal = equal && nodes[i].CPUs.Len() == nodes[0].CPUs.Len()
	}
	least := 1
	if each := nodes[0].CPUs.Len(); equal && each > 0 {
		least = (s.VCPUs + each - 1) / each
	}
	var suitable []int
	for i := range nodes {
		if cpus[i] > 0 {
			suitable = append(suitable, i)
		}
	}
	running := vcpusOn(h)
	for k := least; k <= len(suitable); k++ {
		var best *candidate
		for _, set := range combinations(suitable, k) {
			c, enough := candidate{nodes: set}, 0
			for _, i := range set {
				enough += cpus[i]
				c.vcpus += running[i]
				c.free = c.free.Plus(nodes[i].Free)
			}
			if c.free >= s.Memory && enough >= s.VCPUs && (best == nil || c.before(best)) {
				best = &c
			}
		}
		if best != nil {
			var chosen topology.NodeSet
			for _, i := range best.nodes {
				chosen = chosen.With(nodes[i].ID)
			}
			return chosen, true
		}
	}
	return topology.NodeSet{}, false
}

// vcpusOn counts the vCPUs that may run on each node.
func vcpusOn(h *inventory.Host) []int {
	on := make([]int, len(h.Topology.Nodes))
	for i := range h.Guests {
		for _, t := range h.Guests[i].Seen.Threads {
			cpus := t.Affinity
			if !t.Preferred.IsEmpty() {
				cpus = t.Preferred // the node affinity of Xen's guests follows from both
			}
			for n := range h.Topology.Nodes {
				if t.VCPU != nil && cpus.Intersects(h.Topology.Nodes[n].CPUs) {
					on[n]++
				}
			}
		}
	}
	return on
}

// combinations returns all sets of k of the values, in lexicographic order.
func combinations(values []int, k int) [][]int {
	var all [][]int
	var extend func(from int, set []int)
	extend = func(from int, set []int) {
		if len(set) == k {
			all = append(all, slices.Clone(set))
			return
		}
		for i := from; i <= len(values)-(k-len(set)); i++ {
			extend(i+1, append(set, values[i]))
		}
	}
	extend(0, make([]int, 0, k))
	return all
}
