package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// resctrlWorld is a world with resctrl, a tree as the kernel's documentation
// draws it: one L3 cache a node, numbered as the kernel numbers caches.
type resctrlWorld struct {
	*world
	meter *Resctrl
	ids   int // monitoring ids left
	snc   bool
}

func newResctrlWorld(t *testing.T, snc bool) *resctrlWorld {
	t.Helper()
	w := &resctrlWorld{world: newWorld(t, 2, 2), ids: 100, snc: snc}
	w.write("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n", "sys/fs/resctrl/info/L3_MON/mon_features")
	for _, c := range w.topo.CPUs {
		folder := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache", c.ID)
		cache := 5 * int(c.Node) // not the node's number, on purpose
		if snc {
			cache = 0
		}
		w.write("2\n", folder, "index2/level")
		w.write("9\n", folder, "index2/id")
		w.write("3\n", folder, "index3/level")
		w.write(fmt.Sprintln(cache), folder, "index3/id")
	}
	if snc {
		for i := range w.topo.CPUs {
			w.topo.CPUs[i].L3 = 0
		}
	}
	w.meter = NewResctrl(w.root)
	w.meter.open = func() (linux.Resctrl, error) {
		c, err := w.root.Resctrl()
		c.Mkdir, c.Rmdir = w.mkdir, os.RemoveAll
		return c, err
	}
	return w
}

// mkdir makes a group as the kernel does.
func (w *resctrlWorld) mkdir(folder string) error {
	if w.ids == 0 {
		return &os.PathError{Op: "mkdir", Path: folder, Err: unix.ENOSPC}
	}
	w.ids--
	for _, domain := range w.domains() {
		for _, file := range []string{"mbm_total_bytes", "mbm_local_bytes"} {
			path := filepath.Join(folder, "mon_data", domain, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(folder, "tasks"), nil, 0o644)
}

func (w *resctrlWorld) domains() []string {
	if w.snc {
		return []string{"mon_L3_00/mon_sub_L3_00", "mon_L3_00/mon_sub_L3_01"}
	}
	return []string{"mon_L3_00", "mon_L3_05"}
}

// moved writes the counts of a guest's group for a node.
func (w *resctrlWorld) moved(pid int, node int, total, local string) {
	folder := fmt.Sprintf("sys/fs/resctrl/mon_groups/numavisor-%d/mon_data/%s", pid, w.domains()[node])
	w.write(total+"\n", folder, "mbm_total_bytes")
	w.write(local+"\n", folder, "mbm_local_bytes")
}

func TestResctrlMeasuresBandwidthByNode(t *testing.T) {
	for _, snc := range []bool{false, true} {
		w := newResctrlWorld(t, snc)
		w.add("a", 100, byNode{1: gib}, 0, 2)
		watcher := w.watcher(Options{Meters: []Meter{w.meter}})
		watcher.Sample()
		w.moved(100, 0, "4000000", "1000000")
		w.moved(100, 1, "4000000", "4000000")
		w.pass(2*time.Second, 0.5, 0)
		s := watcher.Sample()
		g := s.Guests[0]
		want := []inventory.AccessShare{{From: 0, To: 0, Share: 0.125}, {From: 0, To: 1, Share: 0.375},
			{From: 1, To: 1, Share: 0.5}}
		if diff := cmp.Diff(want, g.Accesses); diff != "" || g.Load.MemoryMBps != 4 ||
			g.Load.Remote.Source != inventory.AccessResctrl ||
			!near(g.Load.Remote.Share, 0.375) {
			t.Errorf("sub-NUMA %v: %+v, remote %+v\n%s", snc, g.Load, g.Load.Remote, diff)
		}
		if s.Nodes[0].MemoryMBps != 0.5 || s.Nodes[1].MemoryMBps != 3.5 {
			t.Errorf("sub-NUMA %v: %+v", snc, s.Nodes)
		}
		w.moved(100, 0, "1", "1") // backwards
		if g := watcher.Sample().Guests[0]; len(g.Accesses) > 0 || g.Load.MemoryMBps != 0 {
			t.Errorf("sub-NUMA %v: %+v", snc, g)
		}
	}
}

func TestResctrlGroupsHoldTheVCPUsAndEndWithTheGuest(t *testing.T) {
	w := newResctrlWorld(t, false)
	w.write("x\n", "sys/fs/resctrl/mon_groups/numavisor-999/tasks") // by an earlier run
	w.write("x\n", "sys/fs/resctrl/mon_groups/libvirt-1/tasks")
	w.add("a", 100, byNode{0: gib}, 0, 1)
	w.add("b", 200, byNode{0: gib}, 1)
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	groups := func() string {
		entries, err := os.ReadDir(w.path("sys/fs/resctrl/mon_groups"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	if got := groups(); got != "libvirt-1 numavisor-100 numavisor-200" {
		t.Error(got)
	}
	if diff := cmp.Diff([]int{101, 102}, w.meter.groups[100].threads); diff != "" {
		t.Error(diff)
	}
	if tasks, err := os.ReadFile(w.path("sys/fs/resctrl/mon_groups/numavisor-200/tasks")); err != nil ||
		string(tasks) != "201" {
		t.Errorf("%q, error %v", tasks, err)
	}
	w.vms = w.vms[:1]
	w.follow(watcher)
	if got := groups(); got != "libvirt-1 numavisor-100" {
		t.Error(got)
	}
	if err := watcher.Close(); err != nil || groups() != "libvirt-1" {
		t.Errorf("%s, error %v", groups(), err)
	}
}

func TestGuestsThatResctrlCannotMeasureGetTheEstimate(t *testing.T) {
	w := newResctrlWorld(t, false)
	w.ids = 1
	w.add("a", 100, byNode{0: gib}, 0)
	w.add("libvirt", 200, byNode{0: gib}, 0)
	w.add("none-left", 300, byNode{0: gib}, 0)
	w.write("res:p1\nmon:vcpus\n", "proc/201/cpu_resctrl_groups")
	w.write("1\n", "sys/fs/resctrl/p1/mon_groups/vcpus/tasks")
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	watcher.Sample()
	w.moved(100, 0, "10", "10")
	w.pass(time.Second, 0.1, 0)
	s := watcher.Sample()
	for name, want := range map[string]inventory.AccessSource{"a": inventory.AccessResctrl,
		"libvirt": inventory.AccessEstimate, "none-left": inventory.AccessEstimate} {
		if got := guestOf(t, s, name).Load.Remote; got == nil || got.Source != want {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
	}
	if text := gapsOf(s); !strings.Contains(text, "VMs libvirt, none-left") ||
		!strings.Contains(text, "of another program") {
		t.Error(text)
	}
	w.vms = w.vms[:1]
	w.add("none-left", 300, byNode{0: gib}, 0)
	w.follow(watcher)
	if text := gapsOf(watcher.Sample()); !strings.Contains(text, linux.ErrNoRMID.Error()) {
		t.Error(text)
	}
}

func TestAGroupIsMadeInTheControlGroupOfTheVCPUs(t *testing.T) {
	w := newResctrlWorld(t, false)
	w.add("a", 100, byNode{0: gib}, 0)
	w.write("res:p1\nmon:\n", "proc/101/cpu_resctrl_groups")
	w.watcher(Options{Meters: []Meter{w.meter}})
	if _, err := os.Stat(w.path("sys/fs/resctrl/p1/mon_groups/numavisor-100/tasks")); err != nil {
		t.Error(err)
	}
}

func TestResctrl_GivesUpAfterReadingsWithoutAFigure(t *testing.T) {
	w := newResctrlWorld(t, false)
	w.add("a", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	w.moved(100, 0, "Unavailable", "Unavailable")
	for i := range maxSilent {
		w.pass(time.Second, 0.1, 0)
		s := watcher.Sample()
		if got := s.Guests[0].Load.Remote.Source; got != inventory.AccessEstimate {
			t.Errorf("sample %d: %s", i, got)
		}
		if i < maxSilent-1 && len(s.Gaps) > 0 {
			t.Errorf("sample %d: %s", i, gapsOf(s))
		}
	}
	w.pass(time.Second, 0.1, 0)
	if text := gapsOf(watcher.Sample()); !strings.Contains(text, `the kernel reports no figure but "Unavailable"`) {
		t.Errorf("gaps: %s", text)
	}
	if _, err := os.Stat(w.path("sys/fs/resctrl/mon_groups/numavisor-100")); !os.IsNotExist(err) {
		t.Error("its group still exists")
	}
}

// Traffic during the readings without a figure is in the next figure: it is
// spread over all that time, and not over the last window alone.
func TestResctrl_TrafficSinceTheLastFigure(t *testing.T) {
	w := newResctrlWorld(t, false)
	w.add("a", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	watcher.Sample()
	for i, c := range []struct {
		total string
		want  float64
	}{{"1000000", 1}, {"Unavailable", 0}, {"Unavailable", 0}, {"4000000", 1}, {"6000000", 2}} {
		w.moved(100, 0, c.total, c.total)
		w.pass(time.Second, 0.5, 0)
		if got := watcher.Sample().Guests[0].Load.MemoryMBps; !near(got, c.want) {
			t.Errorf("sample %d, %s: %v MB/s, want %v", i, c.total, got, c.want)
		}
	}
}

func TestResctrl_CacheOfSeveralNodes(t *testing.T) {
	w := newResctrlWorld(t, true)
	w.snc = false // hardware with sub-NUMA clusters, and a kernel without support for them
	w.add("a", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	if text := gapsOf(watcher.Sample()); !strings.Contains(text, "L3 cache") {
		t.Error(text)
	}
}

// Reading a domain interrupts a CPU there: only domains with vCPUs are read.
func TestDomainsWithoutVCPUsAreNotRead(t *testing.T) {
	w := newResctrlWorld(t, false)
	v := w.add("a", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{Meters: []Meter{w.meter}})
	watcher.Sample()
	w.moved(100, 0, "100", "100")
	w.moved(100, 1, "nonsense", "nonsense")
	w.pass(time.Second, 0.5, 0)
	watcher.Sample()
	w.pass(time.Second, 0.5, 0)
	if s := watcher.Sample(); len(s.Gaps) > 0 {
		t.Errorf("the other node's domain was read: %s", gapsOf(s))
	}
	w.moved(100, 1, "1000", "1000")
	v.threads[1].cpu = 2
	w.pass(time.Second, 0.5, 0)
	if g := watcher.Sample().Guests[0]; len(g.Accesses) != 1 || g.Accesses[0].From != 1 {
		t.Errorf("%+v", g.Accesses)
	}
}

func TestResctrl_MissingAffectsNoGuest(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.add("a", 100, byNode{0: gib}, 0)
	s := w.watcher(Options{Meters: []Meter{NewResctrl(w.root)}}).Sample()
	if text := gapsOf(s); !strings.Contains(text, "mount -t resctrl") ||
		s.Guests[0].Load.Remote.Source != inventory.AccessEstimate {
		t.Error(text)
	}
}

// fakeCounters are a processor's counters, by thread and event.
type fakeCounters struct {
	counts map[int]map[linux.NodeEvent]*linux.PerfCount
	refuse map[int]error
	open   int
}

type fakeCounter struct {
	*linux.PerfCount
	of *fakeCounters
}

func (c fakeCounter) Read() (linux.PerfCount, error) { return *c.PerfCount, nil }
func (c fakeCounter) Close()                         { c.of.open-- }

func (f *fakeCounters) opener(tid int, e linux.NodeEvent) (PerfCounter, error) {
	if err := f.refuse[tid]; err != nil {
		return nil, &linux.PerfError{Event: e, TID: tid, Err: err}
	}
	if f.counts[tid] == nil {
		f.counts[tid] = map[linux.NodeEvent]*linux.PerfCount{linux.NodeLoads: {}, linux.NodeLoadMisses: {}}
	}
	f.open++
	return fakeCounter{f.counts[tid][e], f}, nil
}

// count adds to the counters of a thread that had a place for a part of the
// time.
func (f *fakeCounters) count(tid int, loads, misses uint64, part float64) {
	for e, n := range map[linux.NodeEvent]uint64{linux.NodeLoads: loads, linux.NodeLoadMisses: misses} {
		c := f.counts[tid][e]
		c.Value += n
		c.Enabled += time.Second
		c.Running += time.Duration(part * float64(time.Second))
	}
}

func newFakePMU(local bool) (*PMU, *fakeCounters) {
	f := &fakeCounters{counts: map[int]map[linux.NodeEvent]*linux.PerfCount{}, refuse: map[int]error{}}
	p := NewPMU(linux.Live)
	p.open, p.local = f.opener, func() (bool, error) { return local, nil }
	return p, f
}

func TestPMU_DistributionOfLoads(t *testing.T) {
	for _, areLocal := range []bool{true, false} {
		w := newWorld(t, 2, 2)
		w.add("a", 100, byNode{0: gib, 1: gib}, 0, 2)
		p, counters := newFakePMU(areLocal)
		watcher := w.watcher(Options{Meters: []Meter{p}})
		watcher.Sample()
		loads := uint64(100) // of which 25 remote
		if areLocal {
			loads = 75
		}
		counters.count(101, loads, 25, 1)
		counters.count(102, 3*loads/2, 0, 0.5) // with a place for half the time: the estimate doubles it
		w.pass(time.Second, 0.5, 0)
		s := watcher.Sample()
		g := s.Guests[0]
		second := 2 * float64(3*loads/2)
		want := []inventory.AccessShare{{From: 0, To: 0, Share: 75 / (100 + second)},
			{From: 0, To: 1, Share: 25 / (100 + second)}, {From: 1, To: 1, Share: second / (100 + second)}}
		if diff := cmp.Diff(want, g.Accesses); diff != "" || g.Load.Remote.Source != inventory.AccessPMU ||
			g.Load.MemoryMBps != 0 {
			t.Errorf("local %v: %+v\n%s", areLocal, g.Load, diff)
		}
		if len(s.Gaps) > 0 {
			t.Error(gapsOf(s))
		}
	}
}

// Accesses to another node are those to the only other one. On a host with more of them, they say nothing of a vCPU's
// place.
func TestPMU_AccessesOfDivisibleVCPUs(t *testing.T) {
	for nodes, want := range map[int][]inventory.VCPUAccess{
		2: {{VCPU: 0, On: 0, ByNode: map[topology.NodeID]float64{0: 75, 1: 25}},
			{VCPU: 2, On: 1, ByNode: map[topology.NodeID]float64{1: 10, 0: 90}}},
		3: nil,
	} {
		w := newWorld(t, nodes, 2)
		v := w.add("a", 100, byNode{0: gib, 1: gib}, 0, 1, 2)
		v.guest.Placement = &guest.Placement{CPUMode: guest.CPURange, Scale: &guest.Scale{}, Cells: []guest.Cell{
			{VCPUs: topology.SetOf[guest.VCPUID](0, 2), Nodes: topology.SetOf[topology.NodeID](0, 1)},
			{VCPUs: topology.SetOf[guest.VCPUID](1), Nodes: topology.SetOf[topology.NodeID](0)},
		}}
		p, counters := newFakePMU(true)
		watcher := w.watcher(Options{Meters: []Meter{p}})
		watcher.Sample()
		counters.count(101, 75, 25, 1)
		counters.count(102, 5, 5, 1) // of a cell on one node
		counters.count(103, 10, 90, 1)
		w.pass(time.Second, 0.5, 0)
		if diff := cmp.Diff(want, watcher.Sample().Guests[0].VCPUAccesses); diff != "" {
			t.Errorf("%d nodes: %s", nodes, diff)
		}
	}
}

// If one of a thread's two counters had no place at all, its zero is no
// measurement: the other's count waits until both have counted.
func TestPMU_WaitsUntilBothCountersHadAPlace(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.add("a", 100, byNode{0: gib, 1: gib}, 0)
	p, counters := newFakePMU(false)
	watcher := w.watcher(Options{Meters: []Meter{p}})
	watcher.Sample()
	counters.count(101, 100, 0, 1)
	counters.counts[101][linux.NodeLoadMisses].Running = 0 // the other counters had all places
	w.pass(time.Second, 0.5, 0)
	if r := watcher.Sample().Guests[0].Load.Remote; r == nil || r.Source != inventory.AccessEstimate {
		t.Errorf("misses were not counted, but its accesses come from %+v and not from the estimate", r)
	}
	counters.count(101, 100, 50, 1)
	w.pass(time.Second, 0.5, 0)
	g := watcher.Sample().Guests[0]
	if r := g.Load.Remote; r == nil || r.Source != inventory.AccessPMU ||
		!near(r.Share, 0.5) { // 50 misses in half of the time, 200 loads in all
		t.Errorf("%+v, want half of them remote", r)
	}
}

func TestPMU_ReportsTheReason(t *testing.T) {
	for errno, part := range map[unix.Errno]string{unix.ENOENT: "no such event", unix.EACCES: "CAP_PERFMON",
		unix.EOPNOTSUPP: "no performance counters"} {
		w := newWorld(t, 2, 2)
		w.add("a", 100, byNode{0: gib}, 0, 1)
		w.add("b", 200, byNode{0: gib}, 0)
		p, counters := newFakePMU(true)
		counters.refuse[102] = errno
		watcher := w.watcher(Options{Meters: []Meter{p}})
		watcher.Sample()
		if text := gapsOf(watcher.Sample()); !strings.Contains(text, "VMs a: ") || !strings.Contains(text, part) {
			t.Errorf("%v: %s", errno, text)
		}
		if counters.open != 2 {
			t.Errorf("%v: %d counters open, b needs 2", errno, counters.open)
		}
	}
	p, _ := newFakePMU(true)
	p.local = func() (bool, error) { return false, linux.ErrNodeLoadsMeaning }
	if err := p.Follow(nil, &topology.Topology{}); !errors.Is(err, linux.ErrNodeLoadsMeaning) {
		t.Error(err)
	}
}

func TestPMUFollowsThreads(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("a", 100, byNode{0: gib}, 0, 1)
	p, counters := newFakePMU(true)
	counters.refuse[102] = unix.ESRCH // ended meanwhile
	watcher := w.watcher(Options{Meters: []Meter{p}})
	watcher.Sample()
	if counters.open != 2 {
		t.Errorf("%d counters open", counters.open)
	}
	v.threads = append(v.threads, vmThread{tid: 105, name: "CPU 2/KVM"})
	w.pass(listInterval, 0.5, 0)
	watcher.Sample()
	if counters.open != 4 {
		t.Errorf("%d counters open after a vCPU came", counters.open)
	}
	w.vms = nil
	w.follow(watcher)
	if counters.open != 0 {
		t.Errorf("%d counters open after the guest went", counters.open)
	}
}
