package alarm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// node returns the readings of a node, for the quantities that the node has.
func (j *judgement) node(n *inventory.NodeSample, facts map[string]Guest) []reading {
	var all []reading
	if n.CPUs > 0 {
		all = append(all, j.nodeCPU(n), j.nodeWait(n))
	}
	if r, ok := j.nodeMemory(n); ok {
		all = append(all, r)
	}
	for _, p := range n.HugePages {
		if p.Total > 0 {
			all = append(all, j.pool(n, p, facts))
		}
	}
	if r, ok := j.nodeTraffic(n); ok {
		all = append(all, r)
	}
	return all
}

func (j *judgement) nodeCPU(n *inventory.NodeSample) reading {
	return reading{quantity: alarm.NodeCPU, object: inventory.NodeRef(n.Node), unread: j.in.Sample.Window <= 0,
		value: n.CPU / float64(n.CPUs), source: cmp.Or(j.in.Sample.CPUSource, "/proc/stat"),
		says:   inWords("%.1f of %d CPUs are in use (%s)", n.CPU, n.CPUs, percent(n.CPU/float64(n.CPUs))),
		causes: func() []cause { return j.busiest(n.Node) }}
}

func (j *judgement) nodeWait(n *inventory.NodeSample) reading {
	return reading{quantity: alarm.NodeWait, object: inventory.NodeRef(n.Node), unread: j.in.Sample.Window <= 0,
		value: n.Wait / float64(n.CPUs), source: cmp.Or(j.in.Sample.CPUSource, "/proc/schedstat"),
		says: inWords("%.1f threads wait for one of %d CPUs (%.2f per CPU)", n.Wait, n.CPUs,
			n.Wait/float64(n.CPUs)),
		causes: func() []cause { return j.busiest(n.Node) }}
}

// busiest returns the guests that use the most CPU time on a node.
func (j *judgement) busiest(n topology.NodeID) []cause {
	return j.guestsBy(func(g *inventory.GuestSample) float64 { return g.CPUByNode[n] },
		func(v float64) string { return fmt.Sprintf("%.1f CPUs", v) })
}

// nodeMemory counts memory outside the huge page pools, because a pool uses its
// memory from the start. It omits memory that the kernel can reclaim, if known.
func (j *judgement) nodeMemory(n *inventory.NodeSample) (reading, bool) {
	all, available := float64(n.Memory), float64(n.Free)
	for _, p := range n.HugePages {
		all -= float64(p.Size) * float64(p.Total)
	}
	if j.in.Topology != nil {
		for i := range j.in.Topology.Nodes {
			if t := &j.in.Topology.Nodes[i]; t.ID == n.Node {
				available += float64(t.Reclaimable)
			}
		}
	}
	if all <= 0 {
		return reading{}, false
	}
	used := max(all-available, 0)
	return reading{
		quantity: alarm.NodeMemory,
		object:   inventory.NodeRef(n.Node),
		value:    used / all,
		source:   "the node's meminfo",
		says: inWords("%v of %v are in use (%s), without huge page pools and reclaimable memory",
			topology.Bytes(used), topology.Bytes(all), percent(used/all)),
		causes: func() []cause { return j.holders(n.Node, nil) },
	}, true
}

// holders returns the guests with the most memory on a node, among the selected ones.
func (j *judgement) holders(n topology.NodeID, meant func(guest string) bool) []cause {
	return j.guestsBy(func(g *inventory.GuestSample) float64 {
		if meant != nil && !meant(g.Name) {
			return 0
		}
		return float64(g.MemoryByNode[n])
	}, func(v float64) string { return topology.Bytes(v).String() })
}

func (j *judgement) pool(n *inventory.NodeSample, p topology.HugePagePool, facts map[string]Guest) reading {
	used := p.Total - min(p.Free, p.Total)
	value := float64(used) / float64(p.Total)
	return reading{quantity: alarm.NodeHugePages, object: inventory.NodePartRef(n.Node, p.Size.String()+" pages"),
		value: value, source: "the node's hugepages",
		says:   inWords("%d of %d pages of %v are in use (%s)", used, p.Total, p.Size, percent(value)),
		causes: func() []cause { return j.holders(n.Node, func(g string) bool { return facts[g].PageSize == p.Size }) }}
}

// nodeTraffic needs a measured bandwidth to compare the traffic with.
func (j *judgement) nodeTraffic(n *inventory.NodeSample) (reading, bool) {
	if j.in.Topology == nil {
		return reading{}, false
	}
	most, ok := j.in.Topology.Bandwidth(n.Node, n.Node)
	if !ok || most <= 0 {
		return reading{}, false
	}
	value := n.MemoryMBps / most
	return reading{
		quantity: alarm.NodeTraffic,
		object:   inventory.NodeRef(n.Node),
		unread:   n.MemoryMBps == 0 && j.mayHaveTraffic(n.Node),
		value:    value,
		source:   "the node's memory traffic, against its measured bandwidth",
		says: inWords("%.0f of %.0f MB/s to its memory are in use (%s)", n.MemoryMBps, most,
			percent(value)),
		causes: func() []cause {
			return j.guestsBy(func(g *inventory.GuestSample) float64 { return g.Load.MemoryMBps * shareTo(g, n.Node) },
				func(v float64) string { return fmt.Sprintf("%.0f MB/s", v) })
		},
	}, true
}

// mayHaveTraffic reports whether a guest may access memory of a node. If no guest
// may, the node's traffic is 0, not unknown.
func (j *judgement) mayHaveTraffic(n topology.NodeID) bool {
	for i := range j.in.Sample.Guests {
		if g := &j.in.Sample.Guests[i]; g.Load.Demand() >= leastDemand && shareTo(g, n) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(j.gaps(), inventory.Gap.HidesGuests)
}

// shareTo returns the part of a guest's accesses that go to memory of a node:
// the measured part, or else the part of its memory on that node.
func shareTo(g *inventory.GuestSample, n topology.NodeID) float64 {
	var to, all float64
	if len(g.Accesses) > 0 {
		for _, a := range g.Accesses {
			if a.To == n {
				to += a.Share
			}
		}
		return to
	}
	for on, bytes := range g.MemoryByNode {
		all += float64(bytes)
		if on == n {
			to = float64(bytes)
		}
	}
	if all == 0 {
		return 0
	}
	return to / all
}

// guestsBy returns the guests with the largest amounts.
func (j *judgement) guestsBy(of func(*inventory.GuestSample) float64, say func(float64) string) []cause {
	amounts := map[string]float64{}
	for i := range j.in.Sample.Guests {
		g := &j.in.Sample.Guests[i]
		amounts[g.Name] = of(g)
	}
	return largest(amounts, say)
}
