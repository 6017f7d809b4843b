package guest

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

func (c *checker) cells() {
	t := &c.spec.Topology
	oneOf(c, "topology.mode", t.Mode)
	if t.Mode == TopologyMirror && c.spec.IsHandoff() && t.Count == 0 {
		c.mirroredCells()
		return
	}
	if t.Mode != TopologyCells {
		if t.Count != 0 {
			c.fail("topology.count", t.Count, "0 with topology.mode %s; a number of cells needs mode cells", t.Mode)
		}
		if len(t.Cells) > 0 {
			c.fail("topology.cells", fmt.Sprintf("a list of %d", len(t.Cells)),
				"no list with topology.mode %s; it needs mode cells", t.Mode)
		}
		return
	}
	if len(t.Cells) > 0 {
		c.listedCells()
		return
	}
	c.equalCells()
}

// mirroredCells: the memory of each cell, if it is listed; the host says how many vCPUs
// a cell has.
func (c *checker) mirroredCells() {
	cells := c.spec.Topology.Cells
	if len(cells) == 0 {
		return
	}
	for i, cell := range cells {
		at := fmt.Sprintf("topology.cells[%d]", i)
		if cell.VCPUs != 0 {
			c.fail(at+".vcpus", cell.VCPUs, "0 with cpu.sharing handoff: a cell has the vCPUs of its node's CPUs")
		}
		if cell.Memory == 0 || cell.Memory > maxMemory || cell.Memory%c.unit() != 0 {
			c.fail(at+".memory", cell.Memory, "a whole number of pages of %v, at least one", c.unit())
			return
		}
	}
	if len(cells) > maxVCPUs {
		return // sums could overflow
	}
	if _, memory := c.spec.Topology.sum(); memory != c.spec.Memory {
		c.fail("topology.cells", fmt.Sprintf("%v in all", memory), "cells whose memory sums up to memory, %v",
			c.spec.Memory)
	}
}

// equalCells: each cell has at least a vCPU and a page.
func (c *checker) equalCells() {
	count, most := c.spec.Topology.Count, max(1, c.spec.VCPUs)
	if memory := c.spec.Memory / max(c.unit(),
		topology.MiB); memory < topology.Bytes(most) { //nolint:gosec // most is at least 1
		most = max(1, int(memory)) //nolint:gosec // below most
	}
	if count < 1 || count > most {
		c.fail("topology.count", count,
			"1 to %d for %d vCPUs and %v: each cell has a vCPU, and a MiB or a page of memory", most, c.spec.VCPUs,
			c.spec.Memory)
	}
}

func (c *checker) listedCells() {
	s, t := c.spec, &c.spec.Topology
	if t.Count != len(t.Cells) {
		c.fail("topology.count", t.Count, "%d, the length of topology.cells, or leave it out", len(t.Cells))
	}
	fits := true
	for i, cell := range t.Cells {
		at := fmt.Sprintf("topology.cells[%d]", i)
		if cell.VCPUs < 1 || cell.VCPUs > maxVCPUs {
			c.fail(at+".vcpus", cell.VCPUs, "1 to %d", maxVCPUs)
			fits = false
		}
		if cell.Memory == 0 || cell.Memory > maxMemory || cell.Memory%c.unit() != 0 {
			c.fail(at+".memory", cell.Memory, "a whole number of pages of %v, at least one", c.unit())
			fits = false
		}
	}
	if !fits || len(t.Cells) > maxVCPUs {
		return // sums would mislead, or overflow
	}
	vcpus, memory := t.sum()
	if vcpus != s.VCPUs {
		c.fail("topology.cells", fmt.Sprintf("%d vCPUs in all", vcpus), "cells whose vCPUs sum up to vcpus, %d",
			s.VCPUs)
	}
	if memory != s.Memory {
		c.fail("topology.cells", fmt.Sprintf("%v in all", memory), "cells whose memory sums up to memory, %v", s.Memory)
	}
}
