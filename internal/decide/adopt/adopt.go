// Package adopt derives a spec from the configuration of a guest that another tool
// created, so that Numavisor can place and bind the guest like one of its own.
package adopt

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Spec returns the spec that matches the guest's configuration. The cells of a
// running guest are those it booted with, and do not change. Its memory mode does
// not change either, since only the policy of memfd memory can be changed while
// the guest runs. A guest without any policy gets only the limit (restrictive); one
// with memfd memory gets the default, where each cell prefers its node.
func Spec(g inventory.Guest) guest.Spec {
	c := g.Config
	s := guest.Spec{
		Name: g.Name, VCPUs: c.VCPUs, Memory: c.Memory, PageSize: c.PageSize,
		CPU:      guest.CPUSpec{Binding: cpuMode(c), IOThreads: c.IOThreads},
		Binding:  guest.MemorySpec{Mode: memoryMode(g), Immediate: c.Immediate},
		Topology: cells(c),
	}
	s.Limits.Pool = g.Pool
	for _, address := range c.Devices {
		s.Devices = append(s.Devices, guest.DeviceSpec{Address: address, Passthrough: true})
	}
	// a stopped guest may get movable memory; a running one retains its memory
	if movable := len(c.Devices) == 0 && (c.Source == "memfd" || g.State == "shutoff"); !movable {
		s.Movable = &movable
	}
	return s
}

// cpuMode returns exclusive binding if every vCPU is pinned to one CPU and all these CPUs differ.
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

// Fixed returns the spec by which a running guest may be placed again. Cells that the
// guest sees cannot change while it runs; where the spec leaves their sizes to
// placing, they are those of its placement.
func Fixed(s guest.Spec, p *guest.Placement) guest.Spec {
	if p == nil || !p.Visible || len(p.Cells) < 2 ||
		s.Topology.Mode != guest.TopologyAuto && s.Topology.Mode != "" {
		return s
	}
	s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: len(p.Cells)}
	for i := range p.Cells {
		c := &p.Cells[i]
		s.Topology.Cells = append(s.Topology.Cells, guest.CellSpec{VCPUs: c.VCPUs.Len(), Memory: c.Memory})
	}
	return s
}

// Elsewhere returns the spec by which a running guest may be placed on another host. A guest that sees one node, and
// whose memory does not move while it runs, gets no more nodes than it has now: memory of another distance would be new
// to it, and would stay.
func Elsewhere(s guest.Spec, p *guest.Placement, can inventory.Capabilities) guest.Spec {
	s = Fixed(s, p)
	if p == nil || p.Visible || can.MoveMemory {
		return s
	}
	if n := p.Nodes.Len(); n > 0 && (s.Limits.MaxNodes == 0 || s.Limits.MaxNodes > n) {
		s.Limits.MaxNodes = n
	}
	return s
}
