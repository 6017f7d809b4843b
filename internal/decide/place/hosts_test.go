package place

import (
	"github.com/numavisor/numavisor/internal/topology"
)

// shape describes a synthetic host.
type shape struct {
	nodes, cpus, threads int
	memory               topology.Bytes
	perSocket            int
	near, far            int // distances within the socket and across; default 16 and 28
	caches               int // last-level caches per node, default 1
}

// made builds the host: CPUs are numbered node by node, siblings next to each other.
func made(s shape) topology.Topology {
	near, far := s.near, s.far
	if near == 0 {
		near, far = 16, 28
	}
	var t topology.Topology
	for n := range s.nodes {
		id := topology.NodeID(n)
		node := topology.Node{ID: id, Memory: s.memory, Free: s.memory, Distances: map[topology.NodeID]int{}}
		for m := range s.nodes {
			switch {
			case n == m:
				node.Distances[topology.NodeID(m)] = 10
			case n/s.perSocket == m/s.perSocket:
				node.Distances[topology.NodeID(m)] = near
			default:
				node.Distances[topology.NodeID(m)] = far
			}
		}
		first := topology.CPUID(n * s.cpus)
		node.CPUs = topology.Range(first, first+topology.CPUID(s.cpus)-1)
		caches := max(1, s.caches)
		for c := range s.cpus {
			core := int(first) + c/s.threads*s.threads
			cache := int(first) + c*caches/s.cpus*(s.cpus/caches)
			last := min(core+s.threads, int(first)+s.cpus) - 1
			t.CPUs = append(t.CPUs, topology.CPU{
				ID: first + topology.CPUID(c), Core: topology.CoreID(core), Socket: topology.SocketID(n / s.perSocket),
				Node: id, L3: topology.L3ID(cache), Siblings: topology.Range(topology.CPUID(core),
					topology.CPUID(last)),
			})
		}
		t.Nodes = append(t.Nodes, node)
	}
	t.Classify()
	return t
}
