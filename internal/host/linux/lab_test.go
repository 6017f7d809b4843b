package linux

// These tests need several nodes: they run inside the lab, where the
// environment variable NUMAVISOR_LAB_INSIDE is 1, as root.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const labVariable = "NUMAVISOR_LAB_INSIDE"

// inLab skips outside the lab, and fails inside one of fewer than 4 nodes.
func inLab(t *testing.T) {
	t.Helper()
	if os.Getenv(labVariable) != "1" {
		t.Skipf("needs a host of 4 nodes and root: runs inside the lab, with %s=1", labVariable)
	}
	online, err := Live.word("sys/devices/system/node/online")
	if err != nil || !nodes("0-3").SubsetOf(nodes(online)) {
		t.Fatalf("the lab has nodes %q and not 0-3 (error %v)", online, err)
	}
}

// memoryChild is a process with memory of one kind on a node.
type memoryChild struct {
	pid  int
	r    inventory.MemoryRange
	in   io.WriteCloser
	out  *bufio.Scanner
	kind string
}

const childVariable = "NUMAVISOR_TEST_HOLD"

// startChild starts a child that maps size bytes of a kind ("small", "thp",
// "hugetlb", "memfd") and touches the first half of them on node 0.
func startChild(t *testing.T, kind string, size topology.Bytes) *memoryChild {
	t.Helper()
	return startChildWith(t, kind, size, nil)
}

func startChildWith(t *testing.T, kind string, size topology.Bytes, attr *syscall.SysProcAttr) *memoryChild {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestHoldMemory$")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childVariable, kind, size))
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stderr, child.SysProcAttr = os.Stderr, attr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = child.Wait() })
	c := &memoryChild{pid: child.Process.Pid, in: in, out: bufio.NewScanner(out), kind: kind}
	address, err := strconv.ParseUint(c.answer(t), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	step := smallPage
	if kind == "hugetlb" {
		step = 2 * mib
	}
	c.r = inventory.MemoryRange{Address: address, Size: size, PageSize: step}
	return c
}

func (c *memoryChild) answer(t *testing.T) string {
	t.Helper()
	for c.out.Scan() {
		if text, ok := strings.CutPrefix(c.out.Text(), "child: "); ok {
			return text
		}
	}
	t.Fatalf("the child with %s memory ended: %v", c.kind, c.out.Err())
	return ""
}

// touchRest makes the child touch the second half of its memory.
func (c *memoryChild) touchRest(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(c.in, "rest\n"); err != nil {
		t.Fatal(err)
	}
	c.answer(t)
}

// byNumaMaps reads the child's memory per node from numa_maps.
func (c *memoryChild) byNumaMaps(t *testing.T) byNode {
	t.Helper()
	ranges, gaps, err := Live.MemoryRanges(t.Context(), c.pid)
	if err != nil || len(gaps) > 0 {
		t.Fatalf("gaps %v, error %v", gaps, err)
	}
	sum := byNode{}
	for _, r := range ranges {
		if r.Address >= c.r.Address && r.Address < c.r.Address+uint64(c.r.Size) {
			for node, amount := range r.ByNode {
				sum[node] += amount
			}
		}
	}
	return sum
}

// TestHoldMemory is the child.
func TestHoldMemory(t *testing.T) {
	order := os.Getenv(childVariable)
	if order == "" {
		t.Skip("is the child of the lab's tests")
	}
	var kind string
	var size int
	if _, err := fmt.Sscan(order, &kind, &size); err != nil {
		t.Fatal(err)
	}
	memory := childMemory(t, kind, size)
	// of node 0; the goroutine may change threads, so it is locked by childMemory
	if err := SetAffinity(0, cpus("0-1")); err != nil {
		t.Fatal(err)
	}
	touch(memory[:size/2])
	fmt.Printf("child: %x\n", addressOf(memory))
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		touch(memory[size/2:])
		fmt.Println("child: done")
	}
}

func touch(memory []byte) {
	for i := 0; i < len(memory); i += int(smallPage) {
		memory[i] = 1
	}
}

func childMemory(t *testing.T, kind string, size int) []byte {
	t.Helper()
	lockThread()
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	switch kind {
	case "hugetlb":
		flags |= unix.MAP_HUGETLB
	case "memfd":
		var err error
		if fd, err = unix.MemfdCreate("memory-backend-memfd", 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, int64(size)); err != nil {
			t.Fatal(err)
		}
		flags = unix.MAP_SHARED
	}
	const align = int(2 * mib)
	extra := align
	if kind != "small" && kind != "thp" {
		extra = 0
	}
	memory, err := unix.Mmap(fd, 0, size+extra, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	if extra > 0 {
		skip := (align - int(addressOf(memory)%uint64(align))) % align
		memory = memory[skip : skip+size]
	}
	advice := map[string]int{"small": unix.MADV_NOHUGEPAGE, "thp": unix.MADV_HUGEPAGE}
	if a, ok := advice[kind]; ok {
		if err := unix.Madvise(memory, a); err != nil {
			t.Fatal(err)
		}
	}
	return memory
}

func growLabPool(t *testing.T, node topology.NodeID, pages uint64) {
	t.Helper()
	got, err := Live.GrowPool(node, 2*mib, pages)
	if err != nil || got != pages {
		t.Fatalf("node %d: %d of %d huge pages, error %v", node, got, pages, err)
	}
	t.Cleanup(func() {
		pool, err := Live.HugePool(node, 2*mib)
		if err == nil {
			_, err = Live.ShrinkPool(node, 2*mib, pool.Free)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

const held = 64 * mib // by a child, half of it touched at start

// setBalancing sets the kernel's NUMA balancing for the time of a test.
func setBalancing(t *testing.T, to string) {
	t.Helper()
	before, err := Live.ReadSetting("/" + fileBalancing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Live.WriteSetting("/"+fileBalancing, before) })
	if err := Live.WriteSetting("/"+fileBalancing, to); err != nil {
		t.Fatal(err)
	}
}

// withoutBalancing is for tests that count pages: on a slow machine the kernel's NUMA balancing hides and moves some of
// them meanwhile.
func withoutBalancing(t *testing.T) {
	t.Helper()
	setBalancing(t, "0")
}

func TestLabMovesEveryKindOfMemory(t *testing.T) {
	inLab(t)
	withoutBalancing(t)
	for _, kind := range []string{"small", "thp", "hugetlb", "memfd"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "hugetlb" {
				growLabPool(t, 0, uint64(held/(2*mib)))
			}
			c := startChild(t, kind, held)
			before, err := Live.Migrations()
			if err != nil {
				t.Fatal(err)
			}
			for _, target := range []topology.NodeID{3, 1, 0, 2} {
				begin := time.Now()
				result, err := Mover{PID: c.pid, Chunk: 16 * mib}.Move(t.Context(), c.r, topology.SetOf(target))
				if err != nil || result.Failed != 0 || result.After[target] != held/2 || result.Absent != held/2 {
					t.Fatalf("to node %d: %+v, error %v", target, result, err)
				}
				if seen := c.byNumaMaps(t); seen[target] != held/2 || len(seen) != 1 {
					t.Errorf("to node %d: numa_maps says %v", target, seen)
				}
				t.Logf("%s to node %d: %v in %v", kind, target, result.Moved, time.Since(begin))
			}
			after, err := Live.Migrations()
			if err != nil {
				t.Fatal(err)
			}
			d := after.Since(before)
			t.Logf("kernel counters: %+v", d)
			if kind == "thp" && (d.HugeSuccess == 0 || d.HugeSplit > d.HugeSuccess/10) {
				t.Errorf("huge pages were split instead of moved: %+v", d)
			}
		})
	}
}

func TestLabSpreadsOverNodes(t *testing.T) {
	inLab(t)
	withoutBalancing(t)
	for _, kind := range []string{"small", "thp"} {
		t.Run(kind, func(t *testing.T) {
			c := startChild(t, kind, held)
			result, err := Mover{PID: c.pid, Spread: true}.Move(t.Context(), c.r, nodes("1-2"))
			if err != nil || result.Failed != 0 || result.After[1] != held/4 || result.After[2] != held/4 {
				t.Errorf("%+v, error %v", result, err)
			}
			again, err := Mover{PID: c.pid, Spread: true}.Move(t.Context(), c.r, nodes("1-2"))
			if err != nil || again.Moved != 0 {
				t.Errorf("memory that is even was moved again: %+v, error %v", again, err)
			}
		})
	}
}

func TestLabMoveCanBeCancelledAndFinished(t *testing.T) {
	inLab(t)
	withoutBalancing(t)
	c := startChild(t, "small", held)
	ctx, cancel := context.WithCancel(t.Context())
	m := Mover{PID: c.pid, Chunk: 4 * mib, Progress: func(done, _ topology.Bytes) {
		if done >= 12*mib {
			cancel()
		}
	}}
	first, err := m.Move(ctx, c.r, nodes("2"))
	if !errors.Is(err, context.Canceled) || first.Before.Total()+first.Absent != 12*mib || first.Moved == 0 {
		t.Errorf("cancelled after 12 MiB: %+v, error %v", first, err)
	}
	var rest MoveResult
	for range 10 { // the kernel may hold single pages for a moment
		if rest, err = (Mover{PID: c.pid}).Move(t.Context(), c.r, nodes("2")); err != nil {
			t.Fatal(err)
		}
		if rest.After[2] == held/2 {
			return
		}
		t.Logf("not all moved: %+v", rest)
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the rest does not move: first %+v, then %+v", first, rest)
}

// fillNode leaves at most free bytes of a node unused, by a file in memory that
// prefers the node: the kernel spills to other nodes when the node is full, so
// it kills no process for lack of memory. empty removes the file.
func fillNode(t *testing.T, node int, left topology.Bytes) (empty func()) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := unix.Mount("none", folder, "tmpfs", 0, fmt.Sprintf("size=2G,mpol=prefer:%d", node)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(folder, 0) })
	path := filepath.Join(folder, "file")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const piece = 4 * mib
	for before := topology.Bytes(math.MaxInt64); ; {
		free := readTopology(t, "/").Nodes[node].Free
		if free <= left || free+piece/2 > before { // the rest spills to other nodes
			break
		}
		before = free
		if _, err := file.Write(make([]byte, piece)); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// The target fills up: the pages that fit move, the rest stays and is reported
// with its reason, and the process lives on.
func TestLabFullNodeIsReported(t *testing.T) {
	inLab(t)
	c := startChild(t, "small", held)
	c.touchRest(t) // more than the kernel reserves on a node for its own use
	before, err := Live.HugePool(3, 2*mib)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Live.GrowPool(3, 2*mib, 1<<20) // more than the node has: takes nearly all that is free
	if err != nil || got == 0 || got >= 1<<20 {
		t.Fatalf("grew by %d, error %v", got, err)
	}
	empty := fillNode(t, 3, 12*mib) // free pieces too small for huge pages
	result, err := Mover{PID: c.pid, Chunk: 4 * mib}.Move(t.Context(), c.r, nodes("3"))
	t.Logf("node 3 gave %d huge pages; then %+v, error %v", got, result, err)
	if !errors.Is(err, unix.ENOMEM) || result.Why["ENOMEM"] == 0 {
		t.Errorf("a full node is not reported as such: %v, error %v", result.Why, err)
	}
	// NUMA balancing may move pages between the other nodes meanwhile.
	if seen := c.byNumaMaps(t); seen[3] != result.Moved || seen.Total() != held {
		t.Errorf("reported as moved %v, numa_maps says %v", result.Moved, seen)
	}
	empty()
	if gone, err := Live.ShrinkPool(3, 2*mib, got); err != nil || gone != got {
		t.Errorf("gave back %d of %d, error %v", gone, got, err)
	}
	if after, err := Live.HugePool(3, 2*mib); err != nil || after.Total != before.Total {
		t.Errorf("pool before %+v, after %+v, error %v", before, after, err)
	}
	if result, err := (Mover{PID: c.pid}).Move(t.Context(), c.r, nodes("3")); err != nil || result.After[3] != held {
		t.Errorf("with room again: %+v, error %v", result, err)
	}
}

func TestLabFilePolicySteersNewFaults(t *testing.T) {
	inLab(t)
	c := startChild(t, "memfd", held)
	if err := Live.SetFilePolicy(c.pid, c.r.Address, guest.MemoryStrict, nodes("3")); err != nil {
		t.Fatal(err)
	}
	if got := policyAt(t, c.pid, c.r.Address); got != "bind:3" {
		t.Errorf("numa_maps of the child says %q", got)
	}
	c.touchRest(t)
	if seen := c.byNumaMaps(t); seen[0] != held/2 || seen[3] != held/2 {
		t.Errorf("allocated pages should stay and new ones follow the policy; found %v", seen)
	}
	if err := Live.SetFilePolicy(c.pid, c.r.Address, guest.MemoryNone, nodes("")); err != nil {
		t.Fatal(err)
	}
	if got := policyAt(t, c.pid, c.r.Address); got != "default" {
		t.Errorf("after taking the policy away: %q", got)
	}
}

// Kernel NUMA balancing makes entries inaccessible, and move_pages(2) of 6.1
// reports such pages as absent: Move must find and move them all the same.
func TestLabPagesThatBalancingHidesMove(t *testing.T) {
	inLab(t)
	setBalancing(t, "1")
	c := startChild(t, "small", held)
	if !becomesHidden(t, c) {
		t.Fatal("no page was hidden in a minute: this run tested nothing (kernels from 6.5 hide none)")
	}
	if err := Live.WriteSetting("/"+fileBalancing, "0"); err != nil { // or it moves pages back while they are counted
		t.Fatal(err)
	}
	result, err := Mover{PID: c.pid}.Move(t.Context(), c.r, nodes("3"))
	if err != nil || result.Hidden != 0 || result.Failed != 0 {
		t.Errorf("%+v, error %v", result, err)
	}
	if seen := c.byNumaMaps(t); seen[3] != held || len(seen) != 1 {
		t.Errorf("numa_maps says %v after %+v", seen, result)
	}
}

// becomesHidden keeps the child running until the balancing scanner, which
// works in running tasks, has marked some of the child's pages.
func becomesHidden(t *testing.T, c *memoryChild) bool {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		c.touchRest(t)
		if seen := sample(t, c.pid, c.r); seen.hidden > 0 {
			t.Logf("hidden: %d of %d pages", seen.hidden, seen.pages)
			return true
		}
	}
	return false
}

// The cgroup of a process that starts in a group of its own counts it page for
// page.
func TestLabNUMAMapsEqualsMemoryNUMAStat(t *testing.T) {
	inLab(t)
	mount, err := Live.CgroupMount()
	if err != nil {
		t.Fatal(err)
	}
	own, err := CreateOwn(t.Context(), mount, "test-stat", cpus(""), nodes("0-3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := own.EnableController("memory"); err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(own.file(""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = group.Close() }()
	// The child is born inside. This program is never there: the group would count what it touches meanwhile.
	c := startChildWith(t, "small", held, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())})
	m, err := Mover{
		PID: c.pid,
	}.Move(t.Context(), inventory.MemoryRange{Address: c.r.Address, Size: held / 4, PageSize: smallPage}, nodes("2"))
	if err != nil || m.Failed != 0 {
		t.Fatalf("%+v, error %v", m, err)
	}
	time.Sleep(3 * time.Second) // the group's figures are flushed every 2 s
	byGroup, source, err := own.Resident()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %v", source, byGroup)
	agree(t, byGroup, mapped(t, Live, c.pid, false))
	if byGroup[2] < held/4 {
		t.Errorf("moved pages are not counted on node 2: %v", byGroup)
	}
}

// A group of its own restricts a plain process: memory that it touches later
// lands on the group's nodes.
func TestLabPlainProcessIsRestricted(t *testing.T) {
	inLab(t)
	c := startChild(t, "small", held)
	if result, err := (Mover{PID: c.pid}).Move(t.Context(), c.r, nodes("2")); err != nil || result.Failed != 0 {
		t.Fatalf("%+v, error %v", result, err)
	}
	if err := Live.SetMems(t.Context(), c.pid, nodes("2")); err != nil {
		t.Fatal(err)
	}
	c.touchRest(t)
	if seen := c.byNumaMaps(t); seen[2] != held {
		t.Errorf("all memory should be on node 2: %v", seen)
	}
	threads, _, err := Live.Threads(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	bound := 0
	for _, x := range threads {
		if !x.Mems.Equal(nodes("2")) {
			t.Errorf("thread %d may use nodes %s", x.TID, x.Mems)
		}
		if x.Affinity.Equal(cpus("0-1")) {
			bound++
		}
	}
	if bound != 1 {
		t.Errorf("%d threads are bound to CPUs 0-1; entering the group should have left the one binding alone", bound)
	}
	if _, err := (Mover{PID: c.pid}).Move(t.Context(), c.r, nodes("1")); !errors.Is(err, unix.EACCES) ||
		!strings.Contains(err.Error(), "widen cpuset.mems") {
		t.Errorf("moving outside the cpuset: %v", err)
	}
	if err := Live.SetMems(t.Context(), c.pid, nodes("1-2")); err != nil { // the same group, widened
		t.Fatal(err)
	}
	if result, err := (Mover{PID: c.pid}).Move(t.Context(), c.r, nodes("1")); err != nil || result.After[1] != held {
		t.Errorf("after widening: %+v, error %v", result, err)
	}
}

func TestLabOwnGroupGoesWithItsProcess(t *testing.T) {
	inLab(t)
	mount, err := Live.CgroupMount()
	if err != nil {
		t.Fatal(err)
	}
	own, err := CreateOwn(t.Context(), mount, "test-ends", cpus("2-3"), nodes("1"))
	if err != nil {
		t.Fatal(err)
	}
	if have, err := own.EffectiveCPUs(); err != nil || !have.Equal(cpus("2-3")) {
		t.Errorf("CPUs %s, error %v", have, err)
	}
	if _, err := own.SetMems(t.Context(), nodes("77")); err == nil {
		t.Error("accepted a node that does not exist")
	}
	if err := RemoveEmptyOwn(mount); err != nil || !own.Exists() {
		t.Errorf("a group that was just made is gone: error %v", err)
	}
	if err := own.Remove(); err != nil || own.Exists() {
		t.Errorf("the group still exists: error %v", err)
	}
	if err := own.Remove(); err != nil {
		t.Errorf("removing a group that is gone: %v", err)
	}
}

func TestLabLaunchBindsMemory(t *testing.T) {
	inLab(t)
	if os.Getenv("NUMAVISOR_TEST_LAUNCH") != "" {
		t.Fatal(
			Launch{
				Args:  []string{"cat", "/proc/self/numa_maps"},
				Env:   os.Environ(),
				CPUs:  cpus("4-5"),
				Mode:  guest.MemoryStrict,
				Nodes: nodes("3"),
			}.Exec(),
		)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestLabLaunchBindsMemory$")
	child.Env = append(os.Environ(), "NUMAVISOR_TEST_LAUNCH=1")
	out, err := child.Output()
	if err != nil {
		t.Fatal(err)
	}
	mappings, _, err := ParseNUMAMaps(strings.NewReader(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	anon := byNode{}
	for _, m := range mappings {
		if m.File == "" {
			for node, amount := range m.ByNode() {
				anon[node] += amount
			}
		}
	}
	if anon[3] == 0 || len(anon) != 1 {
		t.Errorf("private memory of a program bound to node 3: %v", anon)
	}
}
