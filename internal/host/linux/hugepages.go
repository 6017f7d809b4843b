package linux

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// HugePool is the pool of huge pages of one size on one node, counted in pages
// (/sys/devices/system/node/nodeN/hugepages/hugepages-*kB).
type HugePool struct {
	Size        topology.Bytes
	Total, Free uint64
	// Surplus pages exceed the requested size; the kernel takes them back when
	// they are freed.
	Surplus uint64
}

// HugePools returns a node's pools, ascending by page size.
func (r Root) HugePools(node topology.NodeID) ([]HugePool, error) {
	entries, err := os.ReadDir(r.path(hugepagesFolder(node)))
	if err != nil {
		return nil, fmt.Errorf("reading the huge page pools of node %d: %w", node, err)
	}
	var pools []HugePool
	for _, e := range entries {
		kib, found := strings.CutPrefix(strings.TrimSuffix(e.Name(), "kB"), "hugepages-")
		size, err := strconv.ParseUint(kib, 10, 40)
		if !found || err != nil {
			continue
		}
		pool, err := r.HugePool(node, topology.Bytes(size)*topology.KiB)
		if err != nil {
			return nil, err
		}
		pools = append(pools, pool)
	}
	slices.SortFunc(pools, func(a, b HugePool) int { return int(a.Size/topology.KiB) - int(b.Size/topology.KiB) })
	return pools, nil
}

func hugepagesFolder(node topology.NodeID) string {
	return fmt.Sprintf("sys/devices/system/node/node%d/hugepages", node)
}

func poolFolder(node topology.NodeID, size topology.Bytes) string {
	return fmt.Sprintf("%s/hugepages-%dkB", hugepagesFolder(node), size/topology.KiB)
}

// HugePool reads the pool of one page size on one node.
func (r Root) HugePool(node topology.NodeID, size topology.Bytes) (HugePool, error) {
	p := HugePool{Size: size}
	for _, f := range []struct {
		file string
		into *uint64
	}{{"nr_hugepages", &p.Total}, {"free_hugepages", &p.Free}, {"surplus_hugepages", &p.Surplus}} {
		n, err := r.count(poolFolder(node, size), f.file)
		if errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("node %d has no pool of %v huge pages: %w", node, size, err)
		}
		if err != nil {
			return p, fmt.Errorf("huge page pool of node %d: %w", node, err)
		}
		*f.into = n
	}
	return p, nil
}

// GrowPool adds pages to a node's pool and returns how many it added: fewer
// where the node has no more unfragmented memory, which is not an error. It
// compacts memory first. Growing by many pages takes long.
func (r Root) GrowPool(node topology.NodeID, size topology.Bytes, pages uint64) (got uint64, err error) {
	before, err := r.HugePool(node, size)
	if err != nil || pages == 0 {
		return 0, err
	}
	if err := r.Compact(node); err != nil && !errors.Is(err, os.ErrNotExist) { // kernels without compaction
		return 0, err
	}
	after, err := growTo(before, before.Total+pages, func(total uint64) (HugePool, error) {
		return r.resizePool(node, size, total)
	})
	return after.Total - min(after.Total, before.Total), err
}

// growTo repeats the request for a total until the pool has it or a request adds
// nothing. A single request is not enough: the kernel adds a page, and stops if
// the thread has a signal (set_max_huge_pages in mm/hugetlb.c). The Go runtime
// preempts its threads by signals.
func growTo(now HugePool, total uint64, request func(uint64) (HugePool, error)) (HugePool, error) {
	for {
		before := now.Total
		after, err := request(total)
		if now = after; err != nil || now.Total >= total || now.Total <= before {
			return now, err
		}
	}
}

// ShrinkPool takes free pages out of a node's pool and returns how many it
// took. It never takes pages in use: on request the kernel would make them
// surplus, and they would vanish when their user ends.
func (r Root) ShrinkPool(node topology.NodeID, size topology.Bytes, pages uint64) (gone uint64, err error) {
	before, err := r.HugePool(node, size)
	if err != nil {
		return 0, err
	}
	if pages = min(pages, before.Free); pages == 0 {
		return 0, nil
	}
	after, err := r.resizePool(node, size, before.Total-pages)
	return before.Total - min(after.Total, before.Total), err
}

// resizePool writes a pool's size and reads the resulting size back.
func (r Root) resizePool(node topology.NodeID, size topology.Bytes, total uint64) (HugePool, error) {
	if err := r.set(strconv.FormatUint(total, 10), poolFolder(node, size), "nr_hugepages"); err != nil {
		return HugePool{}, fmt.Errorf("setting the pool of %v huge pages of node %d to %d: %w", size, node, total, err)
	}
	return r.HugePool(node, size)
}

// Compact makes the kernel join free memory of a node into larger blocks, so
// that huge pages can be allocated there.
func (r Root) Compact(node topology.NodeID) error {
	if err := r.set("1", fmt.Sprintf("sys/devices/system/node/node%d/compact", node)); err != nil {
		return fmt.Errorf("compacting the memory of node %d: %w", node, err)
	}
	return nil
}
