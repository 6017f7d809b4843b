package libvirt

import (
	"strconv"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
)

// numaTune replaces <memory> and <memnode>.
//
// Mode strict on <memory> is the outer limit: it sets cpuset.mems of all of
// the guest's threads to its nodes. Memnodes are the inner one, per cell.
func (w *writer) numaTune() error {
	ours := func(e *element) bool {
		return e.prefix == "" && (e.name == "memory" || e.name == "memnode")
	}
	fresh := tuneOf(w.placement, w.shown)
	if tune := w.root.child("numatune"); tune != nil {
		w.setChildren(tune, ours, fresh)
	} else if len(fresh) > 0 {
		w.insertBehind(tag{name: "numatune", children: fresh},
			"cputune", "iothreadids", "iothreads", "vcpus", "vcpu", "currentMemory", "memory")
	}
	return nil
}

// tuneOf gives the children of numatune; shown says whether memnodes can name cells.
func tuneOf(p guest.Placement, shown bool) []tag {
	memory := func(mode guest.MemoryMode) tag {
		return tag{name: "memory", attrs: []pair{{"mode", string(mode)}, {"nodeset", p.Nodes.String()}}}
	}
	switch {
	case p.MemoryMode == guest.MemoryNone:
		return nil
	case p.MemoryMode == guest.MemoryRestrictive:
		return []tag{memory(guest.MemoryRestrictive)}
	case !shown && p.MemoryMode == guest.MemoryInterleave && p.Nodes.Len() > 1:
		return []tag{memory(guest.MemoryInterleave)}
	case !shown: // one nodeset for all: to prefer all allowed nodes is the same as to be restricted to them
		return []tag{memory(guest.MemoryStrict)}
	}
	fresh := []tag{memory(guest.MemoryStrict)}
	for _, c := range p.Cells {
		fresh = append(fresh, tag{name: "memnode", attrs: []pair{
			{"cellid", strconv.Itoa(int(c.ID))}, {"mode", string(p.MemoryMode)}, {"nodeset", c.Nodes.String()},
		}})
	}
	return fresh
}

// Definition reads a domain XML that Rewrite has bound: the definition to start,
// and the parts of its placement that it does not provide (Cannot).
func Definition(bound []byte) (guest.Definition, []plan.Refusal, error) {
	d, err := ParseDomain(bound)
	if err != nil {
		return guest.Definition{}, nil, err
	}
	g := guest.Definition{Name: d.Name, Text: bound}
	if d.Intent == nil {
		return g, nil, nil
	}
	p := d.Intent.Placement
	if d.Config.EmulatorPin.IsEmpty() && EmulatorPinIsLate(p) {
		g.LateEmulatorPin = p.Emulator
	}
	return g, Cannot(d, p), nil
}

// Cannot lists the parts of a placement that the domain XML bound to it does
// not provide, with a remedy for each. d is the result of ParseDomain for the
// rewritten XML.
func Cannot(d Domain, p guest.Placement) []plan.Refusal {
	var found []plan.Refusal
	refuse := func(what, why string) { found = append(found, plan.Refusal{What: what, Why: why}) }
	shown := len(d.Config.Cells) > 0
	if len(p.Cells) > 1 && differ(p.Cells) {
		switch {
		case p.MemoryMode == guest.MemoryRestrictive:
			refuse("each cell's memory on its node", "libvirt's mode restrictive gives QEMU no policy for cells; "+
				"the VM is restricted to nodes "+p.Nodes.String()+" as a whole; "+
				"set a policy on the cells' memfd once "+
				"the VM runs, or choose preferred")
		case !shown && p.MemoryMode != guest.MemoryNone:
			refuse("each cell's memory on its node", "the VM sees no cells, so its memory is a single block for QEMU; "+
				"make the topology visible, or bind by address once the VM runs")
		}
	}
	if !shown && p.MemoryMode == guest.MemoryInterleave && p.Nodes.Len() > 1 {
		refuse(
			"the outer limit to nodes "+p.Nodes.String(),
			"libvirt's mode interleave sets no cpuset.mems; restrict the thread groups to the nodes once the VM is "+
				"there",
		)
	}
	if p.Movable {
		if why := whyUnmovable(d); why != "" {
			refuse("memory that can be moved", why)
		}
	}
	if EmulatorPinIsLate(p) {
		refuse(
			"the emulator's pin in the configuration",
			"with allocation at start QEMU does not start if the emulator cannot reach every cell's nodes; "+
				"set the pin "+
				"once the VM runs",
		)
	}
	return found
}

// differ reports whether the cells are on different nodes.
func differ(cells []guest.Cell) bool {
	for _, c := range cells {
		if !c.Nodes.Equal(cells[0].Nodes) {
			return true
		}
	}
	return false
}

func whyUnmovable(d Domain) string {
	c := d.Config
	switch {
	case len(c.Devices) > 0:
		return "assigned devices (vfio) pin all of it: " + list(c.Devices)
	case d.Confidential:
		return "launchSecurity: the memory of confidential VMs is pinned"
	case c.PageSize > 0:
		return "pages of huge page pools can be moved, but no policy can be set on them from outside; new ones " +
			"follow the old policy"
	case c.Source != "memfd":
		return "its memory is " + c.Source + ", whose policy only QEMU itself can change; remove <source> from " +
			"<memoryBacking> to get memfd"
	case !c.Shared:
		return "its memfd is mapped privately: written pages are anonymous copies"
	default:
		return ""
	}
}
