package balance

import (
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// without returns the host without a guest, and the guest. The given host is not
// changed.
func without(h inventory.Host, name string) (inventory.Host, inventory.Guest) {
	i := slices.IndexFunc(h.Guests, func(g inventory.Guest) bool { return g.Name == name })
	g := h.Guests[i]
	h.Guests = slices.Delete(slices.Clone(h.Guests), i, i+1)
	h.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for k := range h.Topology.Nodes {
		n := &h.Topology.Nodes[k]
		release(n, pageSize(&g), g.Seen.MemoryByNode[n.ID])
	}
	return h, g
}

func pageSize(g *inventory.Guest) topology.Bytes {
	if g.Placement != nil {
		return g.Placement.PageSize
	}
	return g.Config.PageSize
}

// release returns a guest's bytes to a node: to its pool of that page size if it
// has one, else to its free memory.
func release(n *topology.Node, size, bytes topology.Bytes) {
	if i := slices.IndexFunc(n.HugePages, func(p topology.HugePagePool) bool {
		return p.Size == size &&
			size > 0
	}); i >= 0 {
		n.HugePages = slices.Clone(n.HugePages)
		p := &n.HugePages[i]
		p.Free = min(p.Total, p.Free+uint64(bytes/size))
		return
	}
	n.Free = min(n.Memory, n.Free+bytes)
}

// allocate takes bytes from a node: from its pool of that page size if it has
// one, which grows where it has too few free pages, else from its free memory.
func allocate(n *topology.Node, size, bytes topology.Bytes) {
	if i := slices.IndexFunc(n.HugePages, func(p topology.HugePagePool) bool {
		return p.Size == size &&
			size > 0
	}); i >= 0 {
		n.HugePages = slices.Clone(n.HugePages)
		p := &n.HugePages[i]
		pages := uint64((bytes + size - 1) / size)
		if lack := pages - min(pages, p.Free); lack > 0 { // the pool grows first
			p.Total, p.Free = p.Total+lack, p.Free+lack
			n.Free -= min(n.Free, topology.Bytes(lack)*size)
		}
		p.Free -= pages
		return
	}
	n.Free -= min(n.Free, bytes)
}

// with returns the host with a guest whose vCPUs and memory are where its
// placement puts them.
func with(h inventory.Host, g inventory.Guest, spec guest.Spec, p guest.Placement) inventory.Host {
	resident, promised := topology.Bytes(0), topology.Bytes(0)
	for _, b := range g.Seen.MemoryByNode {
		resident += b
	}
	for _, r := range p.Reservations {
		promised += r.Memory
	}
	g.Spec, g.Placement = &spec, &p
	g.Seen.Ranges, g.Seen.MemoryByNode = nil, topology.MemoryByNode{}
	h.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for _, r := range p.Reservations {
		bytes := topology.Bytes(float64(resident) * ratio(float64(r.Memory), float64(promised)))
		if p.PageSize > 0 {
			bytes -= bytes % p.PageSize
		}
		if n, ok := h.Topology.Node(r.Node); ok && bytes > 0 {
			g.Seen.MemoryByNode[r.Node] = bytes
			allocate(n, p.PageSize, bytes)
		}
	}
	g.Seen.Threads = slices.Clone(g.Seen.Threads)
	for i := range g.Seen.Threads {
		t := &g.Seen.Threads[i]
		if t.VCPU == nil || int(*t.VCPU) >= len(p.VCPUs) {
			continue
		}
		if cpus := p.VCPUs[*t.VCPU].CPUs; !cpus.IsEmpty() {
			t.Affinity = cpus
		}
	}
	h.Guests = inserted(h.Guests, g)
	return h
}

// inserted returns a copy of guests, sorted by name, with one more.
func inserted(guests []inventory.Guest, g inventory.Guest) []inventory.Guest {
	at, _ := slices.BinarySearchFunc(guests, g.Name, func(o inventory.Guest, name string) int {
		return strings.Compare(o.Name, name)
	})
	all := append(append(append(make([]inventory.Guest, 0, len(guests)+1), guests[:at]...), g), guests[at:]...)
	byName := func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(all, byName) { // they were not
		slices.SortFunc(all, byName)
	}
	return all
}
