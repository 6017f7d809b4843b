package inventory

import (
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Holding is the resources that one guest or claim takes from one node, touched or
// not.
type Holding struct {
	Name    string          `json:"name"`
	Node    topology.NodeID `json:"node"`
	Managed bool            `json:"managed"`
	// Reserved is the memory promised, Seen what is resident already. The
	// greater of the two is unavailable on the node.
	Reserved topology.Bytes `json:"reserved_bytes"`
	Seen     topology.Bytes `json:"seen_bytes"`
	PageSize topology.Bytes `json:"page_size,omitempty"` // 0: small pages
	// VCPUs is the load of vCPUs that share CPUs, in vCPUs. A vCPU that may
	// run on several nodes counts in parts. Exclusive vCPUs are not in it.
	VCPUs float64 `json:"vcpus"`
	// Exclusive CPUs are reserved for one guest. Pinned ones carry a vCPU of an
	// unmanaged guest that may run nowhere else.
	Exclusive topology.CPUSet `json:"exclusive,omitzero"`
	Pinned    topology.CPUSet `json:"pinned,omitzero"`
}

// Memory returns the memory that is unavailable on the node: the greater of
// reserved and seen.
func (h Holding) Memory() topology.Bytes { return max(h.Reserved, h.Seen) }

// Untouched returns the memory that is reserved and not yet resident.
func (h Holding) Untouched() topology.Bytes { return h.Memory() - h.Seen }

// Holdings returns what every guest and claim takes from every node, without
// those of the guest named ignore, ordered by name and node.
//
// A guest with a placement takes its reservations, a claim likewise; where
// both have one name (a guest that is being moved) the greater of the two counts
// on a node. An unmanaged guest takes its whole configured memory, on the nodes
// of its numatune, else of its pins, else in the proportions of its resident
// memory by node, else on all nodes. Shut off, it takes nothing.
//
// No amount is more than any host has, so that sums of thousands stay in range.
func (h *Host) Holdings(ignore string) []Holding {
	all := make([]Holding, 0, len(h.Guests)+len(h.Claims)) // most guests are on one node
	for i := range h.Guests {
		g, from := &h.Guests[i], len(all)
		switch {
		case g.Name == ignore && ignore != "":
		case g.Placement != nil:
			all = addPlacement(all, from, g.Name, g.Managed, g.Placement)
			all = addSeen(all, from, g)
		case g.State != "shutoff":
			all = h.addUnmanaged(all, g)
			all = addSeen(all, from, g)
		}
	}
	for i := range h.Claims {
		c := &h.Claims[i]
		if c.Name != ignore || ignore == "" {
			all = addPlacement(all, 0, c.Name, true, &c.Placement)
		}
	}
	if !slices.IsSortedFunc(all, byNameAndNode) { // guests ascend by name
		slices.SortStableFunc(all, byNameAndNode)
	}
	return all
}

func byNameAndNode(a, b Holding) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return int(a.Node - b.Node)
}

// holding returns the entry for name, node and page size, and adds it if it is
// missing. It searches from index from on, so that the cost for many guests is
// not quadratic.
func holding(
	all []Holding, from int, name string, node topology.NodeID, pageSize topology.Bytes,
) ([]Holding, *Holding) {
	for i := from; i < len(all); i++ {
		if all[i].Node == node && all[i].PageSize == pageSize && all[i].Name == name {
			return all, &all[i]
		}
	}
	all = append(all, Holding{Name: name, Node: node, PageSize: pageSize})
	return all, &all[len(all)-1]
}

func addPlacement(all []Holding, from int, name string, managed bool, p *guest.Placement) []Holding {
	for _, r := range p.Reservations {
		var h *Holding
		all, h = holding(all, from, name, r.Node, r.PageSize)
		h.Managed = managed
		h.Reserved = max(h.Reserved, min(r.Memory, maxMemory))
		h.Exclusive = h.Exclusive.Union(r.Exclusive)
		if p.CPUMode != guest.CPUExclusive && p.CPUMode != guest.CPUHandoff { // neither shares CPUs with all
			h.VCPUs = max(h.VCPUs, float64(r.VCPUs))
		}
	}
	return all
}

// addSeen adds resident memory, under the page size with which the guest was
// created.
func addSeen(all []Holding, from int, g *Guest) []Holding {
	size := g.Config.PageSize
	if g.Placement != nil {
		size = g.Placement.PageSize
	}
	for _, node := range sortedNodes(g.Seen.MemoryByNode) {
		if seen := g.Seen.MemoryByNode[node]; seen > 0 {
			var h *Holding
			all, h = holding(all, from, g.Name, node, size)
			h.Managed, h.Seen = g.Managed, min(seen, maxMemory)
		}
	}
	return all
}

// addUnmanaged derives the resources of a guest that Numavisor did not place.
func (h *Host) addUnmanaged(all []Holding, g *Guest) []Holding {
	t := &h.Topology
	memory, cpu := map[topology.NodeID]float64{}, map[topology.NodeID]float64{}
	pinned := map[topology.NodeID]topology.CPUSet{}
	var unpinned map[topology.NodeID]float64 // the shares of each vCPU without a pin
	for v := range g.Config.VCPUs {
		pin, ok := g.Config.Pins[guest.VCPUID(v)]
		if !ok || pin.IsEmpty() {
			if unpinned == nil {
				unpinned = h.unpinnedShares(g)
			}
			addShares(cpu, unpinned, 1)
			continue
		}
		for _, n := range t.Nodes {
			if on := n.CPUs.Intersect(pin); !on.IsEmpty() {
				cpu[n.ID] += float64(on.Len()) / float64(pin.Len())
				if pin.Len() == 1 {
					pinned[n.ID] = pinned[n.ID].Union(pin)
				}
			}
		}
	}
	h.spreadMemory(g, memory, cpu)
	for _, n := range t.Nodes {
		one := Holding{
			Name: g.Name, Node: n.ID, Managed: g.Managed, PageSize: g.Config.PageSize,
			Reserved: topology.Bytes(memory[n.ID]), VCPUs: cpu[n.ID], Pinned: pinned[n.ID],
		}
		if one.Reserved > 0 || one.VCPUs > 0 {
			all = append(all, one)
		}
	}
	return all
}

// spreadMemory adds the guest's configured memory to the nodes it belongs to.
func (h *Host) spreadMemory(g *Guest, memory, cpu map[topology.NodeID]float64) {
	rest := float64(min(g.Config.Memory, maxMemory))
	if tune := g.Config.NUMATune; tune != nil {
		for _, c := range tune.Cells {
			for _, cell := range g.Config.Cells {
				if cell.ID == c.Cell && !c.Nodes.IsEmpty() {
					size := min(float64(cell.Memory), rest)
					addShares(memory, h.sharesWithin(g, c.Nodes), size)
					rest -= size
				}
			}
		}
	}
	if rest <= 0 {
		return
	}
	if len(g.Config.Pins) > 0 && (g.Config.NUMATune == nil || g.Config.NUMATune.Nodes.IsEmpty()) {
		if shares := h.withMemory(cpu); len(shares) > 0 {
			addShares(memory, shares, rest)
			return
		}
	}
	addShares(memory, h.unpinnedShares(g), rest)
}

// unpinnedShares estimates the location of a guest that is not pinned: within its
// numatune nodes, else where its memory is resident, else evenly on all nodes.
func (h *Host) unpinnedShares(g *Guest) map[topology.NodeID]float64 {
	if tune := g.Config.NUMATune; tune != nil && !tune.Nodes.IsEmpty() {
		return h.sharesWithin(g, tune.Nodes)
	}
	return h.sharesWithin(g, h.Topology.NodeSet())
}

// sharesWithin divides 1 over the given nodes in proportion to the guest's memory
// on each. A guest without memory there gets equal shares of those of the nodes
// that have both memory and CPUs.
func (h *Host) sharesWithin(g *Guest, nodes topology.NodeSet) map[topology.NodeID]float64 {
	shares := map[topology.NodeID]float64{}
	for _, n := range sortedNodes(g.Seen.MemoryByNode) {
		if nodes.Contains(n) {
			shares[n] = float64(g.Seen.MemoryByNode[n])
		}
	}
	if seen := normalised(shares); len(seen) > 0 {
		return seen
	}
	for _, n := range h.Topology.Nodes {
		if nodes.Contains(n.ID) && n.Memory > 0 && !n.CPUs.IsEmpty() {
			shares[n.ID] = 1
		}
	}
	if len(shares) == 0 {
		for n := range nodes.All() {
			shares[n] = 1
		}
	}
	return normalised(shares)
}

// withMemory returns the shares of nodes that have memory.
func (h *Host) withMemory(shares map[topology.NodeID]float64) map[topology.NodeID]float64 {
	present := map[topology.NodeID]float64{}
	for _, n := range h.Topology.Nodes {
		if n.Memory > 0 && shares[n.ID] > 0 {
			present[n.ID] = shares[n.ID]
		}
	}
	return normalised(present)
}

// normalised scales shares to a sum of 1; it returns nil where the sum is 0.
func normalised(shares map[topology.NodeID]float64) map[topology.NodeID]float64 {
	sum := 0.0
	for _, n := range sortedNodes(shares) {
		sum += shares[n]
	}
	if sum <= 0 {
		return nil
	}
	out := make(map[topology.NodeID]float64, len(shares))
	for n, s := range shares {
		out[n] = s / sum
	}
	return out
}

func addShares(to, shares map[topology.NodeID]float64, amount float64) {
	for n, s := range shares {
		to[n] += s * amount
	}
}

func sortedNodes[V any](m map[topology.NodeID]V) []topology.NodeID {
	ids := make([]topology.NodeID, 0, len(m))
	for n := range m {
		ids = append(ids, n)
	}
	slices.Sort(ids)
	return ids
}
