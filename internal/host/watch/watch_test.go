package watch

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func guestOf(t *testing.T, s inventory.Sample, name string) inventory.GuestSample {
	t.Helper()
	for _, g := range s.Guests {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no guest %s in %v", name, names(s))
	return inventory.GuestSample{}
}

func gapsOf(s inventory.Sample) string {
	var lines []string
	for _, g := range s.Gaps {
		lines = append(lines, g.Object.String()+": "+g.What+": "+g.Why)
	}
	return strings.Join(lines, "\n")
}

func TestSample_CPUUseOfNodes(t *testing.T) {
	w := newWorld(t, 2, 2)
	watcher := w.watcher(Options{})
	first := watcher.Sample()
	if first.Window != 0 || first.Nodes[0].CPU != 0 || first.Nodes[0].Wait != 0 ||
		first.Moves != (inventory.KernelMoves{}) {
		t.Errorf("rates of the first sample: %+v", first)
	}
	w.now = w.now.Add(2 * time.Second)
	w.ticks[0] = [2]uint64{1200, 1000} // busy all the time
	w.ticks[1] = [2]uint64{1050, 1150} // a quarter
	w.ticks[2] = [2]uint64{1000, 1200} // idle
	w.ticks[3] = [2]uint64{900, 1100}  // ran backwards
	w.delay[2] += time.Second
	w.delay[3] += 3 * time.Second
	w.delay[0] -= time.Millisecond
	w.writeHost()
	w.vmstat(1010, 12, 99)
	s := watcher.Sample()
	if s.Window != 2*time.Second || !s.Taken.Equal(w.now) {
		t.Errorf("window %v, taken %v", s.Window, s.Taken)
	}
	want := []inventory.NodeSample{
		{
			NodeLoad:  inventory.NodeLoad{Node: 0, CPU: 1.25},
			CPUs:      2,
			Memory:    64 * gib,
			Free:      topology.MiB,
			HugePages: []topology.HugePagePool{{Size: 2 * topology.MiB, Total: 100, Free: 40}},
		},
		{
			NodeLoad:  inventory.NodeLoad{Node: 1, Wait: 2},
			CPUs:      2,
			Memory:    64 * gib,
			Free:      2 * topology.MiB,
			HugePages: []topology.HugePagePool{{Size: 2 * topology.MiB, Total: 100, Free: 40}},
		},
	}
	if diff := cmp.Diff(want, s.Nodes); diff != "" {
		t.Error(diff)
	}
	page := topology.Bytes(os.Getpagesize())
	if diff := cmp.Diff(inventory.KernelMoves{Moved: 10 * page, Failed: 2 * page}, s.Moves); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	if p := s.Pressure; *p.CPU != 0.125 || *p.Memory != 0.03 || *p.MemoryFull != 0.02 || *p.IO != 0 {
		t.Errorf("pressure %v %v %v %v", *p.CPU, *p.Memory, *p.MemoryFull, *p.IO)
	}
	if len(s.Gaps) > 0 {
		t.Error(gapsOf(s))
	}
	w.write("39\n", "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages")
	w.now = w.now.Add(time.Second)
	if soon := watcher.Sample(); soon.Nodes[1].HugePages[0].Free != 40 {
		t.Errorf("pools are read again within %v: %v", slowInterval, soon.Nodes[1].HugePages)
	}
	w.now = w.now.Add(slowInterval)
	if later := watcher.Sample(); later.Nodes[1].HugePages[0].Free != 39 || s.Nodes[1].HugePages[0].Free != 40 {
		t.Errorf("pools now %v, in the sample before %v", later.Nodes[1].HugePages, s.Nodes[1].HugePages)
	}
}

func TestSample_LoadAndMemoryOfGuests(t *testing.T) {
	w := newWorld(t, 4, 2)
	w.add("far", 100, byNode{3: gib}, 0, 1)
	w.add("split", 200, byNode{0: 3 * gib, 2: gib}, 0, 4)
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.pass(2*time.Second, 0.5, 0.25)
	s := watcher.Sample()
	far, split := guestOf(t, s, "far"), guestOf(t, s, "split")
	if far.Load.Window != 2*time.Second || !near(far.Load.CPU, 1) || !near(far.Load.Wait, 0.5) || far.PID != 100 {
		t.Errorf("far: %+v", far)
	}
	if diff := cmp.Diff(byNode{3: gib}, far.MemoryByNode); diff != "" ||
		far.MemorySource != "cgroup memory.numa_stat + hugetlb.*.numa_stat" {
		t.Errorf("far: source %q\n%s", far.MemorySource, diff)
	}
	if diff := cmp.Diff(map[topology.NodeID]float64{0: 1}, far.CPUByNode); diff != "" {
		t.Error(diff)
	}
	if r := far.Load.Remote; r == nil || r.Share != 1 || r.Source != inventory.AccessEstimate {
		t.Errorf("far: remote %+v", r)
	}
	want := []inventory.AccessShare{{From: 0, To: 0, Share: 0.375}, {From: 0, To: 2, Share: 0.125},
		{From: 2, To: 0, Share: 0.375}, {From: 2, To: 2, Share: 0.125}}
	if diff := cmp.Diff(want, split.Accesses); diff != "" || !near(split.Load.Remote.Share, 0.5) {
		t.Errorf("split: remote %+v\n%s", split.Load.Remote, diff)
	}
	if diff := cmp.Diff([]inventory.AccessSource{inventory.AccessEstimate}, s.Accesses); diff != "" {
		t.Error(diff)
	}
	if len(s.Gaps) > 0 {
		t.Error(gapsOf(s))
	}
}

// Observations are frequent: they must not interrupt the rates.
func TestFollow_KeepsRatesOfTheSameGuests(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.pass(time.Second, 0.5, 0.25)
	w.ticks[0] = [2]uint64{1050, 1050}
	w.delay[1] += time.Second / 2
	w.writeHost()
	other := w.topo
	watcher.Follow([]inventory.Guest{w.vms[0].guest}, &other)
	s := watcher.Sample()
	if s.Nodes[0].CPU != 0.5 || s.Nodes[1].Wait != 0.5 || !near(s.Guests[0].Load.CPU, 0.5) ||
		s.Nodes[0].HugePages[0].Total != 100 {
		t.Errorf("%+v, guest %+v", s.Nodes, s.Guests[0].Load)
	}
}

// The history owns published samples: a later sample does not change them.
func TestSample_DoesNotChangeEarlierSamples(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.pass(time.Second, 0.5, 0)
	before := watcher.Sample()
	if shared := watcher.guests[0].memory.byNode; len(shared) != 1 {
		t.Fatal(shared)
	}
	v.memory = byNode{1: 2 * gib}
	v.threads[1].cpu = 2
	w.pass(slowInterval, 0.25, 0)
	after := watcher.Sample()
	if diff := cmp.Diff(byNode{0: gib}, before.Guests[0].MemoryByNode); diff != "" ||
		before.Guests[0].CPUByNode[0] != 0.5 ||
		before.Guests[0].Accesses[0].To != 0 {
		t.Errorf("%+v\n%s", before.Guests[0], diff)
	}
	if diff := cmp.Diff(byNode{1: 2 * gib}, after.Guests[0].MemoryByNode); diff != "" ||
		after.Guests[0].CPUByNode[1] != 0.25 ||
		after.Guests[0].Accesses[0].To != 1 {
		t.Errorf("%+v\n%s", after.Guests[0], diff)
	}
}

// What follows the guests has just observed their memory: the next sample does not replace that with older figures.
func TestFollow_ReadsSlowFiguresAgain(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	v.memory = byNode{1: 2 * gib}
	w.pass(time.Second, 0.5, 0)
	if diff := cmp.Diff(byNode{0: gib}, watcher.Sample().Guests[0].MemoryByNode); diff != "" {
		t.Errorf("read again within %v:\n%s", slowInterval, diff)
	}
	w.follow(watcher)
	w.pass(time.Second, 0.5, 0)
	if diff := cmp.Diff(byNode{1: 2 * gib}, watcher.Sample().Guests[0].MemoryByNode); diff != "" {
		t.Errorf("after an observation:\n%s", diff)
	}
}

// While kernel balancing moves memory, figures of some seconds before would place guests where their memory was.
func TestSample_ReadsMemoryThatKernelBalancingMoves(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	pages := int(muchMoved) / os.Getpagesize()
	for _, c := range []struct {
		moved int
		want  byNode
	}{{1, byNode{0: gib}}, {pages / 2, byNode{0: gib}}, {pages, byNode{1: gib}}} {
		v.memory = byNode{1: gib}
		w.pass(time.Second, 0.5, 0)
		w.vmstat(1000, 10, 100+c.moved)
		if diff := cmp.Diff(c.want, watcher.Sample().Guests[0].MemoryByNode); diff != "" {
			t.Errorf("%d pages moved:\n%s", c.moved, diff)
		}
	}
}

func TestSample_CountersThatRunBackwards(t *testing.T) {
	w := newWorld(t, 1, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.now = w.now.Add(time.Second)
	v.threads[1].run, v.threads[1].wait = 0, 0
	w.writeVM(v)
	if l := watcher.Sample().Guests[0].Load; l.CPU != 0 || l.Wait != 0 {
		t.Errorf("%+v", l)
	}
	w.now = w.now.Add(-time.Minute) // as does the clock of a host that was set
	if s := watcher.Sample(); s.Window != 0 || s.Guests[0].Load.CPU != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAVCPUThatIsPluggedInIsSeen(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	watcher.Sample()
	v.threads = append(v.threads, vmThread{tid: 102, name: "CPU 1/KVM", run: time.Hour, cpu: 2})
	w.pass(listInterval, 0.5, 0)
	watcher.Sample()
	w.pass(time.Second, 0.5, 0)
	if g := watcher.Sample().Guests[0]; !near(g.Load.CPU, 1) || !near(g.CPUByNode[1], 0.5) {
		t.Errorf("%+v", g)
	}
}

func TestAVCPUThatIsUnpluggedIsDropped(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("g", 100, byNode{0: gib}, 0, 2)
	watcher := w.watcher(Options{OpenFiles: 1}) // so that a missing file shows
	watcher.Sample()
	if err := os.RemoveAll(w.path("proc/100/task/102")); err != nil {
		t.Fatal(err)
	}
	v.threads = v.threads[:2]
	w.pass(time.Second, 0.5, 0)
	s := watcher.Sample()
	if g := s.Guests[0]; !near(g.Load.CPU, 0.5) || len(watcher.guests[0].threads) != 1 {
		t.Errorf("%+v", g)
	}
	if len(s.Gaps) > 0 {
		t.Error(gapsOf(s))
	}
}

func TestGuestsComeAndGoWithFollow(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.add("stays", 100, byNode{0: gib}, 0)
	w.add("goes", 200, byNode{0: gib}, 1)
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.vms = w.vms[:1]
	w.add("comes", 300, byNode{0: gib}, 1)
	w.pass(time.Second, 0.5, 0)
	w.follow(watcher)
	s := watcher.Sample()
	if diff := cmp.Diff([]string{"comes", "stays"}, names(s)); diff != "" {
		t.Fatal(diff)
	}
	if stays, comes := guestOf(t, s, "stays").Load, guestOf(t, s, "comes").Load; !near(stays.CPU, 0.5) ||
		comes.CPU != 0 ||
		comes.Window != 0 {
		t.Errorf("stays %+v, comes %+v", stays, comes)
	}
	w.vms[1].guest.PID = 400 // the same name, started again
	w.writeVM(w.vms[1])
	w.vms[1].threads = []vmThread{{tid: 400, name: "qemu"}, {tid: 401, name: "CPU 0/KVM", run: time.Second}}
	w.pass(time.Second, 0.5, 0)
	w.follow(watcher)
	if again := guestOf(t, watcher.Sample(), "comes"); again.PID != 400 || again.Load.CPU != 0 {
		t.Errorf("%+v", again)
	}
}

func TestFilesAreClosed(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	w := newWorld(t, 2, 2)
	for i := range 5 {
		w.add(fmt.Sprint("g", i), 100*(i+1), byNode{0: gib}, 0, 1)
	}
	before := open()
	watcher := w.watcher(Options{})
	watcher.Sample()
	all := open()
	if open := all - before; open < 5*4 {
		t.Errorf("only %d files stay open", open)
	}
	w.vms = w.vms[:1]
	w.follow(watcher)
	if now := open(); now >= all {
		t.Errorf("%d files open with one guest, %d with five", now, all)
	}
	if err := watcher.Close(); err != nil || open() != before {
		t.Errorf("%d files open after Close, %d before; error %v", open(), before, err)
	}
	small := w.watcher(Options{OpenFiles: 3})
	small.Sample()
	if now := open(); now > before+3 {
		t.Errorf("%d files open, 3 were allowed", now-before)
	}
}

func TestWithoutSchedstatOnlyGuestsWaitsAreCounted(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.add("g", 100, byNode{0: gib}, 0, 2)
	if err := os.Remove(w.path("proc/schedstat")); err != nil {
		t.Fatal(err)
	}
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.pass(time.Second, 0.5, 0.25)
	s := watcher.Sample()
	if !near(s.Nodes[0].Wait, 0.25) || !near(s.Nodes[1].Wait, 0.25) {
		t.Errorf("waits %v and %v", s.Nodes[0].Wait, s.Nodes[1].Wait)
	}
	if !strings.Contains(gapsOf(s), "CONFIG_SCHEDSTATS") {
		t.Error(gapsOf(s))
	}
}

func TestSample_FallsBackToTheCgroupsCPUTime(t *testing.T) {
	w := newWorld(t, 1, 2)
	v := w.add("g", 100, byNode{0: gib}, 0)
	if err := os.Remove(w.path("proc/100/task/101/schedstat")); err != nil { // no CONFIG_SCHED_INFO
		t.Fatal(err)
	}
	watcher := w.watcher(Options{})
	watcher.Sample()
	w.now = w.now.Add(2 * time.Second)
	w.write("usage_usec 6000000\n", "sys/fs/cgroup", v.group(), "cpu.stat")
	s := watcher.Sample()
	if !near(s.Guests[0].Load.CPU, 0.5) || !strings.Contains(gapsOf(s), "run and wait times") {
		t.Errorf("%+v\n%s", s.Guests[0].Load, gapsOf(s))
	}
	w.writeVM(v) // its threads are readable again
	w.now = w.now.Add(time.Second)
	watcher.Sample()
	w.pass(time.Second, 0.25, 0)
	if s = watcher.Sample(); !near(s.Guests[0].Load.CPU, 0.25) || len(s.Gaps) > 0 {
		t.Errorf("%+v\n%s", s.Guests[0].Load, gapsOf(s))
	}
}

// numa_maps is read for huge pages and for small guests, once a minute, one
// guest a sample; for others never.
func TestNUMAMapsIsReadOnlyWhereCheap(t *testing.T) {
	w := newWorld(t, 2, 2)
	const maps = "7f0000000000 default huge anon=512 dirty=512 N1=%d kernelpagesize_kB=2048\n"
	for _, name := range []string{"huge1", "huge2"} {
		v := w.add(name, 100+100*len(w.vms), byNode{}, 0)
		v.guest.Config.PageSize, v.guest.Config.Memory = 2*topology.MiB, gib // not counted by its group
		w.write(fmt.Sprintf(maps, 512), fmt.Sprintf("proc/%d/numa_maps", v.guest.PID))
	}
	large := w.add("large", 500, byNode{}, 1)
	large.guest.Config.Source, large.guest.Config.Memory = "file", 512*gib
	large.guest.Seen.MemoryByNode, large.guest.Seen.MemorySource = byNode{0: 7 * gib}, "numa_maps"
	watcher := w.watcher(Options{})
	first := watcher.Sample()
	if read := len(guestOf(t, first, "huge1").MemoryByNode) + len(guestOf(t, first, "huge2").MemoryByNode); read != 1 {
		t.Errorf("numa_maps of %d guests in one sample", read)
	}
	if diff := cmp.Diff(byNode{0: 7 * gib}, guestOf(t, first, "large").MemoryByNode); diff != "" {
		t.Errorf("the figures should be the inventory's:\n%s", diff)
	}
	if text := gapsOf(first); strings.Count(text, "guest large") != 1 || !strings.Contains(text, "walks every page") {
		t.Error(text)
	}
	large.guest.Seen.MemoryByNode = byNode{1: 7 * gib}
	w.follow(watcher) // a new inventory was taken
	second := watcher.Sample()
	if diff := cmp.Diff(byNode{1: 7 * gib}, guestOf(t, second, "large").MemoryByNode); diff != "" {
		t.Errorf("the figures should be those of the new inventory:\n%s", diff)
	}
	for _, name := range []string{"huge1", "huge2"} {
		if diff := cmp.Diff(byNode{1: gib}, guestOf(t, second, name).MemoryByNode); diff != "" ||
			guestOf(t, second, name).MemorySource != "numa_maps" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	w.write(fmt.Sprintf(maps, 256), "proc/100/numa_maps")
	w.now = w.now.Add(mapsInterval - time.Second)
	if got := guestOf(t, watcher.Sample(), "huge1").MemoryByNode; got[1] != gib {
		t.Errorf("read again within a minute: %v", got)
	}
	w.now = w.now.Add(2 * time.Second)
	watcher.Sample()
	if got := guestOf(t, watcher.Sample(), "huge1").MemoryByNode; got[1] != gib/2 {
		t.Errorf("not read again after a minute: %v", got)
	}
}

// A node whose free memory cannot be read does not become full.
func TestSample_UnreadableFreeMemoryStaysAsItWas(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.topo.Nodes[1].Free = 7 * topology.MiB // the inventory's figure
	for _, readBefore := range []bool{false, true} {
		want := 7 * topology.MiB
		w.write("Node 1 MemFree: 2048 kB\n", "sys/devices/system/node/node1/meminfo")
		watcher := w.watcher(Options{})
		if readBefore {
			watcher.Sample()
			want = 2 * topology.MiB
		}
		w.write("Node 1 MemFree: ? kB\n", "sys/devices/system/node/node1/meminfo")
		for range 2 {
			w.now = w.now.Add(slowInterval)
			if s := watcher.Sample(); s.Nodes[1].Free != want || !strings.Contains(gapsOf(s), "its free memory") {
				t.Errorf("read before %v: %v free, want %v; gaps %s", readBefore, s.Nodes[1].Free, want, gapsOf(s))
			}
		}
	}
}

// A restarted guest is measured from the start: the end of the former one does
// not remove its gaps.
func TestFollow_RestartedGuestKeepsItsGaps(t *testing.T) {
	w := newWorld(t, 1, 2)
	v := w.add("a", 100, byNode{0: gib}, 0)
	watcher := w.watcher(Options{})
	if s := watcher.Sample(); len(s.Gaps) > 0 {
		t.Fatal(gapsOf(s))
	}
	v.guest.PID = 400
	v.threads = []vmThread{{tid: 400, name: "qemu"}, {tid: 401, name: "qemu", run: time.Second}} // no vCPU's name
	w.pass(time.Second, 0.5, 0)
	w.follow(watcher)
	if s := watcher.Sample(); !strings.Contains(gapsOf(s), "its vCPU threads") {
		t.Errorf("gaps: %s", gapsOf(s))
	}
}

// Events during the time in which a file could not be read do not count as
// events of the window after that.
func TestSample_RatesRestartAfterAReadError(t *testing.T) {
	w := newWorld(t, 1, 2)
	watcher := w.watcher(Options{})
	watcher.Sample()
	broken := func() {
		w.write("version 15\ncpu0 0 0 0 0 0 0 123 ? 9\n", "proc/schedstat")
		w.write("pgmigrate_success ?\n", "proc/vmstat")
	}
	for range 3 {
		broken()
		w.pass(time.Second, 0, 0)
		if s := watcher.Sample(); len(s.Gaps) != 2 {
			t.Fatal(gapsOf(s))
		}
	}
	w.delay[0] += 3 * time.Second // one thread waited all the time
	w.vmstat(1300, 10, 400)
	w.writeHost()
	w.pass(time.Second, 0, 0)
	if s := watcher.Sample(); len(s.Gaps) > 0 || s.Nodes[0].Wait > 1 || s.Moves.Moved > 0 {
		t.Errorf("%v threads waited in one second, %v moved; gaps: %s", s.Nodes[0].Wait, s.Moves.Moved, gapsOf(s))
	}
	w.delay[0] += time.Second / 2
	w.writeHost()
	w.vmstat(1301, 10, 400)
	w.pass(time.Second, 0, 0)
	if s := watcher.Sample(); !near(s.Nodes[0].Wait, 0.5) || s.Moves.Moved == 0 {
		t.Errorf("%v threads waited, want 0.5; %v moved", s.Nodes[0].Wait, s.Moves.Moved)
	}
}

func TestGapsOfANodeEndWithIt(t *testing.T) {
	w := newWorld(t, 2, 2)
	watcher := w.watcher(Options{})
	if err := os.RemoveAll(w.path("sys/devices/system/node/node1")); err != nil {
		t.Fatal(err)
	}
	w.write("Node 1 MemFree: ? kB\n", "sys/devices/system/node/node1/meminfo")
	if s := watcher.Sample(); !strings.Contains(gapsOf(s), "node 1") {
		t.Fatalf("gaps: %s", gapsOf(s))
	}
	smaller := w.topo
	smaller.Nodes = smaller.Nodes[:1]
	watcher.Follow(nil, &smaller)
	if s := watcher.Sample(); len(s.Nodes) != 1 || len(s.Gaps) > 0 {
		t.Errorf("%d nodes; gaps: %s", len(s.Nodes), gapsOf(s))
	}
}

func TestSample_MissingSourceIsOneGap(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.write("Node 1 MemFree: ? kB\n", "sys/devices/system/node/node1/meminfo")
	watcher := w.watcher(Options{})
	for range 3 {
		s := watcher.Sample()
		if len(s.Gaps) != 1 || s.Gaps[0].Object != inventory.NodeRef(1) {
			t.Fatal(gapsOf(s))
		}
	}
	w.write("Node 1 MemFree: 4 kB\n", "sys/devices/system/node/node1/meminfo")
	w.now = w.now.Add(slowInterval)
	if s := watcher.Sample(); len(s.Gaps) > 0 || s.Nodes[1].Free != 4*topology.KiB {
		t.Error(gapsOf(s))
	}
}

// For any distribution of vCPUs and memory: shares sum to 1, and remote is the
// share that leaves the node.
func TestSharesSumToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &Watcher{}
		const nodes = 5
		node := rapid.Custom(
			func(t *rapid.T) topology.NodeID { return topology.NodeID(rapid.IntRange(0, nodes-1).Draw(t, "node")) })
		for i := range topology.NodeID(nodes) {
			w.nodeOf = append(w.nodeOf, i)
		}
		e := &guestSampler{}
		g := inventory.GuestSample{
			MemoryByNode: rapid.MapOf(node, rapid.Map(rapid.Uint64Range(1, 1<<40),
				func(n uint64) topology.Bytes { return topology.Bytes(n) })).
				Draw(t, "memory"),
			CPUByNode: rapid.MapOf(node, rapid.Float64Range(1e-9, 64)).Draw(t, "cpu"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "threads") {
			e.threads = append(e.threads, threadSampler{cpu: topology.CPUID(node.Draw(t, "ran on"))})
		}
		check(t, estimate(e, &g, w))
		amounts := rapid.MapOf(rapid.Custom(func(t *rapid.T) inventory.AccessShare {
			to := node.Draw(t, "to")
			if rapid.Bool().Draw(t, "elsewhere") {
				to = topology.NoNode
			}
			return inventory.AccessShare{From: node.Draw(t, "from"), To: to}
		}), rapid.Float64Range(0, 1e15)).Draw(t, "amounts")
		a := AccessOf(amounts, time.Second)
		check(t, a)
		topo := topology.Topology{}
		for i := range topology.NodeID(rapid.IntRange(1, nodes).Draw(t, "nodes")) {
			topo.Nodes = append(topo.Nodes, topology.Node{ID: i, Memory: gib})
		}
		shares := resolve(a.Shares, g.MemoryByNode, &topo)
		check(t, Access{Shares: shares, Remote: RemoteOf(shares)})
		for _, s := range shares {
			if s.To == topology.NoNode {
				t.Fatalf("%+v", shares)
			}
		}
	})
}

func check(t *rapid.T, a Access) {
	var sum, remote float64
	for i, s := range a.Shares {
		sum += s.Share
		if s.From != s.To {
			remote += s.Share
		}
		if s.Share <= 0 || s.Share > 1+1e-9 {
			t.Fatalf("share %+v", s)
		}
		if i > 0 && (s.From < a.Shares[i-1].From || s.From == a.Shares[i-1].From && s.To < a.Shares[i-1].To) {
			t.Fatalf("not ascending: %+v", a.Shares)
		}
	}
	if len(a.Shares) > 0 && (math.Abs(sum-1) > 1e-9 || math.Abs(remote-a.Remote) > 1e-9) {
		t.Fatalf("sum %v, remote %v of %+v", sum, remote, a)
	}
}

// fakeMeter measures the guests of its list.
type fakeMeter struct {
	source  inventory.AccessSource
	can     []string
	down    error
	asked   int
	reading map[string]Access
	follows []string
	closed  bool
}

func (m *fakeMeter) Source() inventory.AccessSource { return m.source }

func (m *fakeMeter) Follow(guests []inventory.Guest, _ *topology.Topology) error {
	m.asked++
	m.follows = nil
	if m.down != nil {
		return m.down
	}
	var cannot []string
	for _, g := range guests {
		m.follows = append(m.follows, g.Name)
		if !strings.Contains(strings.Join(m.can, " "), g.Name) {
			cannot = append(cannot, g.Name)
		}
	}
	if len(cannot) > 0 {
		return &UnmeteredError{cannot, errors.New("no more ids")}
	}
	return nil
}

func (m *fakeMeter) Read(time.Duration) (map[string]Access, error) {
	return maps.Clone(m.reading), m.down
}

func (m *fakeMeter) Close() error {
	m.closed = true
	return nil
}

func local(node topology.NodeID, mbps float64) Access {
	return Access{Shares: []inventory.AccessShare{{From: node, To: node, Share: 1}}, MemoryMBps: mbps}
}

func TestAccess_EachGuestGetsTheBestMeter(t *testing.T) {
	w := newWorld(t, 4, 1)
	for i, name := range []string{"a", "b", "c"} {
		w.add(name, 100*(i+1), byNode{3: gib}, 0)
	}
	elsewhere := Access{
		Shares:     []inventory.AccessShare{{From: 0, To: topology.NoNode, Share: 1}},
		Remote:     1,
		MemoryMBps: 10,
	}
	best := &fakeMeter{
		source:  inventory.AccessResctrl,
		can:     []string{"a"},
		reading: map[string]Access{"a": elsewhere, "b": local(0, 99)},
	}
	next := &fakeMeter{
		source:  inventory.AccessPMU,
		can:     []string{"a", "b"},
		reading: map[string]Access{"a": local(1, 99), "b": local(2, 20)},
	}
	watcher := w.watcher(Options{Meters: []Meter{best, next}})
	s := watcher.Sample()
	for name, want := range map[string]*inventory.Remote{"a": {Share: 1, Source: inventory.AccessResctrl},
		"b": {Share: 0, Source: inventory.AccessPMU}, "c": {Share: 1, Source: inventory.AccessEstimate}} {
		if diff := cmp.Diff(want, guestOf(t, s, name).Load.Remote); diff != "" {
			t.Errorf("%s: remote accesses (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff([]inventory.AccessShare{{From: 0, To: 3, Share: 1}}, guestOf(t, s, "a").Accesses); diff != "" {
		t.Errorf("the other nodes should be those with its memory:\n%s", diff)
	}
	if s.Nodes[3].MemoryMBps != 10 || s.Nodes[2].MemoryMBps != 20 || s.Nodes[0].MemoryMBps != 0 {
		t.Errorf("traffic %+v", s.Nodes)
	}
	if diff := cmp.Diff([]inventory.AccessSource{inventory.AccessResctrl, inventory.AccessPMU,
		inventory.AccessEstimate}, s.Accesses); diff != "" {
		t.Error(diff)
	}
	if text := gapsOf(s); strings.Count(text, "accesses by") != 2 || !strings.Contains(text, "no more ids") {
		t.Error(text)
	}
	if diff := cmp.Diff([]string{"b", "c"}, next.follows); diff != "" {
		t.Error(diff)
	}
}

// A VM whose bandwidth resctrl measures has the accesses of its divisible vCPUs from the PMU.
func TestAccess_VCPUsAreCountedBesideABetterMeter(t *testing.T) {
	w := newWorld(t, 2, 1)
	for i, name := range []string{"a", "b"} {
		w.add(name, 100*(i+1), byNode{0: gib}, 0)
	}
	w.vms[0].guest.Placement = &guest.Placement{CPUMode: guest.CPURange, Scale: &guest.Scale{}, Cells: []guest.Cell{
		{VCPUs: topology.SetOf[guest.VCPUID](0), Nodes: topology.SetOf[topology.NodeID](0, 1)}}}
	counts := []inventory.VCPUAccess{{VCPU: 0, On: 0, ByNode: map[topology.NodeID]float64{0: 3, 1: 4}}}
	best := &fakeMeter{source: inventory.AccessResctrl, can: []string{"a", "b"},
		reading: map[string]Access{"a": local(0, 99), "b": local(0, 5)}}
	next := &fakeMeter{source: inventory.AccessPMU, can: []string{"a"},
		reading: map[string]Access{"a": {Shares: local(1, 0).Shares, VCPUs: counts}}}
	watcher := w.watcher(Options{Meters: []Meter{best, next}})
	s := watcher.Sample()
	a := guestOf(t, s, "a")
	if a.Load.Remote.Source != inventory.AccessResctrl || a.Load.MemoryMBps != 99 {
		t.Errorf("its accesses are %+v", a.Load)
	}
	if diff := cmp.Diff(counts, a.VCPUAccesses); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a"}, next.follows); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]inventory.AccessSource{inventory.AccessResctrl}, s.Accesses); diff != "" {
		t.Error(diff)
	}

	next.can = nil // and a VM that the PMU refuses is measured by resctrl all the same
	w.now = w.now.Add(retryMeter)
	a = guestOf(t, watcher.Sample(), "a")
	if len(a.VCPUAccesses) > 0 || a.Load.Remote.Source != inventory.AccessResctrl {
		t.Errorf("%+v", a)
	}
}

func TestAccess_RetriesAMeterThatFailed(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.add("a", 100, byNode{1: gib}, 0)
	meter := &fakeMeter{
		source:  inventory.AccessCounter,
		can:     []string{"a"},
		reading: map[string]Access{"a": local(0, 1)},
	}
	watcher := w.watcher(Options{Meters: []Meter{meter}})
	source := func() inventory.AccessSource {
		w.now = w.now.Add(time.Second)
		return watcher.Sample().Guests[0].Load.Remote.Source
	}
	if got := source(); got != inventory.AccessCounter {
		t.Error(got)
	}
	meter.down, meter.reading = errors.New("switched off"), nil
	if got := source(); got != inventory.AccessEstimate {
		t.Error(got)
	}
	asked := meter.asked
	for range 5 {
		if got := source(); got != inventory.AccessEstimate {
			t.Error(got)
		}
	}
	if meter.asked > asked+1 {
		t.Errorf("asked %d times in 5 samples", meter.asked-asked)
	}
	meter.down, meter.reading = nil, map[string]Access{"a": local(0, 1)}
	w.now = w.now.Add(retryMeter)
	if got := source(); got != inventory.AccessCounter {
		t.Error(got)
	}
	if err := watcher.Close(); err != nil || !meter.closed {
		t.Errorf("closed %v, error %v", meter.closed, err)
	}
}

// A guest without accesses in the window has no remote share, instead of one
// from another source.
func TestAccess_NoAccessesNoShare(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.add("a", 100, byNode{1: gib}, 0)
	watcher := w.watcher(
		Options{
			Meters: []Meter{
				&fakeMeter{source: inventory.AccessPMU, can: []string{"a"}, reading: map[string]Access{"a": {}}}},
		},
	)
	s := watcher.Sample()
	if g := s.Guests[0]; g.Load.Remote != nil || len(g.Accesses) > 0 {
		t.Errorf("%+v", g)
	}
}
