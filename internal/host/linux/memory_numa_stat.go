package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/topology"
)

// NUMAStat is memory.numa_stat or hugetlb.SIZE.numa_stat of a cgroup: bytes
// per node for each row ("anon", "file", "shmem", ...; "total").
type NUMAStat map[string]topology.MemoryByNode

// ParseNUMAStat reads memory.numa_stat ("anon N0=4096 N1=0"). It must
// understand every line and figure: a partial figure would look like a valid
// one.
func ParseNUMAStat(data []byte) (NUMAStat, error) {
	stat := make(NUMAStat, 16)
	for line := range bytes.Lines(data) {
		name, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if len(name) == 0 {
			continue
		}
		row, err := parseNodeFigures(rest)
		if err != nil {
			return nil, fmt.Errorf("row %q: %w", abbreviate(string(name)), err)
		}
		stat[string(name)] = row
	}
	return stat, nil
}

// ParseHugetlbNUMAStat reads hugetlb.SIZE.numa_stat ("total=0 N0=0 N1=0"),
// bytes per node.
func ParseHugetlbNUMAStat(data []byte) (topology.MemoryByNode, error) {
	figures := topology.MemoryByNode{}
	return figures, addHugetlb(figures, data)
}

// parseNodeFigures reads "N0=4096 N3=0".
func parseNodeFigures(text []byte) (topology.MemoryByNode, error) {
	figures := make(topology.MemoryByNode, bytes.Count(text, []byte("=")))
	return figures, addNodeFigures(figures, text)
}

// addNodeFigures adds the figures of "N0=4096 N3=0" to those of the nodes. It
// allocates only for nodes that are new to the map.
func addNodeFigures(to topology.MemoryByNode, text []byte) error {
	for field, rest := nextField(text); len(field) > 0; field, rest = nextField(rest) {
		key, value, _ := bytes.Cut(field, []byte("="))
		if len(key) < 2 || key[0] != 'N' {
			return fmt.Errorf("%q is not a figure of a node", abbreviate(string(field)))
		}
		node, ok1 := digits(key[1:])
		amount, ok2 := digits(value)
		if !ok1 || !ok2 || node > 1<<16-1 {
			return fmt.Errorf("%q is not a number of bytes on a node", abbreviate(string(field)))
		}
		to[topology.NodeID(node)] += topology.Bytes(amount)
	}
	return nil
}

// digits is strconv.ParseUint on bytes, which strconv offers only with an
// allocation.
func digits(text []byte) (n uint64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' || n > (1<<64-1-9)/10 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(text) > 0
}

// Resident returns the memory of the group's processes per node: private memory
// and shared memory (memfd, tmpfs). The kernel counts shmem inside file too, so
// anon and file must not be added up; page cache of disk images, the rest of
// file, is not working memory.
func (s NUMAStat) Resident() topology.MemoryByNode {
	sum := maps.Clone(s["anon"])
	if sum == nil {
		sum = topology.MemoryByNode{}
	}
	for node, bytes := range s["shmem"] {
		sum[node] += bytes
	}
	return sum
}

// MemoryNUMAStat reads memory.numa_stat. The figures cover what the group was
// charged for: not huge pages, and not pages that a process touched before it
// entered the group. They lag by at most 64 pages a CPU.
func (c Cgroup) MemoryNUMAStat() (NUMAStat, error) {
	data, err := c.read("memory.numa_stat")
	if err != nil {
		return nil, err
	}
	stat, err := ParseNUMAStat(data)
	if err != nil {
		return nil, fmt.Errorf("memory.numa_stat of cgroup %s: %w", c.Path, err)
	}
	return stat, nil
}

// ErrNoHugetlb means that the hugetlb controller is not enabled in a group, so
// its huge pages are not counted.
var ErrNoHugetlb = errors.New("the hugetlb controller is not enabled in this group")

// HugetlbNUMAStat reads hugetlb.SIZE.numa_stat of all page sizes, summed, in bytes per node.
func (c Cgroup) HugetlbNUMAStat() (topology.MemoryByNode, error) {
	files, err := filepath.Glob(c.file("hugetlb.*.numa_stat"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("huge pages of cgroup %s: %w", c.Path, ErrNoHugetlb)
	}
	sum := topology.MemoryByNode{}
	for _, file := range files {
		data, err := c.read(filepath.Base(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		figures, err := ParseHugetlbNUMAStat(data)
		if err != nil {
			return nil, fmt.Errorf("%s of cgroup %s: %w", filepath.Base(file), c.Path, err)
		}
		for node, amount := range figures {
			sum[node] += amount
		}
	}
	return sum, nil
}

// Names of the sources of memory figures by node.
const (
	sourceNUMAStat    = "cgroup memory.numa_stat"
	sourceWithHugetlb = sourceNUMAStat + " + hugetlb.*.numa_stat"
	sourceNUMAMaps    = "numa_maps"
)

// Resident reads the memory of a group per node from sources whose cost does
// not depend on its size, and names them. Zero figures are left out.
func (c Cgroup) Resident() (byNode topology.MemoryByNode, source string, err error) {
	stat, err := c.MemoryNUMAStat()
	if err != nil {
		return nil, "", err
	}
	byNode, source = stat.Resident(), sourceNUMAStat
	huge, err := c.HugetlbNUMAStat()
	if err == nil {
		source = sourceWithHugetlb
		for node, amount := range huge {
			byNode[node] += amount
		}
	} else if !errors.Is(err, ErrNoHugetlb) {
		return nil, "", err
	}
	maps.DeleteFunc(byNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
	return byNode, source, nil
}
