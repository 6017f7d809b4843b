package place

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// smallUnit is the unit for dividing memory in small pages: guests handle cells of
// odd size badly, and every firmware handles whole MiB.
const smallUnit = topology.MiB

// cellSize is the amount that one cell needs of its node.
type cellSize struct {
	vcpus  int
	memory topology.Bytes // of the cell
	take   topology.Bytes // of its node: the same, except for interleave
	// helpers are CPUs dedicated to emulator and I/O threads.
	helpers int
	node    int // position of the only node allowed (mirror); -1: any
}

// shape divides the guest into k cells; ok is false if that is impossible.
// The first cells get the remainder.
func (p *problem) shape(k int) (cells []cellSize, ok bool) {
	s := &p.spec
	unit := max(s.PageSize, smallUnit)
	switch {
	case s.Topology.Mode == guest.TopologyCells && len(s.Topology.Cells) > 0:
		for _, c := range s.Topology.Cells {
			cells = append(cells, cellSize{vcpus: c.VCPUs, memory: c.Memory, node: -1})
		}
	default:
		if k > s.VCPUs || (k > 1 && s.Memory/unit < topology.Bytes(k)) {
			return nil, false
		}
		memory := splitBytes(s.Memory, k, unit)
		for i := range k {
			cells = append(cells, cellSize{vcpus: part(s.VCPUs, k, i), memory: memory[i], node: -1})
		}
	}
	p.setTakes(cells)
	return cells, true
}

// setTakes sets the memory and helper CPUs that cells use on their nodes.
func (p *problem) setTakes(cells []cellSize) {
	for i := range cells {
		cells[i].take = cells[i].memory
	}
	if p.spec.Binding.Mode == guest.MemoryInterleave {
		unit := max(p.spec.PageSize, 4*topology.KiB)
		for i, m := range splitBytes(p.spec.Memory, len(cells), unit) {
			cells[i].take = m
		}
	}
	cells[0].helpers = p.helperCPUs()
}

// helperCPUs is the number of CPUs dedicated to emulator and I/O threads.
func (p *problem) helperCPUs() int {
	n := 0
	if p.spec.CPU.Emulator == guest.HelperExclusive {
		n++
	}
	if p.spec.CPU.IOPolicy == guest.HelperExclusive {
		n += p.spec.CPU.IOThreads
	}
	return n
}

// mirrorShape creates a cell for each node that has CPUs and memory: vCPUs in
// proportion to the node's CPUs, memory in proportion to its memory.
func (p *problem) mirrorShape() (cells []cellSize, ok bool) {
	var cpus, memory []uint64
	for i := range p.nodes {
		n := &p.nodes[i]
		if n.allowed && !n.node.CPUs.IsEmpty() && n.node.Memory > 0 {
			cells = append(cells, cellSize{node: i})
			cpus = append(cpus, uint64(n.node.CPUs.Len()))
			memory = append(memory, uint64(n.node.Memory/topology.MiB))
		}
	}
	unit := max(p.spec.PageSize, smallUnit)
	if len(cells) == 0 || p.spec.VCPUs < len(cells) || p.spec.Memory/unit < topology.Bytes(len(cells)) {
		return nil, false
	}
	vcpus := proportion(uint64(p.spec.VCPUs), cpus)
	units := proportion(uint64(p.spec.Memory/unit), memory)
	for i := range cells {
		cells[i].vcpus = int(vcpus[i])
		cells[i].memory = topology.Bytes(units[i]) * unit
	}
	cells[0].memory += p.spec.Memory % unit
	p.setTakes(cells)
	return cells, true
}

// proportion divides total into whole parts as close to the weights as possible,
// at least 1 each. Invariant: total >= len(weights).
func proportion(total uint64, weights []uint64) []uint64 {
	sum := uint64(0)
	for _, w := range weights {
		sum += max(1, w)
	}
	parts := make([]uint64, len(weights))
	given := uint64(0)
	for i, w := range weights {
		parts[i] = max(1, uint64(float64(total)*float64(max(1, w))/float64(sum)))
		given += parts[i]
	}
	lack := func(i int) float64 {
		return float64(total)*float64(max(1, weights[i]))/float64(sum) - float64(parts[i])
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	for given != total {
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case lack(a) > lack(b):
				return -1
			case lack(a) < lack(b):
				return 1
			}
			return 0
		})
		if given < total {
			parts[order[0]]++
			given++
			continue
		}
		for i := len(order) - 1; i >= 0; i-- {
			if parts[order[i]] > 1 {
				parts[order[i]]--
				given--
				break
			}
		}
	}
	return parts
}

// part returns the i-th of k equal parts of n; the first parts are 1 larger if n is not a multiple of k.
func part(n, k, i int) int {
	if i < n%k {
		return n/k + 1
	}
	return n / k
}

// splitBytes divides memory into k parts of whole units; the first gets the remainder.
func splitBytes(b topology.Bytes, k int, unit topology.Bytes) []topology.Bytes {
	parts := make([]topology.Bytes, k)
	units := int(b / unit)
	for i := range parts {
		parts[i] = topology.Bytes(part(units, k, i)) * unit
	}
	parts[0] += b % unit
	return parts
}
