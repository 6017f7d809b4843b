package balance

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// withCredit returns a host whose nodes have exactly as much more memory as they lack
// now for what is promised to guests. On this host a placement has room if no node
// lacks more after it than now. Unmanaged guests that promise more than a node
// has, and guests with memory on other nodes than reserved, would otherwise keep all
// others where they are. all are the holdings of the host.
func withCredit(h *inventory.Host, all []inventory.Holding, p policy.Policy) inventory.Host {
	host, byNode := *h, map[topology.NodeID][]inventory.Holding{}
	for _, held := range all {
		byNode[held.Node] = append(byNode[held.Node], held)
	}
	known := slices.ContainsFunc(h.Topology.Nodes, func(n topology.Node) bool { return n.Free > 0 })
	host.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for i := range host.Topology.Nodes {
		n := &host.Topology.Nodes[i]
		n.HugePages = slices.Clone(n.HugePages)
		holdings := byNode[n.ID]
		for {
			total, _ := lack(n, p, holdings)
			if total == 0 {
				break
			}
			n.Memory += total // the reserve of the node grows by a few percent of this
		}
		if _, free := lack(n, p, holdings); known {
			n.Free += free
		}
	}
	return host
}

// withCPUCredit returns a policy under which each node may have as many vCPUs for each shared CPU as
// the fullest one has now. crowds is the exact rule. now are the nodes of the host.
func withCPUCredit(now []capacity.Node, p policy.Policy) policy.Policy {
	p = p.WithDefaults()
	for _, n := range now {
		if cpus := n.Shared.Len(); cpus > 0 {
			p.Overcommit = max(p.Overcommit, n.Load/float64(cpus))
		}
	}
	p.Overcommit = min(p.Overcommit, policy.MaxOvercommit)
	return p
}

// crowds returns an error if a node has more vCPUs beyond the policy's limit after a move than before.
func crowds(before []capacity.Node, after *inventory.Host, p policy.Policy) error {
	p = p.WithDefaults()
	excess := func(n *capacity.Node) float64 { return n.Load - p.Overcommit*float64(n.Shared.Len()) }
	then := capacity.Held(after, p, after.Holdings(""))
	for i := range then {
		if n := &then[i]; excess(n) > max(0, excess(&before[i]))+slack {
			return fmt.Errorf("node %d would have %.4g vCPUs on %d shared CPUs, and has %.4g; the limit is %v "+
				"for each CPU", n.Node, n.Load, n.Shared.Len(), before[i].Load, p.Overcommit)
		}
	}
	return nil
}

// lack returns how much more memory the holdings of a node promise than it has, and how much
// more than is free is not touched yet. It adds the pages that pools lack to them.
func lack(n *topology.Node, p policy.Policy, holdings []inventory.Holding) (total, free topology.Bytes) {
	bound := int64(0)
	capacity := int64(n.Memory) - int64(p.KeepFreeOn(n))
	unused := int64(n.Free) + int64(n.Reclaimable) - int64(p.KeepFreeOn(n))
	for k := range n.HugePages {
		capacity -= int64(n.HugePages[k].Total) * int64(n.HugePages[k].Size)
	}
	for i := range holdings {
		held := &holdings[i]
		bound += int64(held.Memory())
		pool := slices.IndexFunc(n.HugePages, func(p topology.HugePagePool) bool { return p.Size == held.PageSize })
		if held.PageSize == 0 || pool < 0 {
			capacity -= int64(held.Memory())
			unused -= int64(held.Untouched())
		}
	}
	for k := range n.HugePages {
		pool := &n.HugePages[k]
		pages := uint64(0)
		for _, held := range holdings {
			if held.PageSize == pool.Size {
				pages += uint64((held.Untouched() + pool.Size - 1) / pool.Size)
			}
		}
		pool.Free = max(pool.Free, pages)
	}
	return topology.Bytes(max(0, -capacity, bound-int64(n.Memory))), topology.Bytes(max(0, -unused))
}

// spare returns the memory of a node that can be allocated now without using its reserve.
func spare(n *topology.Node, p policy.Policy) topology.Bytes {
	free, reserve := n.Free+n.Reclaimable, p.KeepFreeOn(n)
	return free - min(free, reserve)
}

// arrives returns an error if more memory is copied to a node that lacks memory than can be
// allocated there. Elsewhere the promises to guests ensure that. eased is h withCredit.
func arrives(h, eased, after *inventory.Host, p policy.Policy, moves []plan.GuestMove) error {
	for i := range h.Topology.Nodes {
		n := &h.Topology.Nodes[i]
		if eased.Topology.Nodes[i].Memory == n.Memory && eased.Topology.Nodes[i].Free == n.Free {
			continue
		}
		var more, less topology.Bytes
		for _, m := range moves {
			was, _ := h.Guest(m.Guest)
			is, _ := after.Guest(m.Guest)
			more, less = more+is.Seen.MemoryByNode[n.ID], less+was.Seen.MemoryByNode[n.ID]
		}
		if room := spare(n, p); more > less+room {
			return fmt.Errorf("node %d has %v of free memory for %v", n.ID, room, more-less)
		}
	}
	return nil
}
