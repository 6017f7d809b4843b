package libvirt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Rewrite returns the domain XML bound to a placement: pins, numatune, cells,
// memory backing, the intent as metadata, and the agent's port of a guest that hands CPUs
// over. It leaves every other byte
// unchanged. Rewriting the result again changes nothing.
//
// If XML and placement disagree about the guest itself the error is a
// *ContradictionError. Cannot lists what libvirt cannot express.
func Rewrite(domainXML []byte, p guest.Placement, intent Metadata) ([]byte, error) {
	doc, err := parse(domainXML)
	if err != nil {
		return nil, err
	}
	d, err := doc.domain()
	if err != nil {
		return nil, err
	}
	p.Cells = slices.SortedFunc(slices.Values(p.Cells), func(a, b guest.Cell) int { return int(a.ID - b.ID) })
	for _, check := range []error{checkPlacement(p), checkSingle(doc.root), agree(d, p), hostNodesOfDevices(doc.root,
		p.Nodes)} {
		if check != nil {
			return nil, fmt.Errorf("binding VM %q: %w", d.Name, check)
		}
	}
	intent.Placement = p
	w := &writer{editor: editor{doc: doc}, root: doc.root, domain: d, placement: p}
	for _, step := range []func() error{
		func() error { return w.metadata(intent) }, w.memoryBacking, w.vcpu, w.cpuTune, w.cells, w.numaTune,
		w.agentPort,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("binding VM %q: %w", d.Name, err)
		}
	}
	return w.result(), nil
}

// writer edits one domain.
type writer struct {
	editor
	root      *element
	domain    Domain
	placement guest.Placement
	shown     bool // the guest sees cells, so memnodes may name them; known after cells has run
}

// checkPlacement refuses placements that no domain XML can express.
func checkPlacement(p guest.Placement) error {
	if len(p.Cells) == 0 {
		return errors.New("placement: cells: empty; at least one is needed")
	}
	var all guest.VCPUSet
	for i, c := range p.Cells {
		switch {
		case int(c.ID) != i:
			return fmt.Errorf("placement: cell id %d: ids must be 0 to %d, each once", c.ID, len(p.Cells)-1)
		case c.Memory == 0 || c.Memory%topology.KiB != 0:
			return fmt.Errorf("placement: cell %d: memory of %d bytes is not a whole number of KiB", c.ID, c.Memory)
		case p.PageSize > 0 && c.Memory%p.PageSize != 0:
			return fmt.Errorf("placement: cell %d: memory of %v is not a whole number of pages of %v", c.ID, c.Memory,
				p.PageSize)
		case p.MemoryMode != guest.MemoryNone && (c.Nodes.IsEmpty() || !c.Nodes.SubsetOf(p.Nodes)):
			return fmt.Errorf("placement: cell %d: nodes %q must be some of the VM's nodes %q", c.ID, c.Nodes,
				p.Nodes)
		case c.VCPUs.Intersects(all):
			return fmt.Errorf("placement: cell %d: vCPUs %s are in another cell, too", c.ID, c.VCPUs.Intersect(all))
		}
		if err := checkDistances(c, len(p.Cells)); err != nil {
			return err
		}
		all = all.Union(c.VCPUs)
	}
	for i, v := range p.VCPUs {
		if int(v.ID) != i || !all.Contains(v.ID) {
			return fmt.Errorf("placement: vCPU %d: ids must ascend from 0 and each be in a cell", v.ID)
		}
	}
	if all.Len() != len(p.VCPUs) {
		return fmt.Errorf("placement: cells have %d vCPUs, the VM has %d", all.Len(), len(p.VCPUs))
	}
	return checkMode(p)
}

// checkSingle refuses a domain with two of an element that libvirt allows once:
// libvirt would read both, and an edit of one would not bind.
func checkSingle(root *element) error {
	for _, name := range []string{"metadata", "memory", "memoryBacking", "vcpu", "cputune", "numatune", "cpu"} {
		if n := len(root.all(name)); n > 1 {
			return fmt.Errorf("<%s> occurs %d times; remove all but one", name, n)
		}
	}
	for _, path := range [][2]string{{"cpu", "numa"}, {"memoryBacking", "hugepages"}, {"memoryBacking", "allocation"}} {
		if n := len(root.child(path[0]).all(path[1])); n > 1 {
			return fmt.Errorf("<%s> in <%s> occurs %d times; remove all but one", path[1], path[0], n)
		}
	}
	return nil
}

// checkMode refuses an unknown memory mode, and preallocation without a memory
// policy: all memory would then be allocated where QEMU's threads happen to
// run.
func checkMode(p guest.Placement) error {
	switch p.MemoryMode {
	case guest.MemoryPreferred, guest.MemoryStrict, guest.MemoryInterleave, guest.MemoryRestrictive:
		return nil
	case guest.MemoryNone:
		if p.PageSize > 0 || p.Immediate {
			return errors.New("placement: memory_binding=none with huge pages or immediate allocation: " +
				"memory would be allocated wherever QEMU happens to run; choose preferred or strict")
		}
		return nil
	default:
		return fmt.Errorf("placement: memory_binding=%q; allowed: none, preferred, strict, interleave, restrictive",
			p.MemoryMode)
	}
}

// checkDistances checks a cell's row against libvirt's rules: 10 for itself,
// above for others.
func checkDistances(c guest.Cell, cells int) error {
	if len(c.Distances) == 0 {
		return nil
	}
	if len(c.Distances) != cells {
		return fmt.Errorf("placement: cell %d: %d distances for %d cells", c.ID, len(c.Distances), cells)
	}
	for to, d := range c.Distances {
		if local := to == int(c.ID); (local && d != 10) || (!local && (d <= 10 || d > 255)) {
			return fmt.Errorf("placement: cell %d: distance %d to cell %d; allowed: 10 to itself, 11 to 255 to others",
				c.ID, d, to)
		}
	}
	return nil
}

// agree refuses a placement that was made for another guest than the one that
// the XML describes.
func agree(d Domain, p guest.Placement) error {
	var memory topology.Bytes
	for _, c := range p.Cells {
		memory += c.Memory
	}
	differ := func(field string, xml, placement any) error {
		return &ContradictionError{
			Field: field, XML: fmt.Sprint(xml), Placement: fmt.Sprint(placement), Remedy: placeAgain,
		}
	}
	switch {
	case p.Guest != "" && p.Guest != d.Name:
		return differ("name", d.Name, p.Guest)
	case d.Config.VCPUs != len(p.VCPUs):
		return differ("vCPUs", d.Config.VCPUs, len(p.VCPUs))
	case d.BootMemory != memory:
		return differ("memory (without memory devices)", d.BootMemory, memory)
	case p.IOThreads > 0 && p.IOThreads != len(d.IOThreads):
		return differ("I/O threads", len(d.IOThreads), p.IOThreads)
	case d.Config.Locked && p.MemoryMode == guest.MemoryNone:
		return differ("memory", "locked, so allocated at start", "has no memory binding")
	case d.Config.Immediate && p.MemoryMode == guest.MemoryNone:
		return differ("memory", "allocated at start", "has no memory binding")
	}
	return nil
}
