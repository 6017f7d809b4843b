package labcounter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var _ watch.Meter = (*Meter)(nil)

// counterFile is the file of an access counter of two nodes, 0 and 2, with two
// CPUs each, and a /proc/stat next to it.
type counterFile struct {
	t     *testing.T
	words [words]uint64
	busy  [4]int // ticks
	root  string
}

func newCounterFile(t *testing.T) *counterFile {
	t.Helper()
	f := &counterFile{t: t, root: t.TempDir()}
	f.words[0], f.words[cpusWord], f.words[nodesWord] = magic, 4, 2
	f.words[nodeWord], f.words[nodeWord+1] = 0, 2
	f.mode(Count)
	return f
}

func (f *counterFile) path() string { return filepath.Join(f.root, "scope") }

func (f *counterFile) mode(m Mode) {
	f.words[modeWord], f.words[activeWord] = uint64(m), uint64(m)
	f.write()
}

// miss counts misses of a CPU by the node's position.
func (f *counterFile) miss(cpu int, byNode ...uint64) {
	for n, count := range byNode {
		f.words[missWord+cpu*maxNodes+n] += count
	}
	f.write()
}

func (f *counterFile) write() {
	f.t.Helper()
	data, err := binary.Append(nil, binary.LittleEndian, f.words)
	if err == nil {
		err = os.WriteFile(f.path(), data, 0o644)
	}
	var stat strings.Builder
	for cpu, ticks := range f.busy {
		fmt.Fprintf(&stat, "cpu%d %d 0 0 0 0 0 0 0\n", cpu, ticks)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(f.root, "proc"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(f.root, "proc/stat"), []byte(stat.String()), 0o644)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func twoNodes() *topology.Topology {
	t := &topology.Topology{}
	for i, n := range []topology.NodeID{0, 2} {
		first := topology.CPUID(2 * i)
		t.Nodes = append(t.Nodes, topology.Node{ID: n, CPUs: topology.SetOf(first, first+1), Memory: topology.GiB})
		t.CPUs = append(t.CPUs, topology.CPU{ID: first, Node: n}, topology.CPU{ID: first + 1, Node: n})
	}
	return t
}

func vm(name string, threads ...inventory.Thread) inventory.Guest {
	return inventory.Guest{Name: name, PID: 1, Seen: inventory.Seen{Threads: threads}}
}

func TestMeter_DividesTheCountByRunTime(t *testing.T) {
	f := newCounterFile(t)
	f.miss(0, 1000, 1000) // before the first reading
	a := vm("a", inventory.Thread{TID: 11, LastCPU: 0}, inventory.Thread{TID: 12, LastCPU: 3})
	b := vm("b", inventory.Thread{TID: 21, LastCPU: 0})
	idle := vm("idle", inventory.Thread{TID: 31, LastCPU: 0})
	m := NewMeter(f.path(), linux.Root(f.root))
	if err := m.Follow([]inventory.Guest{a, b, idle}, twoNodes()); err != nil {
		t.Fatal(err)
	}
	if first, err := m.Read(0); err != nil || len(first) > 0 {
		t.Fatalf("%v measured, with error %v, before run times are known", first, err)
	}
	// CPU 0: a for 300 ms, b for 100 ms, the host for 100 ms. CPU 3: a alone.
	a.Seen.Threads[0].RunTime, a.Seen.Threads[1].RunTime = 300*time.Millisecond, time.Second
	b.Seen.Threads[0].RunTime = 100 * time.Millisecond
	f.busy = [4]int{50, 0, 0, 100}
	f.miss(0, 0, 1_000_000)
	f.miss(3, 200_000, 600_000)
	f.miss(1, 77, 77)
	got, err := m.Read(2 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]watch.Access{
		"a": {
			Shares: []inventory.AccessShare{{From: 0, To: 2, Share: 600. / 1400}, {From: 2, To: 0, Share: 200. / 1400},
				{From: 2, To: 2, Share: 600. / 1400}},
			Remote: 800. / 1400,
		},
		"b":    {Shares: []inventory.AccessShare{{From: 0, To: 2, Share: 1}}, Remote: 1},
		"idle": {},
	}
	almost := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
	if diff := cmp.Diff(want, got, almost); diff != "" {
		t.Error(diff)
	}
	again, err := m.Read(2 * time.Second)
	if diff := cmp.Diff(map[string]watch.Access{"a": {}, "b": {}, "idle": {}}, again); err != nil || diff != "" {
		t.Errorf("error %v\n%s", err, diff)
	}
}

func TestMeter_AccessesOfDivisibleVCPUs(t *testing.T) {
	f := newCounterFile(t)
	id := guest.VCPUID(1)
	g := vm("g", inventory.Thread{TID: 11, LastCPU: 0}, inventory.Thread{TID: 12, LastCPU: 3, VCPU: &id})
	g.Placement = &guest.Placement{CPUMode: guest.CPURange, Scale: &guest.Scale{}, Cells: []guest.Cell{
		{VCPUs: topology.Range[guest.VCPUID](0, 1), Nodes: topology.SetOf[topology.NodeID](0, 2)}}}
	m := NewMeter(f.path(), linux.Root(f.root))
	if err := m.Follow([]inventory.Guest{g}, twoNodes()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Read(0); err != nil {
		t.Fatal(err)
	}
	g.Seen.Threads[0].RunTime, g.Seen.Threads[1].RunTime = time.Second, 250*time.Millisecond
	f.busy = [4]int{100, 0, 0, 100}
	f.miss(0, 5, 5)
	f.miss(3, 200_000, 600_000)
	got, err := m.Read(time.Second)
	want := []inventory.VCPUAccess{{VCPU: 1, On: 2, ByNode: map[topology.NodeID]float64{0: 50_000, 2: 150_000}}}
	if diff := cmp.Diff(want, got["g"].VCPUs); err != nil || diff != "" {
		t.Errorf("error %v\n%s", err, diff)
	}
}

func TestMeter_FailsWhileTheCounterIsOff(t *testing.T) {
	f := newCounterFile(t)
	f.mode(Off)
	guests := []inventory.Guest{vm("a", inventory.Thread{TID: 11, LastCPU: 0})}
	m := NewMeter(f.path(), linux.Root(f.root))
	defer func() { _ = m.Close() }()
	if err := m.Follow(guests, twoNodes()); !errors.Is(err, ErrCounterOff) {
		t.Errorf("off: %v", err)
	}
	f.mode(Felt)
	if err := m.Follow(guests, twoNodes()); err != nil {
		t.Errorf("felt: %v", err)
	}
	if _, err := m.Read(0); err != nil {
		t.Errorf("felt: %v", err)
	}
	f.mode(Off)
	f.miss(0, 5, 5)
	if _, err := m.Read(time.Second); !errors.Is(err, ErrCounterOff) {
		t.Errorf("switched off: %v", err)
	}
	f.mode(Count)
	f.miss(0, 1000, 1000)
	if err := m.Follow(guests, twoNodes()); err != nil {
		t.Fatal(err)
	}
	guests[0].Seen.Threads[0].RunTime = time.Second
	if got, err := m.Read(time.Second); err != nil || len(got["a"].Shares) > 0 {
		t.Errorf("counts from before the first reading: %+v, error %v", got, err)
	}
}

func TestMeter_ReportsNothingAfterAReset(t *testing.T) {
	f := newCounterFile(t)
	f.miss(0, 1000, 0)
	guests := []inventory.Guest{vm("a", inventory.Thread{TID: 11, LastCPU: 0})}
	m := NewMeter(f.path(), linux.Root(f.root))
	defer func() { _ = m.Close() }()
	if err := m.Follow(guests, twoNodes()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Read(0); err != nil {
		t.Fatal(err)
	}
	f.words[missWord] = 10
	f.miss(0, 0, 0)
	guests[0].Seen.Threads[0].RunTime = time.Second
	if got, err := m.Read(time.Second); err != nil || len(got["a"].Shares) > 0 {
		t.Errorf("%+v, error %v", got, err)
	}
}

func TestMeter_ReportsThatThereIsNoCounter(t *testing.T) {
	m := NewMeter(filepath.Join(t.TempDir(), "scope"), linux.Live)
	if err := m.Follow(nil, twoNodes()); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "inside a lab") {
		t.Error(err)
	}
}
