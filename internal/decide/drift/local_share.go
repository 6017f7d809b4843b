package drift

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// shares is the part of a whole on each node; the parts add up to 1.
type shares map[topology.NodeID]float64

// LocalShare returns the part of a guest's memory, from 0 to 1, that is local to
// the vCPUs using it; nil where memory or vCPUs were not observed.
//
// It is a model, not a count of accesses. Within a cell, every vCPU uses all of
// the cell's memory equally, in proportion to the time it ran. A vCPU counts on
// the node where it last ran (ByLastCPU). If that node is unknown, or the vCPU may
// no longer run there, it counts on every node in proportion to the CPUs on which
// it may run there (ByAffinity). LocalBy says which of the two applies. The cell's
// share is then the probability that one access is local: the sum over nodes of
// memory share times vCPU share. Cells count by their memory. A guest without
// cells is one cell.
//
// Where the memory of several cells is known only in total (cgroup figures), the
// model assigns each node's memory to the cells with vCPUs there, up to the size
// of these cells. The result is close to an upper bound.
func LocalShare(g inventory.Guest, t *topology.Topology) *float64 {
	if t == nil {
		return nil
	}
	return localShare(&g, t)
}

// LocalSource is the basis on which LocalShare assigns vCPUs to nodes.
type LocalSource string

// Sources, the better one first.
const (
	ByLastCPU  LocalSource = "the CPU each vCPU ran on last"
	ByAffinity LocalSource = "the CPUs that vCPUs may run on"
)

func localShare(g *inventory.Guest, t *topology.Topology) *float64 {
	if len(g.Config.Cells) > 1 {
		if share, ok := cellsLocal(g, t); ok {
			return share
		}
		return cellsAtBest(g, t)
	}
	memory := topology.MemoryByNode{}
	for _, r := range g.Seen.Ranges {
		if r.Cell != nil {
			memory.Add(r.ByNode)
		}
	}
	if len(memory) == 0 {
		memory = g.Seen.MemoryByNode
	}
	return local(memoryShares(memory), vcpuShares(g, t, nil))
}

// cellsLocal computes the share cell by cell; ok is false unless every cell's mappings are known.
func cellsLocal(g *inventory.Guest, t *topology.Topology) (share *float64, ok bool) {
	localBytes, total := 0.0, 0.0
	for _, cell := range g.Config.Cells {
		memory := topology.MemoryByNode{}
		known := false
		for _, r := range g.Seen.Ranges {
			if r.Cell != nil && *r.Cell == cell.ID {
				known = true
				memory.Add(r.ByNode)
			}
		}
		if !known {
			return nil, false
		}
		user := cell.VCPUs // all vCPUs use a cell without vCPUs
		one := local(memoryShares(memory),
			vcpuShares(g, t, func(v guest.VCPUID) bool { return user.IsEmpty() || user.Contains(v) }))
		if one == nil {
			continue // nothing touched yet, or its vCPUs were not observed
		}
		size := float64(memory.Total())
		localBytes, total = localBytes+*one*size, total+size
	}
	if total == 0 {
		return nil, true
	}
	s := localBytes / total
	return &s, true
}

// cellsAtBest divides each node's memory among the cells, those with the most vCPU
// time there first, and gives no cell more than its size. The figures include the
// emulator's own memory, which counts as the cells' memory.
func cellsAtBest(g *inventory.Guest, t *topology.Topology) *float64 {
	type use struct {
		cell  int
		node  topology.NodeID
		share float64 // part of the cell's vCPUs that is on the node
	}
	var uses []use
	nodes, seen := g.Seen.MemoryByNode.Nodes(), g.Seen.MemoryByNode.Total()
	room, rooms := make([]float64, len(g.Config.Cells)), topology.Bytes(0)
	for i, cell := range g.Config.Cells {
		vcpus := vcpuShares(g, t, func(v guest.VCPUID) bool { return cell.VCPUs.IsEmpty() || cell.VCPUs.Contains(v) })
		for _, node := range nodes {
			if vcpus[node] > 0 {
				uses = append(uses, use{i, node, vcpus[node]})
			}
		}
		room[i], rooms = float64(cell.Memory), rooms+cell.Memory
	}
	if seen == 0 || rooms == 0 || len(vcpuShares(g, t, nil)) == 0 {
		return nil
	}
	grow := max(1, float64(seen)/float64(rooms))
	for i := range room {
		room[i] *= grow
	}
	slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(b.share, a.share) })
	left, local := maps.Clone(g.Seen.MemoryByNode), 0.0
	for _, u := range uses {
		part := min(room[u.cell], float64(left[u.node]))
		room[u.cell] -= part
		left[u.node] -= topology.Bytes(part)
		local += part * u.share
	}
	s := min(local/float64(seen), 1)
	return &s
}

func local(memory, vcpus shares) *float64 {
	if len(memory) == 0 || len(vcpus) == 0 {
		return nil
	}
	s := 0.0
	for _, node := range slices.Sorted(maps.Keys(memory)) { // sorted: the sum of floats depends on the order
		s += memory[node] * vcpus[node]
	}
	s = min(s, 1) // rounding
	return &s
}

func memoryShares(byNode topology.MemoryByNode) shares {
	total := byNode.Total()
	if total == 0 {
		return nil
	}
	s := shares{}
	for node, bytes := range byNode {
		s[node] = float64(bytes) / float64(total)
	}
	return s
}

// vcpuShares returns the nodes on which the vCPUs selected by use run (nil: all),
// weighted by the time they ran, or equally where that time is unknown.
func vcpuShares(g *inventory.Guest, t *topology.Topology, use func(guest.VCPUID) bool) shares {
	timed, all := shares{}, shares{}
	timeTotal, count := 0.0, 0.0
	var on shares // of the CPUs of; most guests' vCPUs may all run on the same
	var of topology.CPUSet
	timesKnown := timesAreKnown(g)
	for _, thread := range g.Seen.Threads {
		if thread.VCPU == nil || use != nil && !use(*thread.VCPU) {
			continue
		}
		if cpus := ranOn(&thread, t, timesKnown); on == nil || !cpus.Equal(of) {
			on, of = nodeShares(t, cpus), cpus
		}
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

// timesAreKnown reports whether the inventory has the run times of the vCPUs.
func timesAreKnown(g *inventory.Guest) bool {
	return slices.ContainsFunc(g.Seen.Threads, func(t inventory.Thread) bool { return t.VCPU != nil && t.RunTime > 0 })
}

// ranOn returns the CPU on which a vCPU's thread last ran, or all CPUs on which it
// may run. A thread that has not run yet has no last CPU. A thread that was pinned
// elsewhere since then moves there when it runs next.
func ranOn(thread *inventory.Thread, t *topology.Topology, timesKnown bool) topology.CPUSet {
	cpu, online := t.CPU(thread.LastCPU)
	if !online || timesKnown && thread.RunTime <= 0 || !thread.Affinity.Contains(cpu.ID) {
		return thread.Affinity
	}
	return topology.SetOf(cpu.ID)
}

// LocalBy returns the basis on which LocalShare counts the vCPUs of a guest: by
// affinity as soon as one running vCPU counts that way.
func LocalBy(g *inventory.Guest, t *topology.Topology) LocalSource {
	timesKnown := timesAreKnown(g)
	for i := range g.Seen.Threads {
		thread := &g.Seen.Threads[i]
		if thread.VCPU == nil || timesKnown && thread.RunTime <= 0 {
			continue
		}
		if cpus := ranOn(thread, t, timesKnown); cpus.Len() != 1 || !cpus.Contains(thread.LastCPU) {
			return ByAffinity
		}
	}
	return ByLastCPU
}

// nodeShares divides 1 over the nodes in proportion to their number of the given CPUs.
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
