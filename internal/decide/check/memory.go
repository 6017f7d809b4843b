package check

import (
	"github.com/numavisor/numavisor/internal/topology"
)

// reservations: they add up to the guest's vCPUs and memory, and cover every cell
// and all exclusive CPUs.
func (c *checker) reservations() {
	memory, vcpus := topology.Bytes(0), 0
	var seen topology.NodeSet
	for _, r := range c.placed.Reservations {
		n, ok := c.topology.Node(r.Node)
		if !ok {
			c.fail(RuleReservations, node(r.Node), "is not on the host")
			continue
		}
		if seen.Contains(r.Node) {
			c.fail(RuleReservations, node(r.Node), "is reserved twice")
		}
		seen = seen.With(r.Node)
		memory += r.Memory
		vcpus += r.VCPUs
		if !r.Exclusive.SubsetOf(n.CPUs) {
			c.fail(RuleReservations, node(r.Node), "exclusive CPUs %v belong to other nodes", r.Exclusive.Minus(n.CPUs))
		}
		if r.Memory > 0 && (!c.placed.Nodes.Contains(r.Node) || r.PageSize != c.spec.PageSize) {
			c.fail(RuleReservations, node(r.Node), "reserves %v in pages of %v, which the VM does not use "+
				"there", r.Memory,
				r.PageSize)
		}
	}
	want := c.spec.VCPUs
	if c.placed.Handoff != nil {
		want = c.placed.Handoff.Min
	}
	if memory != c.spec.Memory || vcpus != want {
		c.fail(RuleReservations, "guest", "reserves %d vCPUs and %v; the spec requests %d and %v",
			vcpus, memory, want, c.spec.Memory)
	}
	for _, cell := range c.placed.Cells {
		if held := c.reservedOn(cell.Nodes); held < cell.Memory {
			c.fail(RuleReservations, "guest", "reserves %v on nodes %v for a cell of %v", held, cell.Nodes, cell.Memory)
		}
	}
}

func (c *checker) reservedOn(nodes topology.NodeSet) topology.Bytes {
	var sum topology.Bytes
	for id := range nodes.All() {
		sum = sum.Plus(c.placed.MemoryOn(id))
	}
	return sum
}

// memory: each node has the promised memory, even if every guest touches all
// memory promised to it.
func (c *checker) memory() {
	for i := range c.topology.Nodes {
		n := &c.topology.Nodes[i]
		if own := c.placed.MemoryOn(n.ID); own > 0 {
			c.total(n, own)
			c.pages(n, own)
		}
	}
}

// total: the memory bound to a node, in pages of all sizes, fits on the node.
func (c *checker) total(n *topology.Node, own topology.Bytes) {
	bound := own
	for _, o := range c.others {
		if o.Node == n.ID {
			bound = bound.Plus(o.Memory())
		}
	}
	if bound > n.Memory {
		c.fail(RuleMemory, node(n.ID), "%v is bound to it in total; it has %v", bound, n.Memory)
	}
}

// pages checks the memory of a node by page size. In bytes:
//
//	small = memory - keep_free - pools - promised small pages - growth of pools
//	free  = free + reclaimable - keep_free - untouched small pages - growth of pools
//
// A pool grows by the promised pages that it has not. Both figures must not be
// negative: small is the memory that can ever be used, free the present amount.
func (c *checker) pages(n *topology.Node, own topology.Bytes) {
	gone, back := c.given(n.ID)
	small := int64(n.Memory) - int64(c.policy.KeepFreeOn(n))
	free := int64(n.Free) + int64(n.Reclaimable) - int64(c.policy.KeepFreeOn(n))
	if gone == 0 {
		free += int64(back)
	}
	sizes := map[topology.Bytes]bool{0: true, c.spec.PageSize: true}
	for _, pool := range n.HugePages {
		small -= int64(pool.Total) * int64(pool.Size)
	}
	for _, o := range c.others {
		sizes[o.PageSize] = true
	}
	grown := false
	for size := range sizes {
		if size == 0 {
			continue
		}
		have := poolFree(n, size)
		if size == gone {
			have += int64(back / size)
		}
		promised := c.pagesPromised(n.ID, size)
		mine := int64(0)
		if size == c.spec.PageSize {
			mine = int64(own / size)
		}
		lack := max(0, promised+mine-have)
		small, free = small-lack*int64(size), free-lack*int64(size)
		grown = grown || mine > 0 && lack > 0
	}
	if grown && !c.policy.MayGrow(c.spec.PageSize) {
		c.fail(RuleHugePages, node(n.ID), "has too few free pages of %v, and the policy does not allow the pool to "+
			"grow",
			c.spec.PageSize)
	}
	for _, o := range c.others {
		if o.Node == n.ID && o.PageSize == 0 {
			small -= int64(o.Memory())
			free -= int64(o.Untouched())
		}
	}
	if c.spec.PageSize == 0 {
		small, free = small-int64(own), free-int64(own)
	}
	if c.spec.PageSize > 0 && !grown {
		return // it uses no small pages
	}
	if small < 0 || (c.freeKnown() && free < 0) {
		c.fail(RuleMemory, node(n.ID), "%v more is promised than it has", topology.Bytes(max(-small, -free)))
	}
}

// pagesPromised counts the pages of a size that were promised to other guests and
// are not touched yet.
func (c *checker) pagesPromised(id topology.NodeID, size topology.Bytes) int64 {
	pages := int64(0)
	for _, o := range c.others {
		if o.Node == id && o.PageSize == size {
			pages += int64((o.Untouched() + size - 1) / size)
		}
	}
	return pages
}

func poolFree(n *topology.Node, size topology.Bytes) int64 {
	for _, p := range n.HugePages {
		if p.Size == size {
			return int64(p.Free)
		}
	}
	return 0
}

// given returns the memory that the guest itself has on a node now, and its page
// size. A new placement frees this memory.
func (c *checker) given(id topology.NodeID) (pageSize, amount topology.Bytes) {
	for i := range c.host.Guests {
		g := &c.host.Guests[i]
		if g.Name == c.placed.Guest {
			if g.Placement != nil {
				return g.Placement.PageSize, g.Seen.MemoryByNode[id]
			}
			return g.Config.PageSize, g.Seen.MemoryByNode[id]
		}
	}
	return 0, 0
}

// freeKnown reports whether the inventory has figures for free memory.
func (c *checker) freeKnown() bool {
	for _, n := range c.topology.Nodes {
		if n.Free > 0 {
			return true
		}
	}
	return false
}

// distances: the distances between the guest's nodes are within the limits.
func (c *checker) distances() {
	limits := &c.spec.Limits
	used := c.used().IDs()
	for _, a := range used {
		for _, b := range used {
			from, _ := c.topology.Node(a)
			to, ok := c.topology.Node(b)
			if a == b || from == nil || !ok || from.CPUs.IsEmpty() || to.Memory == 0 {
				continue
			}
			d, known := c.topology.Distance(a, b)
			if _, measured := c.topology.Latency(a, b); d >= 255 && !measured {
				c.fail(RuleDistance, node(a), "cannot reach node %d", b)
			}
			switch {
			case limits.MaxDistance > 0 && !known:
				c.fail(RuleDistance, node(a), "has no known distance to node %d; the maximum is "+
					"%d", b, limits.MaxDistance)
			case limits.MaxDistance > 0 && d > limits.MaxDistance:
				c.fail(RuleDistance, node(a), "has distance %d to node %d; the maximum is %d", d, b, limits.MaxDistance)
			}
			class := from.Classes[b]
			if limits.MaxClass == topology.Local ||
				limits.MaxClass == topology.Neighbour && class != topology.Neighbour && class != topology.Local {
				c.fail(RuleDistance, node(a), "is %s to node %d; the limit is %s", class, b, limits.MaxClass)
			}
		}
	}
}

// devices: required devices are attached to a node of the guest.
func (c *checker) devices() {
	for _, d := range c.spec.Devices {
		for _, have := range c.topology.Devices {
			if _, known := c.topology.Node(have.Node); have.Address == d.Address && d.Required && known &&
				!c.used().Contains(have.Node) {
				c.fail(RuleDevices, "device "+d.Address, "is attached to node %d; the VM uses nodes %v", have.Node,
					c.used())
			}
		}
	}
}
