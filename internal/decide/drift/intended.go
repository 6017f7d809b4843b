package drift

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// OnIntended returns the shares, from 0 to 1, of a guest's memory and of its vCPUs
// that are where the placement wants them. It judges memory cell by cell where the
// mappings are known, else by the guest's nodes. Memory without a binding has no
// intended location (nil). A vCPU counts as placed if it may run only on its
// intended CPUs. The result is also nil where the inventory observed nothing.
func OnIntended(g inventory.Guest) (memory, vcpus *float64) {
	if g.Placement == nil {
		return nil, nil
	}
	return memoryOnIntended(&g), vcpusOnIntended(&g)
}

func memoryOnIntended(g *inventory.Guest) *float64 {
	if g.Placement.MemoryMode == guest.MemoryNone {
		return nil
	}
	var outside, total topology.Bytes
	for _, p := range parts(g) {
		o, t := p.outside()
		outside, total = outside+o, total+t
	}
	if total == 0 {
		return nil
	}
	share := 1 - float64(outside)/float64(total)
	return &share
}

func vcpusOnIntended(g *inventory.Guest) *float64 {
	right, seen := 0, 0
	for _, v := range g.Placement.VCPUs {
		for _, t := range g.Seen.Threads {
			if t.VCPU == nil || *t.VCPU != v.ID || t.Affinity.IsEmpty() {
				continue
			}
			seen++
			if g.Placement.CPUMode == guest.CPUNone || v.CPUs.IsEmpty() || t.Affinity.SubsetOf(v.CPUs) {
				right++
			}
		}
	}
	if seen == 0 {
		return nil
	}
	share := float64(right) / float64(seen)
	return &share
}
