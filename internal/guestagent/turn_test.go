package guestagent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// counting notes which files are read.
type counting struct {
	*fake
	reads map[string]int
}

func (c *counting) read(path string) (string, error) {
	c.reads[path]++
	return c.fake.read(path)
}

// While threads wait, the agent looks 50 times a second. On a slow vCPU a look that reads
// all that a report says takes the whole vCPU: the VM then neither works nor acknowledges in time.
func TestALookReadsOneFile(t *testing.T) {
	f := newFake(4)
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 3/120 99"
	c := &counting{f, map[string]int{}}
	a := start(t, f)
	a.k, a.parker.k, a.meter.k = c, c, c
	a.grant(grantOf(1, 0, 1, 2))
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	l := &loop{agent: a, options: Options{Log: t.Logf}, channel: ends[0], pressure: -1}
	l.turn(time.Now()) // measures and reports
	if l.last.Epoch != 1 {
		t.Fatalf("the first report is %+v", l.last)
	}
	l.measured, l.sent = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	clear(c.reads)
	const turns = 5
	for range turns {
		l.turn(time.Now())
	}
	looks := c.reads["/proc/loadavg"]
	delete(c.reads, "/proc/loadavg")
	if looks != turns || len(c.reads) > 0 {
		t.Errorf("%d looks read /proc/loadavg %d times, and others: %v", turns, looks, c.reads)
	}
}

// Threads that wait once are no demand: the kernel's own work is over a moment later. Those that wait at two looks are
// reported at once, with the lesser number. Without any thread looks soon end, until the kernel reports pressure.
func TestARiseIsSeenTwice(t *testing.T) {
	f := newFake(2)
	l := &loop{agent: start(t, f), channel: -1, pressure: 0}
	l.agent.grant(grantOf(1, 0, 1))
	var got []int64
	for _, threads := range []string{"3", "2", "6", "5", "2"} { // one of them is the agent
		f.files["/proc/loadavg"] = "0.00 0.00 0.00 " + threads + "/120 99"
		wait := l.timeout(time.Now())
		if n := l.look(); n > 0 && wait != confirm {
			t.Errorf("%d threads are reported after %v", n, wait)
		}
		got = append(got, l.doubt)
	}
	if want := []int64{0, 0, 5, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("seen once: %v, want %v", got, want)
	}
	if noted := l.agent.meter.threads; !slices.Equal(noted, []int64{1, 4, 4, 4, 4, 4, 1, 2}) {
		t.Errorf("noted are %v threads, the latest first; what waits once does not count, and a rise counts at once", noted)
	}
	for _, c := range []struct {
		threads string
		wait    time.Duration
	}{{"2", fast}, {"1", mid}} {
		f.files["/proc/loadavg"] = "0.00 0.00 0.00 " + c.threads + "/120 99"
		for range mostCalm {
			l.look()
		}
		if wait := l.timeout(time.Now()).Round(10 * time.Millisecond); wait != c.wait {
			t.Errorf("with %s threads, its own among them, the agent looks every %v, want %v", c.threads, wait, c.wait)
		}
	}
}

// After a grant threads wait for the kernel's own work: they are no demand, else each hand-over would cause the next.
func TestWorkOfAGrantIsNoDemand(t *testing.T) {
	f := newFake(4)
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 4/120 99"
	a := start(t, f)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	l := &loop{agent: a, options: Options{Log: t.Logf}, channel: ends[0], pressure: -1, doubt: 3,
		measured: time.Now().Add(time.Hour)}
	g := grantOf(1, 0, 1)
	line, err := guest.Encode(&g)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(ends[1], line); err != nil {
		t.Fatal(err)
	}
	l.turn(time.Now())
	if wait := l.timeout(time.Now()); l.last.Epoch != 1 || l.last.Waiting != 0 || l.doubt != 0 || wait < fast/2 {
		t.Errorf("after a grant: %+v, %d seen once, the next look in %v", l.last, l.doubt, wait)
	}
	// Real demand is still there.
	for range 4 {
		l.turn(time.Now())
	}
	if l.last.Running != 2000 || l.last.Waiting != 1000 {
		t.Errorf("three threads on two vCPUs are reported as %+v", l.last)
	}
}

// The host repeats a grant ten times a second while a parked vCPU runs all the same. The agent sees new threads
// meanwhile, and waits for that vCPU once, not at each message.
func TestRepeatedGrantsDoNotStopLooks(t *testing.T) {
	f := newFake(4)
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 2/120 99"
	a := start(t, f)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	l := &loop{agent: a, options: Options{Log: t.Logf}, channel: ends[0], pressure: -1}
	g := grantOf(1, 0, 1)
	line, err := guest.Encode(&g)
	if err != nil {
		t.Fatal(err)
	}
	f.busy[3], f.bound = true, true
	turn := func() {
		if _, err := unix.Write(ends[1], line); err != nil {
			t.Fatal(err)
		}
		l.turn(time.Now())
		var reports [4096]byte
		_, _ = unix.Read(ends[1], reports[:])
	}
	turn()
	if !l.last.Used.Has(3) {
		t.Fatalf("vCPU 3 runs, and is not reported: %+v", l.last)
	}
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 6/120 99"
	before, turns := f.now, 0
	for end := time.Now().Add(time.Second); l.last.Waiting < 2000 && time.Now().Before(end); turns++ {
		turn()
		time.Sleep(time.Millisecond)
	}
	if l.last.Running+l.last.Waiting != 5000 {
		t.Errorf("five threads are reported as %+v", l.last)
	}
	if waited := f.now - before; waited > time.Duration(turns+2)*look { // a measurement also looks
		t.Errorf("the agent waited for %v in %d messages that change nothing", waited, turns)
	}
	delete(f.busy, 3)
	if turn(); l.last.Used.Has(3) {
		t.Errorf("vCPU 3 is idle, and reported as used: %+v", l.last)
	}
}

// A hand-over does not read all interrupts: that takes as long as all the rest of it.
func TestAHandOverReadsNoInterrupts(t *testing.T) {
	f := newFake(4)
	c := &counting{f, map[string]int{}}
	a := start(t, f)
	a.k, a.parker.k, a.meter.k = c, c, c
	a.grant(grantOf(1, 0, 1, 2))
	a.tidy()
	clear(c.reads)
	a.grant(grantOf(2, 0, 1))
	a.tidy()
	if n := c.reads["/proc/irq/9/smp_affinity_list"]; n != 0 || f.files[irqFile("9")] != "0-1" {
		t.Errorf("IRQ 9 is read %d times, and goes to vCPUs %s", n, f.files["/proc/irq/9/smp_affinity_list"])
	}
	// A device that came since is found before long.
	f.files["/proc/irq/10/smp_affinity_list"] = "0-3"
	for _, at := range []time.Time{time.Unix(100, 0), time.Unix(111, 0)} {
		if err := a.measure(at); err != nil {
			t.Fatal(err)
		}
	}
	a.grant(grantOf(3, 0))
	a.tidy()
	if f.files["/proc/irq/10/smp_affinity_list"] != "0" {
		t.Errorf("IRQ 10 goes to vCPUs %s", f.files["/proc/irq/10/smp_affinity_list"])
	}
}

// Files that stay open show what is in them now, however long they are, also after they were
// replaced by others of their name.
func TestFilesThatStayOpen(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "cpuset.cpus.effective"), newLinux()
	for _, text := range []string{"0-3", "7", strings.Repeat("x", 100_000), ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := k.read(path); err != nil || got != text {
			t.Errorf("read %d bytes of %d: %v", len(got), len(text), err)
		}
	}
	if len(k.open) != 1 {
		t.Errorf("%d files are open", len(k.open))
	}
	whole, err := os.ReadFile("/proc/schedstat")
	if err != nil {
		t.Skip("the kernel has no CONFIG_SCHEDSTATS:", err)
	}
	got, err := k.read("/proc/schedstat")
	if err != nil || strings.Count(got, "\n")+1 != strings.Count(string(whole), "\n") {
		t.Errorf("read %s lines of %s: %v", strconv.Itoa(strings.Count(got, "\n")+1),
			strconv.Itoa(strings.Count(string(whole), "\n")), err)
	}
}

// A file that the agent writes again has nothing of what was in it: the limits of cgroups may be shorter.
func TestFilesAreReplaced(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "limits"), newLinux()
	if err := os.WriteFile(path, []byte(`{"user.slice":"0-3"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.write(path, "{}"); err != nil {
		t.Fatal(err)
	}
	if got, err := k.read(path); err != nil || got != "{}" {
		t.Errorf("%q, %v", got, err)
	}
}

// Looks take at most a twentieth of a vCPU: where one takes 4 ms, the agent looks every 80 ms, and never less often
// than twice for each report. What else the agent does makes looks no rarer.
func TestLooksAreAsRareAsTheirCostRequires(t *testing.T) {
	f := newFake(2)
	f.files["/proc/loadavg"] = "0.00 0.00 0.00 2/120 99"
	c := &costly{f, map[string]time.Duration{}}
	l := &loop{agent: start(t, f), channel: -1, pressure: -1, opened: time.Now()}
	l.agent.k, l.agent.parker.k, l.agent.meter.k = c, c, c
	for _, step := range []struct {
		look, measurement, wantLook, wantMeasurement time.Duration
	}{
		{50 * time.Microsecond, time.Millisecond, fast, 20 * time.Millisecond},
		{4 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond, 400 * time.Millisecond},
		{time.Second, time.Second, every / 2, every / 2},
		{50 * time.Microsecond, 10 * time.Millisecond, fast, 200 * time.Millisecond},
	} {
		c.takes["/proc/loadavg"], c.takes["/proc/stat"] = step.look, step.measurement-step.look
		l.looking, l.mean = nil, nil
		l.measured = time.Time{}
		l.turn(time.Now()) // measures
		l.turn(time.Now()) // looks
		if got := l.timeout(time.Now()); got != step.wantLook {
			t.Errorf("a look takes %v: the next one is after %v, want %v", step.look, got, step.wantLook)
		}
		if got := l.mean.pause(); got != step.wantMeasurement {
			t.Errorf("a measurement takes %v: the next one is after %v, want %v", step.measurement, got,
				step.wantMeasurement)
		}
	}
	c.takes["/proc/loadavg"] = 100 * time.Millisecond
	l.turn(time.Now())
	if got := l.timeout(time.Now()); got != fast {
		t.Errorf("after one look that was disturbed, the next one is after %v", got)
	}
	c.takes["/proc/loadavg"] = 4 * time.Millisecond
	for range lately {
		l.turn(time.Now())
	}
	f.own += time.Microsecond
	l.price(false, false)
	if got := l.looking.pause(); got != 80*time.Millisecond {
		t.Errorf("after a turn without a look, the next look is after %v", got)
	}
	c.takes["/proc/loadavg"] = 0
	f.own, l.measured = 0, time.Now() // another clock
	l.turn(time.Now())
	if got := l.timeout(time.Now()); got != fast {
		t.Errorf("after a clock that went back, the next look is after %v", got)
	}
}

// costly is a kernel whose files take time of the agent to read.
type costly struct {
	*fake
	takes map[string]time.Duration
}

func (c *costly) read(path string) (string, error) {
	c.own += c.takes[path]
	return c.fake.read(path)
}

// One thread works, and the kernel has work of its own now and then: that is demand, but brief. Threads that meet at
// barriers, on half as many vCPUs, all wait or run at half of the looks: none of them is brief.
func TestWorkOfTheKernelIsBrief(t *testing.T) {
	for _, c := range []struct {
		threads     []int64 // the latest first
		most, brief int64
	}{
		{[]int64{1, 2, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1}, 2, 1},
		{[]int64{6, 3, 6, 6, 3, 3, 6, 3, 6, 3, 6, 3}, 6, 0},
		{[]int64{6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 6, 5}, // more threads have just come
		{[]int64{6, 6, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1}, 6, 0},
		{[]int64{1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 6, 6}, 1, 0}, // they have gone
		{[]int64{3, 3}, 3, 0},                               // too few looks to tell
	} {
		f := newFake(4)
		a := start(t, f)
		a.grant(grantOf(1, 0, 1, 2, 3))
		a.meter.threads, a.meter.certain = c.threads, c.threads
		r := a.draft(-1)
		if r.Running+r.Waiting != 1000*c.most || r.Brief != 1000*c.brief || r.Check() != nil {
			t.Errorf("%v: %d threads, %d of them brief; want %d and %d: %v", c.threads, (r.Running+r.Waiting)/1000,
				r.Brief/1000, c.most, c.brief, r.Check())
		}
	}
}

// usage is a kernel whose vCPUs have used the given times, in ticks.
type usage struct {
	*fake
	ticks map[int]int
}

func (u *usage) read(path string) (string, error) {
	if path != "/proc/stat" {
		return u.fake.read(path)
	}
	text := ""
	for id, n := range u.ticks {
		text += fmt.Sprintf("cpu%d %d 0 0 0 0 0 0 0\n", id, n)
	}
	return text, nil
}

// One thread works on vCPU 2, and at half of the looks the kernel has work on vCPU 0, or on a parked one. That thread
// is certain, and the kernel's is brief: else the VM would hold a CPU that another one needs.
func TestThreadsWithoutABusyVCPUAreBrief(t *testing.T) {
	f := newFake(4)
	a := start(t, f)
	a.grant(grantOf(1, 0, 2))
	u := &usage{f, map[int]int{}}
	a.k, a.parker.k, a.meter.k = u, u, u
	l := &loop{agent: a, channel: -1, pressure: 0}
	for i, c := range []struct {
		handed    bool // vCPUs change hands in these 500 ms
		zero, two int  // the ticks that the vCPUs are busy in them
		wantBrief int64
	}{
		{false, 20, 45, 0}, // the first measurement says nothing
		{false, 5, 45, 1000},
		{false, 40, 45, 0}, // two threads work
		{false, 5, 45, 1000},
		{true, 5, 45, 0}, // threads are on more vCPUs than they need, or on fewer
		{false, 5, 45, 1000},
	} {
		if c.handed {
			a.grant(grantOf(uint64(10*i), 0, 1, 2))
			a.grant(grantOf(uint64(10*i+1), 0, 2))
		}
		u.ticks[0], u.ticks[2] = u.ticks[0]+c.zero, u.ticks[2]+c.two
		if err := a.measure(time.Unix(100, 0).Add(time.Duration(i) * time.Second / 2)); err != nil {
			t.Fatal(err)
		}
		for look := range long {
			f.files["/proc/loadavg"] = fmt.Sprintf("0.00 0.00 0.00 %d/120 99", 2+look%2) // one of them is the agent
			l.look()
		}
		if r := a.draft(-1); r.Running != 2000 || r.Waiting != 0 || r.Brief != c.wantBrief {
			t.Errorf("measurement %d: %+v, want %d of it brief", i, r, c.wantBrief)
		}
	}
}

// A write replaces all that a file holds. It makes no file: those of the kernel exist or do not.
func TestAWriteReplacesAFile(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "epoch"), newLinux()
	if err := k.write(path, "1"); err == nil {
		t.Error("a file that does not exist is written")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"123", "7", strings.Repeat("x", 100_000), ""} {
		if err := k.write(path, text); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("wrote %d bytes, read %d: %v", len(text), len(got), err)
		}
	}
}

// All threads of the program run on vCPU 0 alone after a change of the cgroup has let them go.
func TestThreadsGoHome(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	if !before.IsSet(home) {
		t.Skipf("CPU %d is not allowed to this program", home)
	}
	tids := ownThreads()
	if len(tids) < 2 {
		t.Fatalf("the program has threads %v", tids)
	}
	defer func() {
		for _, tid := range ownThreads() { // also those that began meanwhile
			_ = unix.SchedSetaffinity(tid, &before)
		}
	}()
	newLinux().goHome()
	for _, tid := range tids {
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &now); err == nil && (now.Count() != 1 || !now.IsSet(home)) {
			t.Errorf("thread %d may run on %d CPUs", tid, now.Count())
		}
	}
}

// Turns make the partitions that are due, one each, and what they take is no part of what a look costs: else looks
// would be rare while many vCPUs are parked.
func TestTurnsMakePartitionsOneAtATime(t *testing.T) {
	f := withPrograms(8)
	l := &loop{agent: start(t, f), options: Options{Log: t.Logf}, channel: -1, pressure: -1, opened: time.Now()}
	l.agent.grant(grantOf(1, 0))
	l.agent.setApart(time.Now().Add(-2 * apartAfter))
	l.agent.untidy = false
	for n := 1; n <= 7; n++ {
		l.turn(time.Now())
		if apart := f.apart(); apart.Len() != n {
			t.Fatalf("after %d turns the partitions are of vCPUs %v", n, apart)
		}
	}
	if pause := max(l.looking.pause(), l.mean.pause()); pause > fast {
		t.Errorf("the next look waits for %v", pause)
	}
}
