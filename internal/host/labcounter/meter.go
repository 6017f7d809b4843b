package labcounter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrCounterOff means that the access counter does not count at present.
var ErrCounterOff = errors.New("the lab's access counter is off; 'numavisor lab scope count' (or felt) switches it on")

// Meter measures guests' accesses, by the node of the CPU and of the memory,
// from the lab's access counter. It is useful to a daemon inside the lab. The
// counter counts per CPU and not per thread. So the meter divides a CPU's count
// among the guest threads that last ran there, by their run time; the part of
// the host's own programs is left out.
type Meter struct {
	path  string
	cache *linux.FileCache
	stat  *linux.CachedFile
	file  *os.File // nil: not open

	nodeOf map[topology.CPUID]topology.NodeID
	guests []inventory.Guest
	ran    map[int]time.Duration // by thread: its run time at the previous reading

	buffer []byte
	now    counts
	before counts
	times  []linux.CPUTime
	ticks  map[topology.CPUID]uint64 // busy time at the previous reading
}

// counts are the counter's figures since it was created; they only grow.
type counts struct {
	nodes  []topology.NodeID
	misses [][]uint64 // a row per CPU, a column per node
}

// NewMeter makes a meter of the counter in a file (Path); root has the
// /proc/stat of its CPUs. The meter works while the counter is on.
func NewMeter(path string, root linux.Root) *Meter {
	k := root.NewFileCache(1)
	return &Meter{
		path:  path,
		cache: k,
		stat:  k.File("proc/stat"),
		ran:   map[int]time.Duration{},
		ticks: map[topology.CPUID]uint64{},
	}
}

// Source is inventory.AccessCounter.
func (m *Meter) Source() inventory.AccessSource { return inventory.AccessCounter }

// Follow sets the guests to measure; the counter must be on.
func (m *Meter) Follow(guests []inventory.Guest, t *topology.Topology) error {
	m.guests = guests
	m.nodeOf = make(map[topology.CPUID]topology.NodeID, len(t.CPUs))
	for _, c := range t.CPUs {
		m.nodeOf[c.ID] = c.Node
	}
	threads := map[int]bool{}
	for _, g := range guests {
		for _, t := range g.Seen.Threads {
			threads[t.TID] = true
		}
	}
	for tid := range m.ran {
		if !threads[tid] {
			delete(m.ran, tid)
		}
	}
	if len(m.before.misses) > 0 {
		return m.on()
	}
	return m.count() // from now on
}

// on reports whether the counter counts, as an error.
func (m *Meter) on() error {
	if err := m.open(); err != nil {
		return err
	}
	var word [wordBytes]byte
	if _, err := m.file.ReadAt(word[:], activeWord*wordBytes); err != nil {
		return fmt.Errorf("reading the access counter's mode: %w", err)
	}
	if Mode(binary.LittleEndian.Uint64(word[:])) == Off {
		m.before = counts{}
		clear(m.ran) // accesses from now on are not counted
		return ErrCounterOff
	}
	return nil
}

func (m *Meter) open() error {
	if m.file != nil {
		return nil
	}
	if _, err := Open(m.path); err != nil {
		return err
	}
	file, err := os.Open(m.path)
	m.file = file
	return err
}

// count makes the present figures the previous ones.
func (m *Meter) count() error {
	if err := m.on(); err != nil {
		return err
	}
	err := m.read()
	m.before, m.now = m.now, m.before
	return err
}

// read reads the rows of the existing CPUs: much less than the file.
func (m *Meter) read() error {
	if len(m.buffer) == 0 {
		m.buffer = make([]byte, missWord*wordBytes)
	}
	if _, err := m.file.ReadAt(m.buffer[:missWord*wordBytes], 0); err != nil {
		return fmt.Errorf("reading the access counter: %w", err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(m.buffer[i*wordBytes:]) }
	cpus, nodes := word(cpusWord), word(nodesWord)
	if err := checkSize(m.path, cpus, nodes); err != nil {
		return err
	}
	whole := (missWord + int(cpus)*maxNodes) * wordBytes
	if len(m.buffer) < whole {
		m.buffer = make([]byte, whole)
	}
	if n, err := m.file.ReadAt(m.buffer[:whole], 0); err != nil && !(errors.Is(err, io.EOF) && n == whole) {
		return fmt.Errorf("reading the access counter: %w", err)
	}
	m.now.nodes, m.now.misses = m.now.nodes[:0], slices.Grow(m.now.misses[:0], int(cpus))[:cpus]
	for n := range int(nodes) {
		m.now.nodes = append(m.now.nodes, topology.NodeID(word(nodeWord+n)))
	}
	for c := range m.now.misses {
		m.now.misses[c] = slices.Grow(m.now.misses[c][:0], int(nodes))[:nodes]
		for n := range m.now.misses[c] {
			m.now.misses[c][n] = word(missWord + c*maxNodes + n)
		}
	}
	return nil
}

// Read returns the guests' accesses since the previous call. A guest of whose threads none was read by that call is
// missing: the time that they ran is not known yet, so that none of a CPU's count can be its own.
func (m *Meter) Read(window time.Duration) (map[string]watch.Access, error) {
	ran, onCPU := m.runTimes()
	busy, err := m.busyTimes()
	if err != nil {
		return nil, err
	}
	if len(m.before.misses) == 0 {
		return nil, m.count()
	}
	before := m.before
	if err := m.count(); err != nil {
		return nil, err
	}
	accesses := make(map[string]watch.Access, len(m.guests))
	for _, g := range m.guests {
		amounts := map[inventory.AccessShare]float64{}
		var vcpus []inventory.VCPUAccess
		divisible, measured := g.Placement.Divisible(), false
		for _, t := range g.Seen.Threads {
			_, known := ran[t.TID]
			measured = measured || known
			whole := max(busy[t.LastCPU], onCPU[t.LastCPU])
			from, known := m.nodeOf[t.LastCPU]
			if !known || ran[t.TID] <= 0 || int(t.LastCPU) >= len(m.before.misses) {
				continue
			}
			part := float64(ran[t.TID]) / float64(whole)
			byNode := make(map[topology.NodeID]float64, len(m.before.nodes))
			for n, to := range m.before.nodes {
				byNode[to] = part * float64(since(m.before, before, int(t.LastCPU), n))
				amounts[inventory.AccessShare{From: from, To: to}] += byNode[to]
			}
			if t.VCPU != nil && divisible.Contains(*t.VCPU) {
				vcpus = append(vcpus, inventory.VCPUAccess{VCPU: *t.VCPU, On: from, ByNode: byNode})
			}
		}
		if !measured {
			continue
		}
		a := watch.AccessOf(amounts, window)
		a.MemoryMBps = 0 // the traffic of emulated CPUs cannot be compared with that of real ones
		a.VCPUs = vcpus
		accesses[g.Name] = a
	}
	return accesses, nil
}

// since is the number of one CPU's misses on one node between two readings; 0
// if the counter was created again.
func since(now, before counts, cpu, node int) uint64 {
	if cpu >= len(before.misses) || node >= len(before.misses[cpu]) {
		return 0
	}
	n := now.misses[cpu][node]
	return n - min(n, before.misses[cpu][node])
}

// runTimes returns how long each thread ran since the previous call, and the
// total for the threads that last ran on each CPU.
func (m *Meter) runTimes() (ran map[int]time.Duration, onCPU map[topology.CPUID]time.Duration) {
	ran, onCPU = map[int]time.Duration{}, map[topology.CPUID]time.Duration{}
	for _, g := range m.guests {
		for _, t := range g.Seen.Threads {
			if before, known := m.ran[t.TID]; known {
				ran[t.TID] = max(0, t.RunTime-before)
				onCPU[t.LastCPU] += ran[t.TID]
			}
			m.ran[t.TID] = t.RunTime
		}
	}
	return ran, onCPU
}

// busyTimes returns how long each CPU was busy since the previous call.
func (m *Meter) busyTimes() (map[topology.CPUID]time.Duration, error) {
	const tick = time.Second / 100 // USER_HZ, on all Linux machines that run KVM
	data, err := m.stat.Read()
	if err == nil {
		m.times, err = linux.AppendCPUTimes(m.times[:0], data)
	}
	busy := make(map[topology.CPUID]time.Duration, len(m.times))
	for _, t := range m.times {
		if before, known := m.ticks[t.CPU]; known {
			busy[t.CPU] = time.Duration(t.Busy-min(t.Busy, before)) * tick
		}
		m.ticks[t.CPU] = t.Busy
	}
	return busy, err
}

// Close closes the counter's file. The counter's mode stays as it is.
func (m *Meter) Close() error {
	m.stat.Close()
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}
