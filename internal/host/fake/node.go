package fake

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// node is the memory of one node: free small pages, and its pools.
type node struct {
	free, filled topology.Bytes
	pools        map[topology.Bytes]*topology.HugePagePool
}

// take allocates up to bytes in pages of a size (0: small) for a process, and
// returns how much it allocated: huge pages come out of the pool only.
func (n *node) take(bytes, pageSize topology.Bytes) topology.Bytes {
	if pageSize == 0 {
		got := min(bytes, n.free)
		n.free -= got
		return got
	}
	pool, ok := n.pools[pageSize]
	if !ok {
		return 0
	}
	pages := min(uint64(bytes/pageSize), pool.Free)
	pool.Free -= pages
	return topology.Bytes(pages) * pageSize
}

// give returns memory of a process to the node.
func (n *node) give(bytes, pageSize topology.Bytes) {
	if pageSize == 0 {
		n.free += bytes
	} else if pool, ok := n.pools[pageSize]; ok {
		pool.Free += uint64(bytes / pageSize)
	}
}

// migrate moves up to bytes from one node to another and returns how much it
// moved. The pool moves with huge pages: free pages of the target are used
// first, the rest is newly allocated there and released at the source; pages of
// 1 GiB are never newly allocated.
func migrate(from, to *node, bytes, pageSize topology.Bytes) topology.Bytes {
	if pageSize == 0 {
		got := to.take(bytes, 0)
		from.give(got, 0)
		return got
	}
	moved := to.take(bytes, pageSize)
	from.give(moved, pageSize)
	source, target := from.pools[pageSize], to.pools[pageSize]
	for pageSize < topology.GiB && source != nil && target != nil && moved+pageSize <= bytes && to.free >= pageSize {
		to.free -= pageSize
		target.Total++
		source.Total--
		from.free += pageSize
		moved += pageSize
	}
	return moved
}

// nearest orders nodes by their distance from one; unreachable ones come last.
func (h *Host) nearest(from topology.NodeID, nodes topology.NodeSet) []topology.NodeID {
	const unreachable = 255
	distance := func(to topology.NodeID) int {
		if d, ok := h.topology.Distance(from, to); ok {
			return d
		}
		return unreachable
	}
	ids := nodes.Intersect(h.topology.MemoryNodes()).IDs()
	slices.SortStableFunc(ids, func(a, b topology.NodeID) int { return cmp.Compare(distance(a), distance(b)) })
	return ids
}
