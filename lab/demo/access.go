package demo

import (
	"slices"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
)

// Access is where a VM's memory accesses went while only that VM worked.
type Access struct {
	Local float64 // share of the accesses to memory of the node of the CPU, 0 to 1
	Nanos float64 // mean latency of an access on the imitated machine, in ns
	Count uint64  // accesses that missed the cache
}

// accessOf weighs each counted access with the latency of its pair of nodes.
func accessOf(s *lab.Shape, m *labcounter.Misses) Access {
	nodeOf := cpuNodes(s)
	var a Access
	var local uint64
	nanos := 0.0
	for cpu, row := range m.CPUs {
		if cpu >= len(nodeOf) {
			continue
		}
		for i, n := range row {
			to := int(m.Nodes[i]) // the lab numbers its nodes from 0, as the shape lists them
			a.Count += n
			nanos += float64(n) * s.Latency(nodeOf[cpu], to)
			if nodeOf[cpu] == to {
				local += n
			}
		}
	}
	if a.Count > 0 {
		a.Local, a.Nanos = float64(local)/float64(a.Count), nanos/float64(a.Count)
	}
	return a
}

// cpuNodes gives the position of each CPU's node. The lab numbers CPUs node by node.
func cpuNodes(s *lab.Shape) []int {
	var of []int
	for i, n := range s.Nodes {
		of = append(of, slices.Repeat([]int{i}, n.CPUs)...)
	}
	return of
}
