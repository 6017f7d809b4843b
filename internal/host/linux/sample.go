package linux

import (
	"context"
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Pages counts the pages looked at by where they lie.
type Pages struct {
	ByNode map[topology.NodeID]uint64
	// Absent pages are not there: never touched, given back, or swapped out.
	Absent uint64
	// Hidden pages are in the page table, but move_pages(2) does not see them:
	// on kernels 6.1 to 6.4 those that kernel NUMA balancing has marked.
	Hidden uint64
	// Errors counts other answers, by name of the errno.
	Errors map[string]uint64
	// Looked is how many were asked for, and PageSize what one stands for.
	Looked   uint64
	PageSize topology.Bytes
}

// SamplePages tells where a mapping's pages lie from evenly spread samples (one
// address per huge page at most): 4096 of them give shares within 1.6 percent
// at 95 percent confidence. samples of 0 looks at every page.
func SamplePages(ctx context.Context, pid int, r inventory.MemoryRange, samples int) (Pages, error) {
	count := Pages{ByNode: map[topology.NodeID]uint64{}, Errors: map[string]uint64{}, PageSize: pageSizeOf(r)}
	total := uint64(r.Size / count.PageSize)
	step := count.PageSize
	if samples > 0 && uint64(samples) < total {
		count.Looked, total = uint64(samples), uint64(samples)
		step = r.Size / topology.Bytes(samples) / count.PageSize * count.PageSize
	}
	const atOnce = 64 << 10
	for first := uint64(0); first < total; first += atOnce {
		if err := ctx.Err(); err != nil {
			return count, fmt.Errorf("looking up pages of process %d: %w", pid, err)
		}
		w := newWindow(pid, process(pid), r.Address+first*uint64(step), int(min(atOnce, total-first)), step)
		if err := w.look(); err != nil {
			return count, err
		}
		if err := w.findHidden(); err != nil {
			return count, err
		}
		count.add(w)
	}
	count.Looked = total
	return count, nil
}

func (p *Pages) add(w *window) {
	for i, status := range w.statuses {
		switch {
		case w.hidden[i]:
			p.Hidden++
		case noPage(status):
			p.Absent++
		case status < 0:
			p.Errors[errnoName(status)]++
		default:
			p.ByNode[topology.NodeID(status)]++
		}
	}
}

// Bytes scales the counts up to the whole mapping, hidden pages left out.
func (p Pages) Bytes(size topology.Bytes) map[topology.NodeID]topology.Bytes {
	byNode := make(map[topology.NodeID]topology.Bytes, len(p.ByNode))
	if p.Looked == 0 {
		return byNode
	}
	for node, n := range p.ByNode {
		byNode[node] = topology.Bytes(float64(size) * float64(n) / float64(p.Looked))
	}
	return byNode
}

// pageSizeOf is the distance between addresses worth asking for.
func pageSizeOf(r inventory.MemoryRange) topology.Bytes { return max(r.PageSize, smallPage) }
