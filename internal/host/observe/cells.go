package observe

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// AssignCells finds the mappings of a VM process that hold each cell's RAM.
// QEMU maps one block of exactly the cell's size per cell, cell 0 first, and
// the kernel assigns addresses downwards: so among blocks of equal size the
// highest address is the lowest cell. A block may have been split (by mbind or
// madvise on a part of it), and other memory of the process may adjoin it: so a
// cell is a run of adjoining mappings whose sizes add up to exactly its size.
// Mappings that match no cell get none.
func AssignCells(ranges []inventory.MemoryRange, c inventory.Config) []inventory.MemoryRange {
	out := slices.Clone(ranges)
	slices.SortFunc(out, func(a, b inventory.MemoryRange) int { return cmp.Compare(a.Address, b.Address) })
	for _, cell := range cellSizes(c) {
		first, last, ok := highestRun(out, cell.size)
		if !ok {
			continue
		}
		for k := first; k <= last; k++ {
			id := cell.id
			out[k].Cell = &id
		}
	}
	return out
}

// highestRun finds the run of adjoining mappings without a cell whose sizes add
// up to a given size, at the highest address.
func highestRun(sorted []inventory.MemoryRange, size topology.Bytes) (first, last int, ok bool) {
	for end := len(sorted) - 1; end >= 0; end-- {
		var sum topology.Bytes
		for i := end; i >= 0 && sorted[i].Cell == nil && (i == end || adjoin(sorted[i], sorted[i+1])); i-- {
			sum += sorted[i].Size
			if sum == size {
				return i, end, true
			}
			if sum > size {
				break
			}
		}
	}
	return 0, 0, false
}

func adjoin(a, b inventory.MemoryRange) bool {
	return a.Address+uint64(a.Size) == b.Address && a.Backing == b.Backing && a.File == b.File
}

type cellSize struct {
	id   guest.CellID
	size topology.Bytes
}

func cellSizes(c inventory.Config) []cellSize {
	if len(c.Cells) == 0 {
		return []cellSize{{0, c.Memory}}
	}
	var sizes []cellSize
	for _, cell := range c.Cells {
		sizes = append(sizes, cellSize{cell.ID, cell.Memory})
	}
	slices.SortFunc(sizes, func(a, b cellSize) int { return cmp.Compare(a.id, b.id) })
	return sizes
}

// sum adds the memory of all mappings by node.
func sum(ranges []inventory.MemoryRange) topology.MemoryByNode {
	total := topology.MemoryByNode{}
	for _, r := range ranges {
		total.Add(r.ByNode)
	}
	return total
}
