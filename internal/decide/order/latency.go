package order

import (
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// VCPUTargets returns the nodes to whose CPUs the vCPUs of a VM move.
func VCPUTargets(g plan.GuestMove, t *topology.Topology) (nodes topology.NodeSet) {
	for _, v := range g.Placement.VCPUs {
		nodes = nodes.Union(t.NodesOf(v.CPUs))
	}
	return nodes
}

// MeanLatency is the mean latency from the CPUs of some nodes to memory, relative to
// the best of the host; 0 if there is no memory.
func MeanLatency(
	access *cost.Access, t *topology.Topology, from topology.NodeSet, memory topology.MemoryByNode,
) float64 {
	var sum, weight float64
	for i := range t.Nodes {
		if !from.Contains(t.Nodes[i].ID) {
			continue
		}
		for k := range t.Nodes {
			if bytes := float64(memory[t.Nodes[k].ID]); bytes > 0 {
				sum, weight = sum+bytes*access.Latency(i, k), weight+bytes
			}
		}
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}
