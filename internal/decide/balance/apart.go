package balance

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// mayPart reports whether the guest's vCPUs may go to other nodes than its memory: its hypervisor moves no memory of
// a running guest, so nothing else relieves a busy node. A guest that sees several cells expects each vCPU near the
// memory of its cell.
func (g *subject) mayPart() bool {
	visible := g.seen.Placement != nil && g.seen.Placement.Visible || len(g.spec.Topology.Cells) > 1
	return !g.seen.Can.MoveMemory && !visible && g.resident > 0 && g.spec.Memory > 0
}

// withoutMemory returns cells that need CPUs only.
func withoutMemory(cells []part) []part {
	out := slices.Clone(cells)
	for i := range out {
		out[i].mem = 0
	}
	return out
}

// apart returns a layout in which the guest's memory stays where it is, and its vCPUs are as in l.
func (m *model) apart(g *subject, l layout) layout {
	l.apart = true
	for i := range l.on {
		l.on[i].mem, l.on[i].bytes = 0, 0
	}
	for _, now := range g.layouts[0].on {
		i := slices.IndexFunc(l.on, func(s share) bool { return s.node == now.node })
		if i < 0 {
			i = len(l.on)
			l.on = append(l.on, share{node: now.node})
		}
		l.on[i].mem, l.on[i].bytes = now.mem, now.bytes
	}
	l.on = slices.DeleteFunc(l.on, func(s share) bool { return s.cpu == 0 && s.mem == 0 && s.bytes == 0 })
	slices.SortFunc(l.on, func(a, b share) int { return cmp.Compare(a.node, b.node) })
	l.copied, l.tables = 0, 0
	m.priceAccess(g, &l)
	l.price = m.priceOfMove(g, &l)
	return l
}

// token stands for a guest's memory while its vCPUs are placed: it needs none on their nodes.
const token = 64 * topology.MiB

// placeApart places the vCPUs of a guest on the homes, and its memory on the nodes where it is.
func placeApart(r place.Request, homes []topology.NodeID, memory topology.MemoryByNode) (guest.Placement, error) {
	host, spec := *r.Host, r.Spec
	host.Topology.Nodes = slices.Clone(host.Topology.Nodes)
	for i := range host.Topology.Nodes {
		if n := &host.Topology.Nodes[i]; slices.Contains(homes, n.ID) {
			n.Memory, n.Free = n.Memory+4*token, n.Free+4*token // as much as it takes, and some for the reserve
		}
	}
	r.Host, r.Spec.Memory = &host, token
	p, err := place.On(r, homes)
	if err != nil {
		return p, err
	}
	for i := range p.Reservations {
		p.Reservations[i].Memory = 0
	}
	left, total := spec.Memory, float64(memory.Total())
	at := memory.Nodes()
	for i, node := range at {
		part := topology.Bytes(float64(spec.Memory) * float64(memory[node]) / total)
		if part = min(part, left); i == len(at)-1 {
			part = left
		}
		left -= part
		p.Reservations = reserveMemory(p.Reservations, node, part)
	}
	p.Nodes = topology.SetOf(homes...).Union(topology.SetOf(at...))
	p.Cells = []guest.Cell{{Memory: spec.Memory, Nodes: p.Nodes,
		VCPUs: topology.Range[guest.VCPUID](0, guest.VCPUID(spec.VCPUs-1))}}
	return p, nil
}

// reserveMemory adds memory of a node to reservations, which are ascending by node.
func reserveMemory(all []guest.Reservation, node topology.NodeID, bytes topology.Bytes) []guest.Reservation {
	i, found := slices.BinarySearchFunc(all, node,
		func(r guest.Reservation, id topology.NodeID) int { return cmp.Compare(r.Node, id) })
	if !found {
		all = slices.Insert(all, i, guest.Reservation{Node: node})
	}
	all[i].Memory = bytes
	return all
}
