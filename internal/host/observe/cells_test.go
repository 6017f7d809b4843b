package observe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func mapping(address uint64, mib topology.Bytes) inventory.MemoryRange {
	return inventory.MemoryRange{Address: address << 20, Size: mib * topology.MiB, Backing: "anonymous"}
}

func twoCells(mib0, mib1 topology.Bytes) inventory.Config {
	return inventory.Config{
		Memory: (mib0 + mib1) * topology.MiB,
		Cells:  []inventory.ConfigCell{{ID: 0, Memory: mib0 * topology.MiB}, {ID: 1, Memory: mib1 * topology.MiB}},
	}
}

func TestAssignCells(t *testing.T) {
	for _, c := range []struct {
		name   string
		config inventory.Config
		ranges []inventory.MemoryRange
		want   string // cell of each mapping by ascending address, "-" for none
	}{
		{"one cell among other memory", inventory.Config{Memory: 128 * topology.MiB},
			[]inventory.MemoryRange{mapping(10, 3), mapping(100, 128), mapping(400, 8)}, "- 0 -"},
		{"equal cells: the higher address is the lower cell", twoCells(96, 96),
			[]inventory.MemoryRange{mapping(100, 96), mapping(300, 96)}, "1 0"},
		{"unequal cells", twoCells(64, 96), []inventory.MemoryRange{mapping(100, 64), mapping(300, 96)}, "0 1"},
		{"a block split in two", twoCells(96, 96), []inventory.MemoryRange{mapping(100, 96), mapping(300, 32),
			mapping(332, 64)}, "1 0 0"},
		{"a thread's memory adjoins a block", twoCells(96, 96), []inventory.MemoryRange{mapping(100, 96),
			mapping(196, 2), mapping(300, 96)}, "1 - 0"},
		{"the blocks adjoin each other", twoCells(96, 96), []inventory.MemoryRange{mapping(100, 96), mapping(196, 96)},
			"1 0"},
		{"nothing fits", twoCells(96, 96), []inventory.MemoryRange{mapping(100, 95), mapping(300, 97)}, "- -"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, r := range observe.AssignCells(c.ranges, c.config) {
				if r.Cell == nil {
					got = append(got, "-")
				} else {
					got = append(got, fmt.Sprint(*r.Cell))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("cells %v, want %s", got, c.want)
			}
		})
	}
}
