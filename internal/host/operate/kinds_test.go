package operate_test

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// kind is one of the ways in which others start guests.
type kind struct {
	name   string
	mode   guest.MemoryMode // "": no numatune
	source string
	huge   bool
	cells  int
}

// kinds are those that a bind treats differently.
var kinds = []kind{
	{"no numatune, anonymous", "", "anonymous", false, 1},
	{"no numatune, memfd", "", "memfd", false, 1},
	{"no numatune, two cells, memfd", "", "memfd", false, 2},
	{"strict, anonymous", guest.MemoryStrict, "anonymous", false, 1},
	{"strict, memfd", guest.MemoryStrict, "memfd", false, 1},
	{"strict, two cells, memfd", guest.MemoryStrict, "memfd", false, 2},
	{"strict, two cells, anonymous", guest.MemoryStrict, "anonymous", false, 2},
	{"preferred, anonymous", guest.MemoryPreferred, "anonymous", false, 1},
	{"preferred, two cells, memfd", guest.MemoryPreferred, "memfd", false, 2},
	{"restrictive, anonymous", guest.MemoryRestrictive, "anonymous", false, 1},
	{"interleave, memfd", guest.MemoryInterleave, "memfd", false, 1},
	{"huge pages, strict", guest.MemoryStrict, "hugetlbfs", true, 1},
	{"huge pages, no numatune", "", "hugetlbfs", true, 1},
	{"huge pages, strict, two cells", guest.MemoryStrict, "hugetlbfs", true, 2},
}

// guest makes a guest of the kind: cell i has its policy on the i-th of the
// given nodes, and vCPU i, which uses it, is pinned to the CPUs of pins.
func (k kind) guest(
	name string, cellMemory topology.Bytes, on []topology.NodeID, pins topology.CPUSet,
) fake.Definition {
	d := fake.Definition{
		Name: name,
		Config: inventory.Config{VCPUs: k.cells, Memory: cellMemory * topology.Bytes(k.cells), Source: k.source,
			Pins: map[guest.VCPUID]topology.CPUSet{}},
	}
	if k.huge {
		d.Config.PageSize, d.Config.Immediate = 2*mib, true
	}
	if k.mode != "" {
		d.Config.NUMATune = &inventory.NUMATune{Mode: string(k.mode), Nodes: topology.SetOf(on[:k.cells]...)}
	}
	for i := range k.cells {
		v := guest.VCPUID(i)
		d.Config.Pins[v] = pins
		if k.cells == 1 {
			continue
		}
		d.Config.Cells = append(d.Config.Cells,
			inventory.ConfigCell{ID: guest.CellID(i), VCPUs: topology.SetOf(v), Memory: cellMemory})
		if k.mode != "" {
			d.Config.NUMATune.Mode = string(guest.MemoryStrict) // the outer limit
			d.Config.NUMATune.Cells = append(d.Config.NUMATune.Cells,
				inventory.CellTune{Cell: guest.CellID(i), Mode: string(k.mode), Nodes: topology.SetOf(on[i])})
		}
	}
	return d
}
