package libvirt

import (
	"fmt"
	"strconv"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// cells makes the placement's cells visible to the guest. Existing cells that
// agree stay, with all that other tools wrote into them.
func (w *writer) cells() error {
	p := w.placement
	cpu := w.root.child("cpu")
	numa := cpu.child("numa")
	if w.sameCells() {
		w.shown = true
		for i, e := range numa.all("cell") {
			w.distances(e, w.cellAt(e, i))
		}
		return nil
	}
	w.shown = p.Visible || needsCell(p)
	if numa == nil && !w.shown {
		return nil
	}
	if err := wholeMiB(p.Cells); w.shown && err != nil {
		return err
	}
	if ties := tiedToCells(w.root); numa != nil && len(ties) > 0 {
		return &ContradictionError{
			Field: "VM cells", XML: strconv.Itoa(len(w.domain.Config.Cells)) + " cells that are referred to: " +
				"" + list(ties),
			Placement: "has others",
			Remedy:    "place with the cells of the XML, or remove the elements that refer to them",
		}
	}
	switch {
	case !w.shown && w.domain.declared != w.domain.BootMemory:
		return &ContradictionError{
			Field: "memory", XML: w.domain.declared.String() + " in <memory> and " + w.domain.BootMemory.String() +
				" in its cells",
			Placement: "has no cells", Remedy: "make <memory> the sum of the cells first",
		}
	case !w.shown:
		w.remove(numa)
	case cpu == nil:
		w.insertBehind(tag{name: "cpu", children: []tag{w.numa()}}, "features", "os", "resource", "vcpu", "memory")
	default:
		w.setChildren(cpu, func(e *element) bool { return e == numa }, []tag{w.numa()})
	}
	return nil
}

// wholeMiB refuses cells that libvirt would round up to MiB
// (virDomainNumaSetNodeMemorySize), so that the guest would get more than its
// reservation.
func wholeMiB(cells []guest.Cell) error {
	for _, c := range cells {
		if c.Memory%topology.MiB != 0 {
			return fmt.Errorf("placement: cell %d: memory of %d bytes is not a whole number of MiB", c.ID, c.Memory)
		}
	}
	return nil
}

// needsCell reports that a guest without visible topology must get one cell all
// the same: libvirt can restrict a cell to fewer than the guest's nodes, or
// interleave within an outer limit, only by a memnode, which needs a cell. A
// guest with one cell sees the same as without: one node.
func needsCell(p guest.Placement) bool {
	if len(p.Cells) != 1 {
		return false
	}
	switch p.MemoryMode {
	case guest.MemoryPreferred:
		return !p.Cells[0].Nodes.Equal(p.Nodes)
	case guest.MemoryInterleave:
		return p.Nodes.Len() > 1
	default:
		return false
	}
}

// sameCells reports whether the XML has exactly the placement's cells.
func (w *writer) sameCells() bool {
	have := w.domain.Config.Cells
	if len(have) != len(w.placement.Cells) {
		return false
	}
	for i, c := range w.placement.Cells {
		if have[i].Memory != c.Memory || !have[i].VCPUs.Equal(c.VCPUs) {
			return false
		}
	}
	return true
}

// cellAt returns the placement's cell for the XML's element at a position.
func (w *writer) cellAt(e *element, position int) guest.Cell {
	if id, err := strconv.Atoi(e.attr("id")); err == nil {
		position = id
	}
	return w.placement.Cells[position]
}

func (w *writer) distances(e *element, c guest.Cell) {
	if len(c.Distances) < 2 {
		return
	}
	ours := func(e *element) bool { return e.prefix == "" && e.name == "distances" }
	w.setChildren(e, ours, []tag{distances(c)})
}

func (w *writer) numa() tag {
	t := tag{name: "numa"}
	for _, c := range w.placement.Cells {
		cell := tag{name: "cell", attrs: []pair{{"id", strconv.Itoa(int(c.ID))}}}
		if !c.VCPUs.IsEmpty() {
			cell.attrs = append(cell.attrs, pair{"cpus", c.VCPUs.String()})
		}
		cell.attrs = append(cell.attrs, pair{"memory", kib(c.Memory)}, pair{"unit", "KiB"})
		if len(c.Distances) > 1 {
			cell.children = []tag{distances(c)}
		}
		t.children = append(t.children, cell)
	}
	return t
}

func distances(c guest.Cell) tag {
	t := tag{name: "distances"}
	for to, d := range c.Distances {
		t.children = append(t.children, tag{name: "sibling", attrs: []pair{
			{"id", strconv.Itoa(to)}, {"value", strconv.Itoa(d)},
		}})
	}
	return t
}
