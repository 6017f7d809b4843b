package linux

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const mib = topology.MiB

func TestCapturedRAM(t *testing.T) {
	for _, c := range []struct {
		name string
		size topology.Bytes // of each cell
		want []inventory.MemoryRange
	}{
		{"anon", 160 * mib, []inventory.MemoryRange{{Policy: "default", PageSize: 4096, Backing: "anonymous",
			ByNode: byNode{1: 30720 * 4096}}}},
		{"memfd", 64 * mib, []inventory.MemoryRange{
			{Policy: "bind:2", PageSize: 4096, Backing: "memfd", File: "/memfd:memory-backend-memfd " +
				"(deleted)", ByNode: byNode{2: 64 * mib}},
			{Policy: "bind:1", PageSize: 4096, Backing: "memfd", File: "/memfd:memory-backend-memfd " +
				"(deleted)", ByNode: byNode{1: 64 * mib}}}},
		{"huge", 64 * mib, []inventory.MemoryRange{
			{Policy: "bind:1", PageSize: 2 * mib, Backing: "hugetlbfs", ByNode: byNode{1: 64 * mib}},
			{Policy: "bind:0", PageSize: 2 * mib, Backing: "hugetlbfs", ByNode: byNode{0: 64 * mib}}}},
		{"hugefd", 64 * mib, []inventory.MemoryRange{{Policy: "bind:2", PageSize: 2 * mib, Backing: "hugetlbfs",
			ByNode: byNode{2: 64 * mib}}}},
		{"cells", 64 * mib, []inventory.MemoryRange{
			{Policy: "prefer:3", PageSize: 4096, Backing: "anonymous", ByNode: byNode{3: 64 * mib}},
			{Policy: "prefer:3", PageSize: 4096, Backing: "anonymous", ByNode: byNode{3: 64 * mib}}}},
		{"file", 64 * mib, []inventory.MemoryRange{{Policy: "default", PageSize: 4096, Backing: "file",
			File: "/var/lib/libvirt/qemu/ram/6-file/ram-node0", ByNode: byNode{2: 64 * mib}}}},
		{"plain", 96 * mib, []inventory.MemoryRange{{Policy: "default", PageSize: 4096, Backing: "anonymous",
			ByNode: byNode{}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, pid := captured(t, c.name)
			ranges, gaps, err := root.MemoryRanges(t.Context(), pid)
			if err != nil || len(gaps) > 0 {
				t.Fatalf("gaps %v, error %v", gaps, err)
			}
			var ram []inventory.MemoryRange
			for _, r := range ranges {
				if r.Size == c.size {
					r.Address, r.Size = 0, 0
					if strings.HasPrefix(r.File, "/dev/hugepages") ||
						strings.HasPrefix(r.File, "/memfd:memory-backend-memfd") && r.PageSize > 4096 {
						r.File = "" // the name is libvirt's business
					}
					ram = append(ram, r)
				}
			}
			if diff := cmp.Diff(c.want, ram); diff != "" {
				t.Errorf("RAM:\n%s", diff)
			}
		})
	}
}

func TestRangesAreWritableAndAscend(t *testing.T) {
	root, pid := captured(t, "anon")
	ranges, err := root.Ranges(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ranges {
		if strings.HasSuffix(r.File, ".so.6") && r.Size > mib {
			t.Errorf("the text of a library is not memory of the guest: %+v", r)
		}
	}
	if !slices.IsSortedFunc(
		ranges,
		func(a, b inventory.MemoryRange) int { return int(a.Address>>12) - int(b.Address>>12) },
	) {
		t.Error("ranges do not ascend")
	}
}

func TestMemoryRanges_NewMappingIsAGap(t *testing.T) {
	mappings := []Mapping{{Address: 0x1000, Policy: "default"},
		{Address: 0x2000, Policy: "default", PageSize: 4096, Pages: map[topology.NodeID]uint64{0: 1}}}
	ranges, gaps := joinRanges(mappings, nil)
	if len(ranges) != 0 || len(gaps) != 1 || !strings.Contains(gaps[0].What, "0x2000") {
		t.Errorf("ranges %v, gaps %v", ranges, gaps)
	}
}

func TestReadingNUMAMapsEndsWithItsContext(t *testing.T) {
	root, pid := captured(t, "anon")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := root.MemoryRanges(ctx, pid); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestParseMapsRefuses(t *testing.T) {
	for _, line := range []string{"", "1000", "2000-1000 rw-p 0 00:00 0", "x-y rw-p 0 00:00 0", "1000-2000 rw-p zz " +
		"00:00 0", "1000-2000 rw-p 0 00:00 -1"} {
		if areas, err := ParseMaps(strings.NewReader(line + "\n")); err == nil {
			t.Errorf("%q passed as %+v", line, areas)
		}
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add(
		"7fedc3ffe000-7fedc7ffe000 rw-s 00000000 00:01 1026                       /memfd:memory-backend-memfd " +
			"(deleted)\n",
	)
	f.Add("1000-2000 ---p 0 00:00 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		areas, err := ParseMaps(strings.NewReader(text))
		for _, a := range areas[:max(0, len(areas)-1)] {
			if a.End < a.Start {
				t.Errorf("%+v runs backwards (error %v)", a, err)
			}
		}
	})
}
