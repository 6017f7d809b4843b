package libvirt

import (
	"fmt"
	"math"
	"strconv"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// cells reads <cpu><numa>. As in libvirt, vCPUs in no cell belong to cell 0,
// and with cells the memory is their sum, whatever <memory> says.
func (r *reader) cells(d *Domain) error {
	found := r.root.path("cpu", "numa").all("cell")
	if len(found) == 0 {
		return nil
	}
	c := &d.Config
	devices := c.Memory - d.BootMemory
	d.BootMemory = 0
	taken := guest.VCPUSet{}
	c.Cells = make([]inventory.ConfigCell, len(found))
	seen := make([]bool, len(found))
	for i, e := range found {
		cell, err := parseCell(e, i)
		if err != nil {
			return err
		}
		if int(cell.ID) >= len(found) || seen[cell.ID] {
			return fmt.Errorf("numa cell id=%d: ids must be unique and from 0 to %d", cell.ID, len(found)-1)
		}
		if cell.Memory > math.MaxUint64-d.BootMemory {
			return fmt.Errorf("numa cell id=%d: all cells together have more than 16 EiB", cell.ID)
		}
		if cell.VCPUs.Intersects(taken) {
			return fmt.Errorf("numa cell id=%d: vCPUs %s are in another cell, too", cell.ID,
				cell.VCPUs.Intersect(taken))
		}
		seen[cell.ID] = true
		taken = taken.Union(cell.VCPUs)
		d.BootMemory += cell.Memory
		c.Shared = c.Shared || e.attr("memAccess") == "shared"
		c.Cells[cell.ID] = cell
	}
	c.Cells[0].VCPUs = c.Cells[0].VCPUs.Union(allVCPUs(c.VCPUs).Minus(taken))
	c.Memory = d.BootMemory + devices
	return nil
}

func allVCPUs(vcpus int) guest.VCPUSet {
	ids := make([]guest.VCPUID, vcpus)
	for i := range ids {
		ids[i] = guest.VCPUID(i)
	}
	return topology.SetOf(ids...)
}

// parseCell reads one cell; position is its id if it has none.
func parseCell(e *element, position int) (inventory.ConfigCell, error) {
	cell := inventory.ConfigCell{ID: guest.CellID(position)}
	var err error
	if id := e.attr("id"); id != "" {
		if cell.ID, err = cellID("numa cell id", id); err != nil {
			return cell, err
		}
	}
	if text := e.attr("cpus"); text != "" {
		if cell.VCPUs, err = parseList[guest.VCPUID]("numa cell cpus", text); err != nil {
			return cell, err
		}
	}
	if cell.Memory, err = parseMemory("numa cell memory", e.attr("memory"), e.attr("unit")); err != nil {
		return cell, err
	}
	for _, s := range e.child("distances").all("sibling") {
		to, err := cellID("numa sibling id", s.attr("id"))
		if err != nil {
			return cell, err
		}
		value, err := strconv.Atoi(s.attr("value"))
		if err != nil || value < 0 || value > 255 {
			return cell, fmt.Errorf("numa sibling value=%.20q is not a number from 0 to 255", s.attr("value"))
		}
		if cell.Distances == nil {
			cell.Distances = map[guest.CellID]int{}
		}
		cell.Distances[to] = value
	}
	return cell, nil
}
