package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Kinds of memory behind a mapping, the values of
// inventory.MemoryRange.Backing.
const (
	BackingAnonymous = "anonymous" // its policy can be set only from inside the process, or by cpuset
	BackingMemfd     = "memfd"     // shared memory: the policy belongs to the file and can be set from outside
	BackingHugetlbfs = "hugetlbfs" // persistent huge pages, whether file, memfd or anonymous
	BackingFile      = "file"
)

// MemoryRanges joins numa_maps with maps: all writable mappings of a process
// with their extent, policy and memory per node, ascending by address. These
// are a VM's RAM and its emulator's own memory. PageSize is the kernel's
// smallest where the mapping has no page yet, and 0 for huge pages not touched
// yet.
//
// The kernel walks every page table entry (see NUMAMaps); MemoryRanges checks
// ctx between the pieces that the kernel returns.
func (r Root) MemoryRanges(ctx context.Context, pid int) ([]inventory.MemoryRange, []Unparsed, error) {
	if err := r.answers(pid); err != nil {
		return nil, nil, err
	}
	areas, err := r.Maps(pid)
	if err != nil {
		return nil, nil, err
	}
	file, err := os.Open(r.proc(pid, "numa_maps"))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the page locations of process %d: %w", pid, err)
	}
	defer file.Close()
	mappings, gaps, err := ParseNUMAMaps(untilDone{ctx, file})
	if err != nil {
		return nil, gaps, fmt.Errorf("process %d: %w", pid, err)
	}
	ranges, more := joinRanges(mappings, areas)
	return ranges, append(gaps, more...), nil
}

// Ranges is MemoryRanges with the gaps as an error, next to the ranges that
// could be read.
func (r Root) Ranges(ctx context.Context, pid int) ([]inventory.MemoryRange, error) {
	ranges, gaps, err := r.MemoryRanges(ctx, pid)
	if err != nil {
		return nil, err
	}
	var unclear []error
	for _, g := range gaps {
		unclear = append(unclear, fmt.Errorf("%s: %s", g.What, g.Why))
	}
	return ranges, errors.Join(unclear...)
}

// joinRanges adds extents to mappings. It leaves out a mapping that came or
// went between the two readings; it is a gap if it has pages.
func joinRanges(mappings []Mapping, areas []Area) ([]inventory.MemoryRange, []Unparsed) {
	extents := make(map[uint64]Area, len(areas))
	for _, a := range areas {
		extents[a.Start] = a
	}
	var ranges []inventory.MemoryRange
	var gaps []Unparsed
	for _, m := range mappings {
		a, ok := extents[m.Address]
		if !ok && len(m.Pages) > 0 {
			gaps = append(
				gaps,
				Unparsed{fmt.Sprintf("mapping at %#x", m.Address),
					"not in maps: it appeared during the reading; its size is unknown"},
			)
		}
		if !ok || !a.Writable {
			continue
		}
		size := m.PageSize
		if size == 0 && !m.Huge {
			size = topology.Bytes(os.Getpagesize())
		}
		ranges = append(ranges, inventory.MemoryRange{
			Address: m.Address, Size: topology.Bytes(a.End - a.Start),
			Policy: m.Policy, PageSize: size, Backing: backing(m, a), File: m.File, ByNode: m.ByNode(),
		})
	}
	return ranges, gaps
}

// backing returns the kind of memory. "/dev/zero (deleted)" is the kernel's
// name for shared anonymous memory: the same file system and rules as memfd.
func backing(m Mapping, a Area) string {
	switch {
	case m.Huge:
		return BackingHugetlbfs
	case strings.HasPrefix(m.File, "/memfd:"), m.File == "/dev/zero (deleted)" && !a.Private:
		return BackingMemfd
	case m.File != "":
		return BackingFile
	}
	return BackingAnonymous
}

// untilDone ends a long reading when its context does.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
