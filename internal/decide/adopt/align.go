package adopt

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Align renames the vCPUs of a placement so that each cell has the same vCPUs as
// in the guest. Placing assigns vCPUs in order, whereas a guest may have any
// assignment (vCPUs 0 and 2 in cell 0, 1 and 3 in cell 1). The cells' sizes must
// agree, as they do for a placement of Spec(g).
func Align(p guest.Placement, c inventory.Config) guest.Placement {
	p.Cells = slices.Clone(p.Cells)
	name := map[guest.VCPUID]guest.VCPUID{}
	for i := range p.Cells {
		cell := &p.Cells[i]
		for _, have := range c.Cells {
			if have.ID != cell.ID || have.VCPUs.Len() != cell.VCPUs.Len() {
				continue
			}
			dealt, theirs := cell.VCPUs.IDs(), have.VCPUs.IDs()
			for k := range dealt {
				name[dealt[k]] = theirs[k]
			}
			cell.VCPUs = have.VCPUs
		}
	}
	p.VCPUs = slices.Clone(p.VCPUs)
	for i, v := range p.VCPUs {
		if id, ok := name[v.ID]; ok {
			p.VCPUs[i].ID = id
		}
	}
	slices.SortFunc(p.VCPUs, func(a, b guest.VCPU) int { return int(a.ID - b.ID) })
	return p
}
