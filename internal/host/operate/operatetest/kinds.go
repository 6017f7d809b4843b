package operatetest

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Kind is one of the ways in which other programs start guests.
type Kind struct {
	Name   string
	Mode   guest.MemoryMode // "": no numatune
	Source string
	Huge   bool
	Cells  int
}

// Kinds are the kinds that a bind treats differently.
var Kinds = []Kind{
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

// Guest makes a guest of the kind: cell i has its policy on the i-th of the
// given nodes, and vCPU i, which uses it, is pinned to the CPUs of pins.
func (k Kind) Guest(
	name string, cellMemory topology.Bytes, on []topology.NodeID, pins topology.CPUSet,
) fake.Definition {
	d := fake.Definition{
		Name: name,
		Config: inventory.Config{VCPUs: k.Cells, Memory: cellMemory * topology.Bytes(k.Cells), Source: k.Source,
			Pins: map[guest.VCPUID]topology.CPUSet{}},
	}
	if k.Huge {
		d.Config.PageSize, d.Config.Immediate = 2*mib, true
	}
	if k.Mode != "" {
		d.Config.NUMATune = &inventory.NUMATune{Mode: string(k.Mode), Nodes: topology.SetOf(on[:k.Cells]...)}
	}
	for i := range k.Cells {
		v := guest.VCPUID(i)
		d.Config.Pins[v] = pins
		if k.Cells == 1 {
			continue
		}
		d.Config.Cells = append(d.Config.Cells,
			inventory.ConfigCell{ID: guest.CellID(i), VCPUs: topology.SetOf(v), Memory: cellMemory})
		if k.Mode != "" {
			d.Config.NUMATune.Mode = string(guest.MemoryStrict) // the outer limit
			d.Config.NUMATune.Cells = append(d.Config.NUMATune.Cells,
				inventory.CellTune{Cell: guest.CellID(i), Mode: string(k.Mode), Nodes: topology.SetOf(on[i])})
		}
	}
	return d
}
