// Package adopt derives the spec of a guest that somebody else made from its
// configuration, so that it can be placed and bound like one of ours.
package adopt

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Spec returns what the guest would have asked for. A running guest's cells
// are what it booted with and stay; its memory mode stays too, since only the
// policy of memfd memory can be changed while it runs. A guest without any
// policy gets the limit as a whole (restrictive); one with memfd memory the
// default, each cell preferring its node.
func Spec(g inventory.Guest) guest.Spec {
	c := g.Config
	s := guest.Spec{
		Name: g.Name, VCPUs: c.VCPUs, Memory: c.Memory, PageSize: c.PageSize,
		CPU:      guest.CPUSpec{Binding: cpuMode(c), IOThreads: c.IOThreads},
		Binding:  guest.MemorySpec{Mode: memoryMode(g), Immediate: c.Immediate},
		Topology: cells(c),
	}
	for _, address := range c.Devices {
		s.Devices = append(s.Devices, guest.DeviceSpec{Address: address, Passthrough: true})
	}
	// What does not run yet may get movable memory; what runs keeps what it has.
	if movable := len(c.Devices) == 0 && (c.Source == "memfd" || g.State == "shutoff"); !movable {
		s.Movable = &movable
	}
	return s
}

// cpuMode takes pins of every vCPU to one CPU each, all different, for exclusive binding.
func cpuMode(c inventory.Config) guest.CPUMode {
	var used topology.CPUSet
	for v := range c.VCPUs {
		pin := c.Pins[guest.VCPUID(v)]
		if pin.Len() != 1 || pin.Intersects(used) {
			return guest.CPURange
		}
		used = used.Union(pin)
	}
	return guest.CPUExclusive
}

func memoryMode(g inventory.Guest) guest.MemoryMode {
	c, mode := g.Config, ""
	if c.NUMATune != nil {
		mode = c.NUMATune.Mode
		for _, cell := range c.NUMATune.Cells { // cells' policies, inside the limit as a whole
			mode = cell.Mode
		}
	}
	switch guest.MemoryMode(mode) {
	case guest.MemoryStrict, guest.MemoryPreferred, guest.MemoryInterleave, guest.MemoryRestrictive:
		return guest.MemoryMode(mode)
	case guest.MemoryNone: // the XML binds no memory
	}
	if takesPolicy := c.Source == "memfd" || g.State == "shutoff"; takesPolicy {
		return guest.MemoryPreferred
	}
	return guest.MemoryRestrictive
}

func cells(c inventory.Config) guest.TopologySpec {
	if len(c.Cells) == 0 {
		return guest.TopologySpec{Mode: guest.TopologyOff}
	}
	sorted := slices.SortedFunc(slices.Values(c.Cells), func(a, b inventory.ConfigCell) int { return int(a.ID - b.ID) })
	t := guest.TopologySpec{Mode: guest.TopologyCells, Count: len(sorted)}
	for _, cell := range sorted {
		t.Cells = append(t.Cells, guest.CellSpec{VCPUs: cell.VCPUs.Len(), Memory: cell.Memory})
	}
	return t
}
