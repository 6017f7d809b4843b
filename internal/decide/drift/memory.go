package drift

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

type placement = *guest.Placement

// Tolerances. A few pages are always on other nodes: shared with others, pinned, or
// touched before the binding. A cgroup also counts the VM process's own memory
// (QEMU's heap, page cache), which may be on any node.
const (
	toleratedPercent = 2
	processOwn       = 32 * topology.MiB
	processOwnPart   = 8 // at most an eighth of the observed memory, so that small guests are judged too
)

// part is a piece of guest memory with its intended nodes.
type part struct {
	name     string
	intended topology.NodeSet
	byNode   topology.MemoryByNode
	// each is the memory that is intended for each node; nil: not known.
	each topology.MemoryByNode
	// process says that the figures include the VM process's own memory.
	process bool
}

// parts divides a guest's memory into its cells where its mappings are known;
// otherwise the memory is one part, intended for the guest's nodes.
func parts(g *inventory.Guest) []part {
	var all []part
	for i := range g.Seen.Ranges {
		r := &g.Seen.Ranges[i]
		if r.Cell == nil {
			continue // the process's own memory
		}
		name := fmt.Sprintf("cell %d", *r.Cell)
		at := slices.IndexFunc(all, func(p part) bool { return p.name == name })
		if at < 0 {
			all = append(all,
				part{name: name, intended: targetOf(g.Placement, *r.Cell), byNode: topology.MemoryByNode{}})
			at = len(all) - 1
		}
		all[at].byNode.Add(r.ByNode)
	}
	if len(all) == 0 && len(g.Seen.MemoryByNode) > 0 {
		return []part{{name: wholeGuest, intended: g.Placement.Nodes, byNode: g.Seen.MemoryByNode,
			each: cellsByNode(g), process: true}}
	}
	slices.SortFunc(all, func(a, b part) int { return strings.Compare(a.name, b.name) })
	return all
}

// cellsByNode sums the memory of the guest's cells by node; nil: it sees none, a cell is on several nodes, or the
// figures of the guest's memory are those of a process, which has other memory on any node.
func cellsByNode(g *inventory.Guest) topology.MemoryByNode {
	if !g.Placement.Visible || !g.Can.NoHelpers {
		return nil
	}
	all := topology.MemoryByNode{}
	for _, c := range g.Placement.Cells {
		node, ok := c.Nodes.First()
		if !ok || c.Nodes.Len() > 1 {
			return nil
		}
		all[node] += c.Memory
	}
	return all
}

// targetOf returns the nodes of a cell, else of the guest. A guest that sees no
// cells is one mapping, regardless of the cells of its placement.
func targetOf(p placement, id guest.CellID) topology.NodeSet {
	for _, c := range p.Cells {
		if c.ID == id && (p.Visible || len(p.Cells) == 1) {
			return c.Nodes
		}
	}
	return p.Nodes
}

// outside returns the bytes outside the intended nodes, and the total of the part. Where the memory for each node is
// known, what is too much on one node and missing on another is outside, too.
func (p part) outside() (outside, total topology.Bytes) {
	var excess, lack topology.Bytes
	for node, bytes := range p.byNode {
		total += bytes
		if !p.intended.Contains(node) {
			outside += bytes
		} else if want := p.each[node]; bytes > want {
			excess += bytes - want
		}
	}
	for node, want := range p.each {
		if has := p.byNode[node]; has < want {
			lack += want - has
		}
	}
	return max(outside, min(outside+excess, lack)), total
}

func (c *comparison) memory() {
	if c.placed.MemoryMode == guest.MemoryNone {
		return
	}
	for _, p := range parts(c.guest) {
		outside, total := p.outside()
		tolerated := total / 100 * toleratedPercent
		if p.process {
			tolerated = max(tolerated, min(processOwn, total/processOwnPart))
		}
		switch {
		case outside > tolerated && p.each != nil:
			c.add(Memory, cells, byNodeText(p.each), byNodeText(p.byNode))
		case outside > tolerated:
			c.add(Memory, p.name, p.intended.String(), byNodeText(p.byNode))
		}
	}
}

func byNodeText(byNode topology.MemoryByNode) string {
	nodes := byNode.Nodes()
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		texts[i] = fmt.Sprintf("node %d: %v", n, byNode[n])
	}
	return strings.Join(texts, ", ")
}

// limit checks the outer limit of the guest: the cpusets of its threads together.
// (Threads of one guest may have different cpusets: in mode restrictive, libvirt
// gives the vCPUs of each cell that cell's nodes.)
func (c *comparison) limit() {
	if c.placed.MemoryMode == guest.MemoryNone || c.placed.Nodes.IsEmpty() {
		return
	}
	seen := allowed(c.guest)
	intended := c.placed.Nodes
	if memory := c.topology.MemoryNodes(); !memory.IsEmpty() {
		seen, intended = seen.Intersect(memory), intended.Intersect(memory)
	}
	if !seen.IsEmpty() && !seen.Equal(intended) {
		c.add(MemoryLimit, wholeGuest, intended.String(), seen.String())
	}
}

// allowed returns the nodes from which the kernel lets the guest's threads allocate.
func allowed(g *inventory.Guest) topology.NodeSet {
	var s topology.NodeSet
	for _, t := range g.Seen.Threads {
		if t.Role != inventory.RoleVhost { // kernel threads of their own before Linux 6.4, in no cgroup of the guest
			s = s.Union(t.Mems)
		}
	}
	return s
}
