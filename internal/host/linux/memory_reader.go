package linux

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrOnlyNUMAMaps means that no source whose cost is independent of memory size
// has a guest's memory per node: the guest has no cgroup of its own, its memory
// is in a file, or its huge pages are not counted.
var ErrOnlyNUMAMaps = errors.New("only numa_maps has its memory by node, and reading numa_maps walks every page")

// MemoryReader reads a guest's memory per node again and again. It chooses
// between the same sources as Root.Memory, and uses the same names, but never
// reads numa_maps.
type MemoryReader struct {
	guest  inventory.Guest
	path   string
	stat   *CachedFile
	huge   []cachedHuge
	inHuge topology.MemoryByNode
	turn   int // readings so far
}

// cachedHuge is hugetlb.SIZE.numa_stat of one page size.
type cachedHuge struct {
	*CachedFile
	empty bool // when it was last read
}

// emptyTurns is the interval, in readings, at which a reader also checks page
// sizes of which the guest had no pages: most guests never have any.
const emptyTurns = 32

// OpenMemory finds the files that count a guest's memory. It returns
// ErrOnlyNUMAMaps where there are none, or an error that the process has ended.
func (k *FileCache) OpenMemory(g inventory.Guest) (*MemoryReader, error) {
	if !countedByCgroup(g.Config) {
		return nil, ErrOnlyNUMAMaps
	}
	top, ok, err := k.root.guestTopOf(g.PID)
	if errors.Is(err, ErrNoCgroupV2) || err == nil && !ok {
		return nil, ErrOnlyNUMAMaps
	}
	if err != nil {
		return nil, err
	}
	m := &MemoryReader{
		guest:  g,
		path:   top.Path,
		stat:   k.at(top.file("memory.numa_stat")),
		inHuge: topology.MemoryByNode{},
	}
	files, err := filepath.Glob(top.file("hugetlb.*.numa_stat"))
	for _, f := range files {
		m.huge = append(m.huge, cachedHuge{CachedFile: k.at(f)})
	}
	return m, err
}

// Read adds the guest's memory to byNode and names the source. It allocates
// only for nodes that are new to the map.
func (m *MemoryReader) Read(byNode topology.MemoryByNode) (source string, err error) {
	data, err := m.stat.Read()
	if err == nil {
		err = addResident(byNode, data)
	}
	if err != nil {
		return "", fmt.Errorf("memory.numa_stat of cgroup %s: %w", m.path, err)
	}
	clear(m.inHuge)
	m.turn++
	for i := range m.huge {
		f := &m.huge[i]
		if f.empty && m.turn%emptyTurns != 0 {
			continue
		}
		data, err := f.Read()
		if err == nil {
			f.empty, err = emptyHugetlb(data), addHugetlb(m.inHuge, data)
		}
		if err != nil {
			return "", fmt.Errorf("%s of cgroup %s: %w", filepath.Base(f.path), m.path, err)
		}
	}
	if usesHugePages(m.guest.Config) && !holdsHugePages(m.inHuge, m.guest.Config.Memory) {
		return "", ErrOnlyNUMAMaps
	}
	for node, amount := range m.inHuge {
		byNode[node] += amount
	}
	if len(m.huge) == 0 {
		return sourceNUMAStat, nil
	}
	return sourceWithHugetlb, nil
}

// Close closes the files.
func (m *MemoryReader) Close() {
	if m == nil {
		return
	}
	m.stat.Close()
	for _, f := range m.huge {
		f.Close()
	}
}

// addResident adds what NUMAStat.Resident gives, from the same text.
func addResident(to topology.MemoryByNode, data []byte) error {
	const rows = 2 // nothing after anon and shmem is read
	for found := 0; len(data) > 0 && found < rows; {
		var line []byte
		line, data = nextLine(data)
		name, rest := nextField(line)
		if string(name) == "anon" || string(name) == "shmem" {
			if err := addNodeFigures(to, rest); err != nil {
				return fmt.Errorf("row %q: %w", name, err)
			}
			found++
		}
	}
	return nil
}

// emptyHugetlb reports whether hugetlb.SIZE.numa_stat counts no page.
func emptyHugetlb(data []byte) bool {
	name, _ := nextField(data)
	return string(name) == "total=0"
}

// addHugetlb adds the figures of hugetlb.SIZE.numa_stat.
func addHugetlb(to topology.MemoryByNode, data []byte) error {
	name, rest := nextField(data)
	if !bytes.HasPrefix(name, []byte("total=")) {
		return fmt.Errorf("%q: expected total=BYTES N0=BYTES ...", abbreviate(string(data)))
	}
	return addNodeFigures(to, rest)
}
