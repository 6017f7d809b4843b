// Package capacity computes the free resources of each node of a host: CPUs that
// VMs may share, and memory that is neither reserved nor in use. Placing, balancing
// and creating all use the same figures.
package capacity

import (
	"math"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Node is the free part of one node, with the holders of the rest.
type Node struct {
	Node topology.NodeID `json:"node"`
	// CPUs are all online CPUs. Exclusive are those of one guest each, and those that
	// guests hand to each other. Shared are those that guests may share: neither
	// housekeeping nor exclusive. Pinned carry a vCPU that can run on no other CPU.
	CPUs         topology.CPUSet `json:"cpus"`
	Housekeeping topology.CPUSet `json:"housekeeping,omitzero"`
	Exclusive    topology.CPUSet `json:"exclusive,omitzero"`
	Pinned       topology.CPUSet `json:"pinned,omitzero"`
	Shared       topology.CPUSet `json:"shared"`
	// Load is the number of vCPUs of other guests that share the shared CPUs.
	Load float64 `json:"load_vcpus"`
	// Widest is the greatest number of vCPUs that one managed guest has on the shared CPUs: each of them needs a
	// CPU, so at least as many CPUs stay shared.
	Widest float64 `json:"-"`
	// Demand is how many shared CPUs other guests and the host want: as measured, or
	// the number of vCPUs of a guest that was not measured. Guests confined to some of the CPUs want no
	// more than these.
	Demand   float64     `json:"-"`
	confined confinement // the part of Demand by guests that may use only some of the shared CPUs
	// Traffic is how much of the node's memory bandwidth other guests use, in MB (10^6 bytes) a second, as measured.
	Traffic float64 `json:"-"`

	Memory   topology.Bytes `json:"memory_bytes"`
	KeepFree topology.Bytes `json:"keep_free_bytes"`
	// Promised is the memory that guests hold, in pages of any size.
	Promised topology.Bytes `json:"promised_bytes"`
	// Left is memory in small pages that no guest holds.
	Left topology.Bytes `json:"left_bytes"`
	Huge []Pool         `json:"huge_pages,omitempty"`

	Holders []inventory.Holding `json:"holders,omitempty"`
}

// Pool is the free part of the pool of one page size.
type Pool struct {
	Size topology.Bytes `json:"size_bytes"`
	Free uint64         `json:"free"` // pages that are free and not promised to any guest
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

// Alone returns how many of the shared CPUs may become exclusive. The rest must carry the vCPUs that share CPUs within
// overcommit (vCPUs for each CPU), and must be at least Widest CPUs; negative: they are too few already.
func (r *Node) Alone(overcommit float64) int {
	const rounding = 1e-6 // loads are sums of shares of vCPUs
	return r.Shared.Len() - int(math.Ceil(max(r.Widest, r.Load/overcommit)-rounding))
}

// Available returns the free resources of every node, in the order of
// Topology.Nodes, ignoring the holdings of the guest named ignore.
//
// Two limits apply to memory in small pages: the node's memory less all promises,
// and the memory that is free now less the promises not yet touched. If guests
// hold more pages of a pool than are free, the missing pages will be made from
// small pages, and are subtracted there.
func Available(h *inventory.Host, p policy.Policy, ignore string) []Node {
	all := h.Holdings(ignore)
	rooms, position := hold(h, p, all)
	demand(h, ignore, all, rooms, position)
	traffic(h, ignore, rooms, position)
	given := givenBack(h, ignore)
	known := freeKnown(&h.Topology)
	for i := range rooms {
		r := &rooms[i]
		r.Demand -= r.confined.unmet()
		r.count(&h.Topology.Nodes[i], given, known)
	}
	return rooms
}

// Held returns the nodes with what guests hold of them: as Available, without what is measured (demand and traffic) and
// without the free memory. all are the holdings of the host.
func Held(h *inventory.Host, p policy.Policy, all []inventory.Holding) []Node {
	rooms, _ := hold(h, p, all)
	return rooms
}

// hold gives the nodes what guests hold. It also returns the positions of the nodes.
func hold(h *inventory.Host, p policy.Policy, all []inventory.Holding) ([]Node, map[topology.NodeID]int) {
	rooms := make([]Node, len(h.Topology.Nodes))
	position := make(map[topology.NodeID]int, len(rooms))
	housekeeping := h.Topology.Housekeeping.Union(p.Housekeeping)
	for i := range rooms {
		n := &h.Topology.Nodes[i]
		position[n.ID] = i
		rooms[i] = Node{
			Node: n.ID, CPUs: n.CPUs, Housekeeping: n.CPUs.Intersect(housekeeping),
			Exclusive: n.CPUs.Intersect(p.Handoff.CPUs), Memory: n.Memory, KeepFree: p.KeepFreeOn(n),
		}
	}
	on := make([]int, len(rooms))
	for i := range all {
		if at, ok := position[all[i].Node]; ok {
			on[at]++
		}
	}
	for i := range rooms {
		if on[i] > 0 {
			rooms[i].Holders = make([]inventory.Holding, 0, on[i])
		}
	}
	for i := range all {
		if at, ok := position[all[i].Node]; ok {
			rooms[at].add(&all[i])
		}
	}
	for i := range rooms {
		r := &rooms[i]
		r.Shared = r.CPUs.Minus(r.Housekeeping).Minus(r.Exclusive)
	}
	return rooms, position
}

// demand computes the demand on each node. A guest's demand is divided over its nodes
// as its vCPUs are; one that is shut off has none. The host's own is the rest of a node's load, beyond its housekeeping
// CPUs. held are the holdings without those of the guest named
// ignore.
func demand(
	h *inventory.Host, ignore string, held []inventory.Holding, rooms []Node, position map[topology.NodeID]int,
) {
	total, measured, waits := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for i := range h.Guests {
		switch l := h.Guests[i].Seen.Load; {
		case l != nil && l.IsValid():
			// A node's waiting has the time in which its guests' quotas throttled them, too.
			measured[h.Guests[i].Name], waits[h.Guests[i].Name] = l.Demand(), l.Wait+l.Throttled
		case h.Guests[i].State == "shutoff":
			if _, starts := h.Claim(h.Guests[i].Name); !starts {
				measured[h.Guests[i].Name] = 0
			}
		}
	}
	by := holders{host: h}
	if len(waits) == 0 && len(h.Load) == 0 {
		for k := range held {
			if i, ok := position[held[k].Node]; ok {
				rooms[i].want(held[k].VCPUs, held[k].Name, &by)
			}
		}
		return
	}
	if ignore != "" {
		held = h.Holdings("")
	}
	for i := range held {
		total[held[i].Name] += held[i].VCPUs + float64(held[i].Exclusive.Len())
	}
	counted, waiting := handedOver(h, measured, position, len(rooms)), make([]float64, len(rooms))
	for at := range held {
		p := &held[at]
		i, ok := position[p.Node]
		run := p.VCPUs + float64(p.Exclusive.Len())
		if !ok || run == 0 {
			continue
		}
		wants := run
		if all, ok := measured[p.Name]; ok {
			wants = min(all/total[p.Name], 1) * run
			waiting[i] += waits[p.Name] / total[p.Name] * run
		}
		counted[i] += wants
		if p.Name != ignore || ignore == "" {
			// Exclusive CPUs count as used, whether they are or not.
			rooms[i].want(wants*p.VCPUs/run, p.Name, &by)
		}
	}
	rest, known := make([]float64, len(rooms)), h.VCPUsMeasured()
	for _, l := range h.Load {
		if i, ok := position[l.Node]; ok && l.IsValid() {
			if rest[i] = l.CPU + l.Wait - counted[i]; known {
				rest[i] = l.CPU - l.VCPUs + l.Wait - waiting[i]
			}
		}
	}
	for i, own := range HostWork(rest) {
		rooms[i].Demand += max(0, own-float64(rooms[i].Housekeeping.Len())) // these CPUs are for it
	}
}

// want adds the demand of the guest or claim with this name.
func (r *Node) want(demand float64, name string, by *holders) {
	r.Demand += demand
	if demand == 0 {
		return
	}
	if cpus := by.confinedTo(r.Shared, name); !cpus.IsEmpty() {
		r.confined.add(cpus, demand)
	}
}

// traffic computes the traffic to the memory of each node. A guest's is divided as its memory is.
func traffic(h *inventory.Host, ignore string, rooms []Node, position map[topology.NodeID]int) {
	for i := range h.Guests {
		g := &h.Guests[i]
		l, all := g.Seen.Load, float64(g.Seen.MemoryByNode.Total())
		if l == nil || !l.IsValid() || all == 0 || ignore != "" && g.Name == ignore {
			continue
		}
		for node, bytes := range g.Seen.MemoryByNode {
			if at, ok := position[node]; ok {
				rooms[at].Traffic += l.MemoryMBps * float64(bytes) / all
			}
		}
	}
}

// HostWork returns the host's own work on each node, in CPUs. rest is the load of each node
// without what guests use there; it is changed. Where that was not measured, a guest that may run
// on several nodes is taken to use each of them in proportion: then rest is negative on some
// nodes and too large on others. The sum over all nodes has no such error, so the
// host's work is no more than that, divided in proportion to what is positive.
func HostWork(rest []float64) []float64 {
	sum, positive := 0.0, 0.0
	for i, r := range rest {
		sum += r
		rest[i] = max(0, r)
		positive += rest[i]
	}
	if positive > 0 {
		part := max(0, min(1, sum/positive))
		for i := range rest {
			rest[i] *= part
		}
	}
	return rest
}

// handedOver returns by node how many CPUs guests use that hand CPUs to each other: these
// CPUs are no other guest's, so their load is not the host's own either. Where a guest
// has its CPUs at the moment is not known; the nodes of its minimum stand for them.
func handedOver(h *inventory.Host, measured map[string]float64, position map[topology.NodeID]int, n int) []float64 {
	used := make([]float64, n)
	for i := range h.Guests {
		p := h.Guests[i].Placement
		if p == nil || p.Handoff == nil {
			continue
		}
		for _, r := range p.Reservations {
			if at, ok := position[r.Node]; ok && p.Handoff.Min > 0 {
				used[at] += measured[h.Guests[i].Name] * float64(r.VCPUs) / float64(p.Handoff.Min)
			}
		}
	}
	return used
}

func (r *Node) add(held *inventory.Holding) {
	r.Holders = append(r.Holders, *held)
	r.Load += held.VCPUs
	if held.Managed {
		r.Widest = max(r.Widest, held.VCPUs)
	}
	r.Promised = r.Promised.Plus(held.Memory())
	if !held.Exclusive.IsEmpty() {
		r.Exclusive = r.Exclusive.Union(held.Exclusive)
	}
	if !held.Pinned.IsEmpty() {
		r.Pinned = r.Pinned.Union(held.Pinned)
	}
}

// count computes the free part of the node's memory. The intermediate amounts are
// signed, because guests may together hold more than the node has.
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

// Unpromised is the memory of the node that no guest holds, whatever the page size.
func (r *Node) Unpromised() topology.Bytes { return r.Memory - min(r.Memory, r.Promised) }

// released is memory that a guest holds now and releases when it is placed again.
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

// freeKnown reports whether the source has figures of free memory at all. A live host
// never has 0 on every node; libvirt capabilities and hwloc files give no figure.
func freeKnown(t *topology.Topology) bool {
	for i := range t.Nodes {
		if t.Nodes[i].Free > 0 {
			return true
		}
	}
	return false
}
