package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/numavisor/numavisor/internal/topology"
)

// ErrNoMemFree means that a text has no MemFree and so is no meminfo.
var ErrNoMemFree = errors.New("it contains no MemFree")

// ParseMemFree reads MemFree from /proc/meminfo ("MemFree: 12 kB") or a
// node's meminfo in sysfs ("Node 0 MemFree: 12 kB").
func ParseMemFree(data []byte) (topology.Bytes, error) {
	for len(data) > 0 {
		var line []byte
		line, data = nextLine(data)
		key, rest := nextField(line)
		if string(key) == "Node" {
			_, rest = nextField(rest)
			key, rest = nextField(rest)
		}
		if string(key) != "MemFree:" {
			continue
		}
		kib, rest, ok := nextFigure(rest)
		if unit, _ := nextField(rest); !ok || kib > math.MaxInt64>>10 || string(unit) != "kB" {
			return 0, fmt.Errorf("meminfo: %q is not an amount in kB", abbreviate(string(line)))
		}
		return topology.Bytes(kib) * topology.KiB, nil
	}
	return 0, ErrNoMemFree
}

// MemFree returns the file with a node's free memory (ParseMemFree). Where the
// kernel shows no nodes, it is the host's file.
func (k *FileCache) MemFree(node topology.NodeID) *CachedFile {
	file := k.File(nodePath(int(node), "meminfo"))
	if _, err := file.Read(); errors.Is(err, fs.ErrNotExist) {
		return k.File("proc/meminfo")
	}
	return file
}

// PoolFigure returns the file with the number of pages of one size in a node's
// pool (ParseCount): all pages, or free ones.
func (k *FileCache) PoolFigure(node topology.NodeID, size topology.Bytes, free bool) *CachedFile {
	name := "nr_hugepages"
	if free {
		name = "free_hugepages"
	}
	return k.File(poolFolder(node, size), name)
}

// ParseCount reads a file of one number.
func ParseCount(data []byte) (uint64, error) {
	n, rest, ok := nextFigure(data)
	if more, _ := nextField(rest); !ok || len(more) > 0 {
		return 0, fmt.Errorf("%q is not a number", abbreviate(string(data)))
	}
	return n, nil
}
