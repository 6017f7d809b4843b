package linux

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// ownMemory maps anonymous small pages and touches the first of them.
func ownMemory(t *testing.T, size, touched topology.Bytes) (memory []byte, r inventory.MemoryRange) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	for i := 0; i < int(touched); i += int(smallPage) {
		memory[i] = 1
	}
	return memory, inventory.MemoryRange{Address: addressOf(memory), Size: size, PageSize: smallPage}
}

func addressOf(memory []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&memory[0]))) }

// needMovePages skips where the kernel has no move_pages(2) (no CONFIG_NUMA, or a sandbox forbids it).
func needMovePages(t *testing.T) {
	t.Helper()
	memory, _ := ownMemory(t, smallPage, smallPage)
	status := []int32{0}
	if err := queryPages(os.Getpid(), []uint64{addressOf(memory)}, status); errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.EPERM) {
		t.Skipf("move_pages(2) is not available to this test: %v", err)
	}
}

func sumOf[K comparable, V ~uint64](m map[K]V) (sum V) {
	for _, v := range m {
		sum += v
	}
	return sum
}

func TestMove_PagesAlreadyOnTheTarget(t *testing.T) {
	needMovePages(t)
	_, r := ownMemory(t, 4*mib, 2*mib)
	here := sample(t, os.Getpid(), r).nodes
	var reported []topology.Bytes
	paced := false
	m := Mover{PID: os.Getpid(), Chunk: mib, Progress: func(done, total topology.Bytes) {
		reported = append(reported,
			done)
	},
		Pace: func(context.Context, topology.Bytes) error { paced = true; return nil }}
	result, err := m.Move(t.Context(), r, here)
	if err != nil || result.Moved != 0 || result.Failed != 0 || result.Absent != 2*mib ||
		sumOf(result.After) != 2*mib ||
		paced {
		t.Errorf("%+v, paced %v, error %v", result, paced, err)
	}
	if len(reported) != 4 || reported[3] != r.Size || reported[0] != mib {
		t.Errorf("progress %v", reported)
	}
}

func TestMove_NodeDoesNotExist(t *testing.T) {
	needMovePages(t)
	_, r := ownMemory(t, mib, mib)
	result, err := Mover{PID: os.Getpid()}.Move(t.Context(), r, nodes("1023"))
	var refused *MoveError
	if !errors.As(err, &refused) || !errors.Is(err, unix.ENODEV) {
		t.Fatalf("error %v", err)
	}
	if result.Failed != mib || result.Why["ENODEV"] != 256 || outside(result, nodes("1023")) != mib {
		t.Errorf("%+v", result)
	}
	if _, err := (Mover{PID: os.Getpid()}).Move(t.Context(), r, nodes("")); err == nil {
		t.Error("moved to no node")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Mover{PID: os.Getpid()}).Move(ctx, r, nodes("1023")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	stop := errors.New("guest degraded")
	if _, err := (Mover{PID: os.Getpid(), Pace: func(context.Context,
		topology.Bytes) error {
		return stop
	}}).Move(t.Context(), r, nodes("1023")); !errors.Is(
		err,
		stop,
	) {
		t.Errorf("pace said stop: %v", err)
	}
}

func TestMoveError_GivesARemedy(t *testing.T) {
	for errno, advice := range map[unix.Errno]string{unix.EACCES: "widen cpuset.mems", unix.ENOMEM: "free some",
		unix.EPERM: "run as root", unix.ESRCH: "has ended", unix.ENODEV: "no memory"} {
		err := &MoveError{PID: 7, Address: 0x1000, Nodes: nodes("2"), Err: errno}
		if text := err.Error(); !strings.Contains(text, advice) ||
			!strings.Contains(text, "process 7 at 0x1000 to nodes 2") {
			t.Error(text)
		}
	}
}

func TestFileOfAMappingIsFoundByItsInode(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "ram")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	root := files(t, map[string]string{"proc/7/fd/none": ""}) // no map_files, as without permission to read them
	if err := os.Symlink(file.Name(), root.proc(7, "fd", "3")); err != nil {
		t.Fatal(err)
	}
	got, err := root.openMapped(7, Area{Path: file.Name(), Inode: inodeOf(info)})
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
	if _, err := root.openMapped(7, Area{Path: file.Name(), Inode: inodeOf(info) + 1}); !errors.Is(
		err,
		os.ErrNotExist,
	) {
		t.Errorf("another file of the same name was opened: %v", err)
	}
}

func TestMoveError_DistinguishesAnEndedProcess(t *testing.T) {
	needMovePages(t)
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	_, r := ownMemory(t, mib, 0)
	if _, err := (Mover{PID: child.Process.Pid}).Move(t.Context(), r, nodes("0")); !errors.Is(err, unix.ESRCH) {
		t.Errorf("error %v", err)
	}
}

// A process that is ending, or has ended and is not reaped yet, has no memory:
// the kernel then answers EINVAL.
func TestMoveError_DistinguishesAnEndingProcess(t *testing.T) {
	needMovePages(t)
	child := exec.Command("cat")
	hold, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := hold.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }() // cat has no failure to report
	stat := Live.proc(child.Process.Pid, "stat")
	for text := []byte{}; !bytes.Contains(text, []byte(") Z ")); {
		if text, err = os.ReadFile(stat); err != nil {
			t.Fatal(err)
		}
	}
	_, r := ownMemory(t, mib, 0)
	_, err = (Mover{PID: child.Process.Pid}).Move(t.Context(), r, nodes("0"))
	if !errors.Is(err, unix.ESRCH) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("error %v", err)
	}
}

func TestUncoverReadsPastPagesThatCannotBeRead(t *testing.T) {
	_, r := ownMemory(t, mib, mib)
	w := newWindow(os.Getpid(), process(os.Getpid()), r.Address, 256, smallPage)
	for i := range w.hidden {
		w.hidden[i] = true
	}
	w.addresses[3], w.addresses[200] = 0x10, 0x20 // no mapping there
	if n := w.uncover(); n != 254 {
		t.Errorf("read %d of 254 pages", n)
	}
}

func TestFindHiddenAsksThePageTable(t *testing.T) {
	_, r := ownMemory(t, mib, mib/2)
	w := newWindow(os.Getpid(), process(os.Getpid()), r.Address, 256, smallPage)
	for i := range w.statuses {
		w.statuses[i] = -int32(unix.ENOENT) // as a kernel reports pages that it does not see
	}
	w.statuses[0] = 0
	if err := w.findHidden(); err != nil {
		t.Fatal(err)
	}
	for i, hidden := range w.hidden {
		if want := i > 0 && i < 128; hidden != want {
			t.Fatalf("page %d: hidden %v", i, hidden)
		}
	}
}

func TestAtMost(t *testing.T) {
	pace := AtMost(topology.GiB)
	begin := time.Now()
	for range 3 {
		if err := pace(t.Context(), 50*mib); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took < 90*time.Millisecond {
		t.Errorf("100 MiB before the third chunk took %v at 1 GiB/s", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pace(ctx, mib); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if AtMost(0) != nil {
		t.Error("AtMost(0) limited the rate")
	}
}

func TestSetFilePolicyOfOwnMemfd(t *testing.T) {
	needMovePages(t)
	fd, err := unix.MemfdCreate("ram of a test", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(mib)); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	for _, c := range []struct {
		mode guest.MemoryMode
		want string
	}{{guest.MemoryStrict, "bind:0"}, {guest.MemoryPreferred, "prefer:0"}, {guest.MemoryInterleave,
		"interleave:0"}, {guest.MemoryNone, "default"}} {
		if err := Live.SetFilePolicy(os.Getpid(), addressOf(memory), c.mode, nodes("0")); err != nil {
			t.Fatal(err)
		}
		if got := policyAt(t, os.Getpid(), addressOf(memory)); got != c.want {
			t.Errorf("mode %s: numa_maps says %q, want %q", c.mode, got, c.want)
		}
	}
	if err := Live.SetFilePolicy(os.Getpid(), addressOf(memory), "gentle", nodes("0")); err == nil ||
		!strings.Contains(err.Error(), "allowed") {
		t.Errorf("unknown mode: %v", err)
	}
	if err := Live.SetFilePolicy(os.Getpid(), addressOf(memory), guest.MemoryStrict, nodes("")); err == nil {
		t.Error("bound to no node")
	}
	if err := Live.SetFilePolicy(os.Getpid(), addressOf(memory), guest.MemoryStrict, nodes("1023")); !errors.Is(
		err,
		unix.EINVAL,
	) {
		t.Errorf("a node that does not exist: %v", err)
	}
	_, anonymous := ownMemory(t, mib, mib)
	if err := Live.SetFilePolicy(os.Getpid(), areaHolding(t, anonymous.Address), guest.MemoryStrict,
		nodes("0")); !errors.Is(
		err,
		ErrPolicyFixed,
	) {
		t.Errorf("anonymous memory: %v", err)
	}
	if err := Live.SetFilePolicy(os.Getpid(), 0x10, guest.MemoryStrict, nodes("0")); err == nil ||
		!strings.Contains(err.Error(), "observe again") {
		t.Errorf("no mapping: %v", err)
	}
}

func areaHolding(t *testing.T, address uint64) uint64 {
	t.Helper()
	areas, err := Live.Maps(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range areas {
		if a.Start <= address && address < a.End {
			return a.Start
		}
	}
	t.Fatalf("%#x is not mapped", address)
	return 0
}

func policyAt(t *testing.T, pid int, address uint64) string {
	t.Helper()
	mappings, _, err := Live.NUMAMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mappings {
		if m.Address == address {
			return m.Policy
		}
	}
	t.Fatalf("process %d maps nothing at %#x", pid, address)
	return ""
}

// TestLaunch runs this test program as the child that becomes cat.
func TestLaunch(t *testing.T) {
	if os.Getenv("NUMAVISOR_TEST_LAUNCH") != "" {
		l := Launch{
			Args:  []string{"cat", "/proc/self/numa_maps", "/proc/self/status"},
			Env:   os.Environ(),
			CPUs:  cpus("0"),
			Mode:  guest.MemoryStrict,
			Nodes: nodes("0"),
		}
		t.Fatal(l.Exec())
	}
	needMovePages(t)
	if all, err := Affinity(0); err != nil || !all.Contains(0) {
		t.Skipf("this test may not use CPU 0 (%s, %v)", all, err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestLaunch$")
	child.Env = append(os.Environ(), "NUMAVISOR_TEST_LAUNCH=1")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if text := string(out); !strings.Contains(text, " bind:0 ") || !strings.Contains(text, "Cpus_allowed_list:\t0\n") {
		t.Errorf("the program did not inherit policy or affinity:\n%s", text)
	}
	if err := (Launch{}).Exec(); err == nil {
		t.Error("ran nothing")
	}
	if err := (Launch{Args: []string{"no-such-program-here"}}).Exec(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}
