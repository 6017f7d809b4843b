package fake

import (
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const smallPage = 4 * topology.KiB

// mapping is a mapping of a process; ByNode is its touched memory.
type mapping struct {
	inventory.MemoryRange
	cell   guest.CellID
	own    bool           // the program's own: heap, stacks
	sticks topology.Bytes // never moves: pinned by a device, for example
}

func (m *mapping) huge() bool { return m.PageSize > 64*topology.KiB }

// kind is the page size as nodes count it: 0 for small pages.
func (m *mapping) kind() topology.Bytes {
	if m.huge() {
		return m.PageSize
	}
	return 0
}

func (m *mapping) touched() topology.Bytes {
	var sum topology.Bytes
	for _, bytes := range m.ByNode {
		sum += bytes
	}
	return sum
}

// seen is the mapping as numa_maps and maps show it.
func (m *mapping) seen() inventory.MemoryRange {
	r := m.MemoryRange
	r.ByNode = maps.Clone(m.ByNode)
	maps.DeleteFunc(r.ByNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
	return r
}

// policyText writes a memory mode as numa_maps writes the kernel's policy.
func policyText(mode guest.MemoryMode, nodes topology.NodeSet) string {
	switch mode {
	case guest.MemoryStrict:
		return "bind:" + nodes.String()
	case guest.MemoryPreferred:
		if nodes.Len() > 1 {
			return "prefer (many):" + nodes.String()
		}
		return "prefer:" + nodes.String()
	case guest.MemoryInterleave:
		return "interleave:" + nodes.String()
	case guest.MemoryRestrictive, guest.MemoryNone: // the cpuset alone limits it
	}
	return "default"
}

func (m *mapping) policy() (mode string, nodes topology.NodeSet) {
	mode, list, _ := strings.Cut(m.Policy, ":")
	return mode, topology.MustParseSet[topology.NodeID](list)
}

// candidates orders the nodes for a page that a thread touches on a CPU of
// local.
func (h *Host) candidates(m *mapping, local topology.NodeID, mems topology.NodeSet) []topology.NodeID {
	mode, nodes := m.policy()
	within := nodes.Intersect(mems)
	switch {
	case within.IsEmpty(): // default, or a policy whose nodes are all outside the cpuset
		return h.nearest(local, mems)
	case mode == "bind":
		return h.nearest(local, within)
	}
	return append(h.nearest(local, within), h.nearest(local, mems.Minus(within))...)
}

// touch allocates up to bytes more of a mapping for a thread and returns how
// much it allocated.
func (h *Host) touch(m *mapping, bytes topology.Bytes, local topology.NodeID, mems topology.NodeSet) topology.Bytes {
	bytes = min(bytes, m.Size-m.touched())
	mode, nodes := m.policy()
	within := nodes.Intersect(mems)
	var got topology.Bytes
	if mode == "interleave" && !within.IsEmpty() {
		part := bytes / topology.Bytes(within.Len()) / m.PageSize * m.PageSize
		for id := range within.All() {
			got += h.put(m, id, part)
		}
	}
	for _, id := range h.candidates(m, local, mems) {
		got += h.put(m, id, bytes-got)
	}
	return got
}

func (h *Host) put(m *mapping, id topology.NodeID, bytes topology.Bytes) topology.Bytes {
	got := h.nodes[id].take(bytes, m.kind())
	m.ByNode[id] += got
	return got
}

// shift moves up to bytes of a mapping between nodes and returns how much it
// moved.
func (h *Host) shift(m *mapping, from, to topology.NodeID, bytes topology.Bytes) topology.Bytes {
	moved := migrate(h.nodes[from], h.nodes[to], bytes, m.kind())
	m.ByNode[from] -= moved
	m.ByNode[to] += moved
	return moved
}

// release gives all memory of a mapping back.
func (h *Host) release(m *mapping) {
	for id, bytes := range m.ByNode {
		h.nodes[id].give(bytes, m.kind())
	}
	m.ByNode = topology.MemoryByNode{}
}

// remap returns the node with the same ordinal in another set, as cpuset writes
// do; nodes outside the old set stay.
func remap(id topology.NodeID, old, fresh topology.NodeSet) topology.NodeID {
	at := slices.Index(old.IDs(), id)
	if at < 0 || fresh.IsEmpty() {
		return id
	}
	return fresh.IDs()[at%fresh.Len()]
}

// allow changes a mapping as a write of cpuset.mems does: it remaps policies of
// memory other than memfd, and moves pages outside the set as far as there is
// room.
func (h *Host) allow(m *mapping, old, fresh topology.NodeSet) {
	mode, nodes := m.policy()
	if m.Backing != "memfd" && (mode == "bind" || mode == "interleave") {
		var mapped topology.NodeSet
		for id := range nodes.All() {
			mapped = mapped.With(remap(id, old, fresh))
		}
		m.Policy = mode + ":" + mapped.String()
	}
	stuck := m.sticks
	for _, id := range slices.Sorted(maps.Keys(m.ByNode)) {
		if to := remap(id, old, fresh); !fresh.Contains(id) && to != id {
			stays := min(stuck, m.ByNode[id])
			stuck -= stays
			h.shift(m, id, to, m.ByNode[id]-stays)
		}
	}
}
