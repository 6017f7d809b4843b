package linux

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrOnlyNUMAMaps means that no source whose cost does not grow with memory
// tells where a guest's memory lies: it has no cgroup of its own, its memory is
// in a file, or its huge pages are not counted.
var ErrOnlyNUMAMaps = errors.New("only numa_maps tells where its memory lies, which walks every page")

// KeptMemory reads a guest's memory per node again and again. It chooses
// between the same sources as Root.Memory, and names them alike, but never
// reads numa_maps.
type KeptMemory struct {
	guest  inventory.Guest
	path   string
	stat   *Kept
	huge   []keptHuge
	inHuge topology.MemoryByNode
	turn   int // readings so far
}

// keptHuge is hugetlb.SIZE.numa_stat of one page size.
type keptHuge struct {
	*Kept
	empty bool // when it was read last
}

// emptyTurns is at which reading, again and again, also those page sizes are
// looked at of which a guest had nothing: most have nothing of any for ever.
const emptyTurns = 32

// Memory finds the files that tell of a guest's memory. Its error is
// ErrOnlyNUMAMaps where there are none, or that the process is gone.
func (k *Keeper) Memory(g inventory.Guest) (*KeptMemory, error) {
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
	m := &KeptMemory{
		guest:  g,
		path:   top.Path,
		stat:   k.at(top.file("memory.numa_stat")),
		inHuge: topology.MemoryByNode{},
	}
	files, err := filepath.Glob(top.file("hugetlb.*.numa_stat"))
	for _, f := range files {
		m.huge = append(m.huge, keptHuge{Kept: k.at(f)})
	}
	return m, err
}

// Read adds the guest's memory to byNode and names the source. It allocates
// only for nodes that are new to the map.
func (m *KeptMemory) Read(byNode topology.MemoryByNode) (source string, err error) {
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
func (m *KeptMemory) Close() {
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
	const rows = 2 // anon and shmem: what follows them is not looked at
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

// emptyHugetlb reports whether there is nothing in hugetlb.SIZE.numa_stat.
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
