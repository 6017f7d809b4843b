package observe

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// AssignCells tells which mappings of a VM process hold which cell's RAM.
// QEMU maps one block of exactly the cell's size per cell, cell 0 first, and
// the kernel hands out addresses downwards: so among blocks of equal size the
// highest address is the lowest cell. A block that was split (by mbind or by
// madvise on a part) is the run of adjoining mappings that sum up to the size.
// Mappings that match no cell keep none.
func AssignCells(ranges []inventory.MemoryRange, c inventory.Config) []inventory.MemoryRange {
	out := slices.Clone(ranges)
	slices.SortFunc(out, func(a, b inventory.MemoryRange) int { return cmp.Compare(a.Address, b.Address) })
	blocks := blocksOf(out)
	slices.Reverse(blocks) // highest address first
	for _, cell := range cellSizes(c) {
		for i, b := range blocks {
			if b.size == cell.size {
				for k := b.first; k < b.first+b.count; k++ {
					id := cell.id
					out[k].Cell = &id
				}
				blocks = slices.Delete(blocks, i, i+1)
				break
			}
		}
	}
	return out
}

type block struct {
	first, count int
	size         topology.Bytes
}

// blocksOf joins mappings that adjoin and have the same backing.
func blocksOf(sorted []inventory.MemoryRange) []block {
	var blocks []block
	for i, r := range sorted {
		if i > 0 {
			before := sorted[i-1]
			if before.Address+uint64(before.Size) == r.Address && before.Backing == r.Backing && before.File == r.File {
				last := &blocks[len(blocks)-1]
				last.count++
				last.size += r.Size
				continue
			}
		}
		blocks = append(blocks, block{first: i, count: 1, size: r.Size})
	}
	return blocks
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
func sum(ranges []inventory.MemoryRange) map[topology.NodeID]topology.Bytes {
	total := map[topology.NodeID]topology.Bytes{}
	for _, r := range ranges {
		for node, bytes := range r.ByNode {
			total[node] += bytes
		}
	}
	return total
}
