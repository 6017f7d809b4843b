// Package capacity counts what is left on each node of a host: CPUs that VMs
// may share, and memory that is neither reserved nor in use. Placing, balancing
// and creating all use the same figures.
package capacity

import (
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Node is what is left on one node, and who holds the rest.
type Node struct {
	Node topology.NodeID `json:"node"`
	// CPUs are all online CPUs; Shared those that guests may share: neither
	// housekeeping nor exclusive; Pinned carry a vCPU that can run nowhere else.
	CPUs         topology.CPUSet `json:"cpus"`
	Housekeeping topology.CPUSet `json:"housekeeping,omitzero"`
	Exclusive    topology.CPUSet `json:"exclusive,omitzero"`
	Pinned       topology.CPUSet `json:"pinned,omitzero"`
	Shared       topology.CPUSet `json:"shared"`
	// Load is how many vCPUs of other guests share the shared CPUs.
	Load float64 `json:"load_vcpus"`

	Memory   topology.Bytes `json:"memory_bytes"`
	KeepFree topology.Bytes `json:"keep_free_bytes"`
	// Promised is what guests hold, in pages of any size.
	Promised topology.Bytes `json:"promised_bytes"`
	// Left is memory in small pages that nobody holds.
	Left topology.Bytes `json:"left_bytes"`
	Huge []Pool         `json:"huge_pages,omitempty"`

	Holders []inventory.Holding `json:"holders,omitempty"`
}

// Pool is what is left in the pool of one page size.
type Pool struct {
	Size topology.Bytes `json:"size_bytes"`
	Free uint64         `json:"free"` // pages that are free and promised to nobody
}

// Pool returns the free pages of a size.
func (r *Node) Pool(size topology.Bytes) uint64 {
	for _, h := range r.Huge {
		if h.Size == size {
			return h.Free
		}
	}
	return 0
}

// Available returns what is left on every node, in the order of
// Topology.Nodes, not counting what the guest named ignore holds.
//
// Memory in small pages is limited twice: by what the node has less all
// promises, and by what is free now less the promises not yet touched. Pages
// promised beyond a pool's free ones will be made from small pages, and are
// taken off there.
func Available(h *inventory.Host, p policy.Policy, ignore string) []Node {
	rooms := make([]Node, len(h.Topology.Nodes))
	position := make(map[topology.NodeID]int, len(rooms))
	housekeeping := h.Topology.Housekeeping.Union(p.Housekeeping)
	for i := range rooms {
		n := &h.Topology.Nodes[i]
		position[n.ID] = i
		rooms[i] = Node{
			Node: n.ID, CPUs: n.CPUs, Housekeeping: n.CPUs.Intersect(housekeeping),
			Memory: n.Memory, KeepFree: p.KeepFreeOn(n),
		}
	}
	for _, held := range h.Holdings(ignore) {
		if i, ok := position[held.Node]; ok {
			rooms[i].add(held)
		}
	}
	given := givenBack(h, ignore)
	known := freeKnown(&h.Topology)
	for i := range rooms {
		r := &rooms[i]
		r.Shared = r.CPUs.Minus(r.Housekeeping).Minus(r.Exclusive)
		r.count(&h.Topology.Nodes[i], given, known)
	}
	return rooms
}

func (r *Node) add(held inventory.Holding) {
	r.Holders = append(r.Holders, held)
	r.Load += held.VCPUs
	r.Promised = r.Promised.Plus(held.Memory())
	if !held.Exclusive.IsEmpty() {
		r.Exclusive = r.Exclusive.Union(held.Exclusive)
	}
	if !held.Pinned.IsEmpty() {
		r.Pinned = r.Pinned.Union(held.Pinned)
	}
}

// count fills in what is left of the node's memory. Amounts are signed
// meanwhile: a node may be promised away more than once by others.
func (r *Node) count(n *topology.Node, given released, freeKnown bool) {
	capacity := int64(n.Memory) - int64(r.KeepFree)
	free := int64(n.Free) + int64(n.Reclaimable) - int64(r.KeepFree) + int64(given.on(n.ID, 0))
	for _, h := range r.Holders {
		if h.PageSize == 0 {
			capacity -= int64(h.Memory())
			free -= int64(h.Untouched())
		}
	}
	for _, pool := range n.HugePages {
		capacity -= int64(pool.Total) * int64(pool.Size)
		left := int64(pool.Free) + int64(given.on(n.ID, pool.Size)/max(1, pool.Size))
		for _, h := range r.Holders {
			if h.PageSize == pool.Size {
				left -= int64((h.Untouched() + pool.Size - 1) / pool.Size)
			}
		}
		if left < 0 {
			capacity += left * int64(pool.Size)
			free += left * int64(pool.Size)
			left = 0
		}
		r.Huge = append(r.Huge, Pool{Size: pool.Size, Free: uint64(left)})
	}
	for _, h := range r.Holders {
		if h.PageSize != 0 && !r.hasPool(h.PageSize) {
			capacity -= int64(h.Memory())
			free -= int64(h.Untouched())
		}
	}
	if freeKnown {
		capacity = min(capacity, free)
	}
	r.Left = min(topology.Bytes(max(0, capacity)), r.Unpromised())
}

func (r *Node) hasPool(size topology.Bytes) bool {
	for _, h := range r.Huge {
		if h.Size == size {
			return true
		}
	}
	return false
}

// Unpromised is what the node has that no guest holds, whatever the page size.
func (r *Node) Unpromised() topology.Bytes { return r.Memory - min(r.Memory, r.Promised) }

// released is memory that a guest holds now and gives back when it is placed again.
type released struct {
	pageSize topology.Bytes
	byNode   topology.MemoryByNode
}

func (g released) on(node topology.NodeID, pageSize topology.Bytes) topology.Bytes {
	if g.pageSize != pageSize {
		return 0
	}
	return g.byNode[node]
}

func givenBack(h *inventory.Host, name string) released {
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Name != name || name == "" {
			continue
		}
		size := g.Config.PageSize
		if g.Placement != nil {
			size = g.Placement.PageSize
		}
		return released{size, g.Seen.MemoryByNode}
	}
	return released{}
}

// freeKnown reports whether the source has figures of free memory at all: no live host
// has none on every node (libvirt capabilities and hwloc files do not say).
func freeKnown(t *topology.Topology) bool {
	for i := range t.Nodes {
		if t.Nodes[i].Free > 0 {
			return true
		}
	}
	return false
}
