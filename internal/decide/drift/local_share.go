package drift

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// shares is what part of a whole lies on each node; the parts sum up to 1.
type shares map[topology.NodeID]float64

// LocalShare returns which part of a guest's memory is local to the vCPUs
// using it, from 0 to 1; nil where memory or vCPUs were not seen.
//
// It is a model, not a count of accesses: within a cell every vCPU uses all of
// the cell's memory alike, in proportion to the time it ran; a vCPU runs on
// all CPUs it may run on alike, so one that may run on k nodes counts on each
// by the CPUs it has there. The cell's share is then the chance that one
// access is local: the sum over nodes of memory share times vCPU share. Cells
// count by their memory. A guest without cells is one cell.
//
// Where the memory of several cells is only known as a whole (cgroup figures),
// each node's vCPUs are taken to use that node's memory as far as it goes: the
// sum over nodes of the lesser of both shares, which is the most it can be.
func LocalShare(g inventory.Guest, t *topology.Topology) *float64 {
	if t == nil {
		return nil
	}
	if len(g.Config.Cells) > 1 {
		if share, ok := cellsLocal(&g, t); ok {
			return share
		}
		return local(memoryShares(g.Seen.MemoryByNode), vcpuShares(&g, t, nil), lesser)
	}
	memory := map[topology.NodeID]topology.Bytes{}
	for _, r := range g.Seen.Ranges {
		if r.Cell != nil {
			addTo(memory, r.ByNode)
		}
	}
	if len(memory) == 0 {
		memory = g.Seen.MemoryByNode
	}
	return local(memoryShares(memory), vcpuShares(&g, t, nil), product)
}

// cellsLocal reckons cell by cell; ok is false unless every cell's mappings are known.
func cellsLocal(g *inventory.Guest, t *topology.Topology) (share *float64, ok bool) {
	localBytes, total := 0.0, 0.0
	for _, cell := range g.Config.Cells {
		memory := map[topology.NodeID]topology.Bytes{}
		known := false
		for _, r := range g.Seen.Ranges {
			if r.Cell != nil && *r.Cell == cell.ID {
				known = true
				addTo(memory, r.ByNode)
			}
		}
		if !known {
			return nil, false
		}
		user := cell.VCPUs // a cell without vCPUs serves all
		one := local(memoryShares(memory), vcpuShares(g, t, func(v guest.VCPUID) bool { return user.IsEmpty() || user.Contains(v) }), product)
		if one == nil {
			continue // nothing touched yet, or its vCPUs not seen
		}
		size := float64(sum(memory))
		localBytes, total = localBytes+*one*size, total+size
	}
	if total == 0 {
		return nil, true
	}
	s := localBytes / total
	return &s, true
}

func product(a, b float64) float64 { return a * b }

func lesser(a, b float64) float64 { return min(a, b) }

func local(memory, vcpus shares, both func(a, b float64) float64) *float64 {
	if len(memory) == 0 || len(vcpus) == 0 {
		return nil
	}
	s := 0.0
	for _, node := range sortedNodes(memory) { // in order: sums of floats depend on it
		s += both(memory[node], vcpus[node])
	}
	s = min(s, 1) // rounding
	return &s
}

func memoryShares(byNode map[topology.NodeID]topology.Bytes) shares {
	total := sum(byNode)
	if total == 0 {
		return nil
	}
	s := shares{}
	for node, bytes := range byNode {
		s[node] = float64(bytes) / float64(total)
	}
	return s
}

// vcpuShares says on which nodes the vCPUs for which use holds run (nil: all),
// by the time they ran, alike where that is not known.
func vcpuShares(g *inventory.Guest, t *topology.Topology, use func(guest.VCPUID) bool) shares {
	timed, all := shares{}, shares{}
	timeTotal, count := 0.0, 0.0
	for _, thread := range g.Seen.Threads {
		if thread.VCPU == nil || use != nil && !use(*thread.VCPU) {
			continue
		}
		on := nodeShares(t, thread.Affinity)
		if len(on) == 0 {
			continue
		}
		ran := max(0, thread.RunTime.Seconds())
		for node, share := range on {
			timed[node] += share * ran
			all[node] += share
		}
		timeTotal, count = timeTotal+ran, count+1
	}
	if timeTotal > 0 {
		return timed.over(timeTotal)
	}
	return all.over(count)
}

// nodeShares divides 1 over the nodes of the CPUs, by CPUs.
func nodeShares(t *topology.Topology, cpus topology.CPUSet) shares {
	s, total := shares{}, 0
	for _, n := range t.Nodes {
		if on := n.CPUs.Intersect(cpus).Len(); on > 0 {
			s[n.ID] = float64(on)
			total += on
		}
	}
	return s.over(float64(total))
}

func (s shares) over(total float64) shares {
	for node := range s {
		s[node] /= total
	}
	return s
}

func addTo(into, from map[topology.NodeID]topology.Bytes) {
	for node, bytes := range from {
		into[node] += bytes
	}
}

func sum(byNode map[topology.NodeID]topology.Bytes) topology.Bytes {
	var total topology.Bytes
	for _, bytes := range byNode {
		total += bytes
	}
	return total
}

func sortedNodes(s shares) []topology.NodeID {
	nodes := make([]topology.NodeID, 0, len(s))
	for n := range s {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	return nodes
}
