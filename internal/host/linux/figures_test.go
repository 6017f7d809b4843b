package linux

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCPUTimes(t *testing.T) {
	const text = `cpu  999 0 0 0 0 0 0 0 0 0
cpu0 10 2 3 100 50 4 5 6 7 8
cpu3 1 0 0 9 0 0 0 0 0 0
intr 12345 1 2 3
ctxt 5
`
	got, err := AppendCPUTimes(nil, []byte(text))
	want := []CPUTime{{0, 30, 180}, {3, 1, 10}} // guests' time (7, 8) is in user time already
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v\n%s", err, diff)
	}
	for _, bad := range []string{"cpu0 1 2 3\n", "cpux 1 2 3 4 5 6 7 8\n", "cpu0 1 2 3 4 5 6 7 -8\n", "cpu70000 1 " +
		"2 3 4 5 6 7 8\n", "cpu0 1 2 3 4 5 6 7 99999999999999999999\n"} {
		if got, err := AppendCPUTimes(nil, []byte(bad)); err == nil {
			t.Errorf("%q passed as %v", bad, got)
		}
	}
}

// The CPU's line is the same in all versions; domains' lines are not.
func TestRunDelays(t *testing.T) {
	for version, domain := range map[int]string{
		14: "domain0 00000003 1 1 0 0 0 0 0 0", 15: "domain0 00000003 1 1 0 0", 16: "domain0 03 5 5 5",
		17: "domain0 SMT 03 5 5 5",
	} {
		text := fmt.Sprintf(
			"version %d\ntimestamp 4295500000\ncpu0 0 0 1 2 3 4 900 1234567890123 77\n%s\ncpu5 0 0 1 2 3 4 5 6 "+
				"7\n%[2]s\n",
			version,
			domain,
		)
		got, err := AppendRunDelays(nil, []byte(text))
		want := []RunDelay{{0, 1234567890123}, {5, 6}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("version %d: error %v\n%s", version, err, diff)
		}
	}
	for _, text := range []string{"version 13\n", "version 18\ncpu0 1 2 3 4 5 6 7 8 9\n"} {
		if _, err := AppendRunDelays(nil, []byte(text)); !errors.Is(err, ErrSchedstatVersion) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9\n", "version x\n", "version 15\ncpu0 1 2 3\n",
		"version 15\ncpu0 1 2 3 4 5 6 7 many\n"} {
		if got, err := AppendRunDelays(nil, []byte(text)); err == nil {
			t.Errorf("%q passed as %v", text, got)
		}
	}
}

func TestSchedstatOfThreads(t *testing.T) {
	run, wait, err := ParseSchedstat([]byte("6631019860 36592756 739\n"))
	if run != 6631019860 || wait != 36592756 || err != nil {
		t.Errorf("run %v, wait %v, error %v", run, wait, err)
	}
	for _, text := range []string{"", "1", "a 2 3", "1 -2 3", "1 18446744073709551615 3"} {
		if _, _, err := ParseSchedstat([]byte(text)); err == nil {
			t.Errorf("%q passed", text)
		}
	}
}

func TestMemFree(t *testing.T) {
	for text, want := range map[string]uint64{
		"Node 3 MemTotal:  2048 kB\nNode 3 MemFree:   1024 kB\nNode 3 MemUsed: 1 kB\n": 1024 << 10,
		"MemTotal:  2048 kB\nMemFree: 0 kB\n":                                          0,
	} {
		if got, err := ParseMemFree([]byte(text)); err != nil || uint64(got) != want {
			t.Errorf("%q: %v, error %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MemTotal: 1 kB\n", "MemFree: x kB\n", "MemFree: 1\n", "MemFree: 1 MB\n",
		"MemFree: 18446744073709551615 kB\n"} {
		if got, err := ParseMemFree([]byte(text)); err == nil {
			t.Errorf("%q passed as %v", text, got)
		}
	}
	if _, err := ParseMemFree([]byte("nothing")); !errors.Is(err, ErrNoMemFree) {
		t.Error(err)
	}
}

func TestMigrationsThatRanBackwardsAreNone(t *testing.T) {
	got := Migrations{Success: 5, BalancingMoved: 7}.Since(Migrations{Success: 9, BalancingMoved: 4, HugeFail: 1})
	if want := (Migrations{BalancingMoved: 3}); got != want {
		t.Errorf("%+v", got)
	}
}

func FuzzLoopParsers(f *testing.F) {
	for _, text := range []string{
		"cpu  1 2\ncpu0 10 2 3 100 50 4 5 6 7 8\n", "version 15\ncpu0 0 0 1 2 3 4 900 12 77\ndomain0 ff 1\n", "1 2 3\n",
		"Node 0 MemFree: 12 kB\n", "total=1 N0=1\n", "anon N0=1 N1=2\nshmem N1=3\n", "Unavailable\n",
		"res:/\nmon:numavisor-7\n", hintFaults,
		statLine("CPU 0/KVM"), statLine("a) R 1 (b"), "vendor_id : GenuineIntel\nmodel : 85\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if times, err := AppendCPUTimes(nil, data); err == nil {
			for _, c := range times {
				if c.CPU < 0 || c.CPU > maxCPU {
					t.Errorf("CPU %d", c.CPU)
				}
			}
		}
		if delays, err := AppendRunDelays(nil, data); err == nil {
			for _, d := range delays {
				if d.CPU < 0 || d.CPU > maxCPU || d.Wait < 0 {
					t.Errorf("%+v", d)
				}
			}
		}
		if run, wait, err := ParseSchedstat(data); err == nil && (run < 0 || wait < 0) {
			t.Errorf("run %v, wait %v", run, wait)
		}
		if faults, err := ParseHintFaults(data); err == nil && faults.Memory == nil {
			t.Error("no memory next to no error")
		}
		_, _ = ParseMemFree(data)
		_, _ = ParseBandwidth(data)
		_, _ = ParseCount(data)
		_, _ = parseNodeLoadsAreLocal(string(data))
		if control, _, err := ParseResctrlGroups(data); err == nil && strings.Contains(control, "..") {
			t.Errorf("control group %q leads out", control)
		}
		// The quick readers say what the careful ones say.
		if whole, err := ParseStat(data); err == nil {
			if cpu, err := ParseLastCPU(data); err != nil || cpu != whole.LastCPU {
				t.Errorf("last CPU %d, error %v; ParseStat says %d", cpu, err, whole.LastCPU)
			}
		}
		if whole, err := ParseNUMAStat(data); err == nil {
			quick := byNode{}
			if err := addResident(quick, data); err != nil {
				t.Errorf("%v; ParseNUMAStat takes it", err)
			}
		} else if whole != nil {
			t.Error("figures next to an error")
		}
	})
}

func TestQuickReadersOfTheLoopAllocateNothing(t *testing.T) {
	stat, cpu := []byte(statLine("CPU 0/KVM")), []byte("cpu0 10 2 3 100 50 4 5 6 7 8\n")
	numa, sched := []byte("anon N0=1 N1=2\nfile N0=1 N1=1\nshmem N0=4 N1=3\n"), []byte(
		"version 15\ncpu0 0 0 1 2 3 4 900 12 77\n")
	into, times, delays := byNode{0: 0, 1: 0}, make([]CPUTime, 0, 4), make([]RunDelay, 0, 4)
	var failed error
	note := func(err error) { failed = errors.Join(failed, err) }
	allocations := testing.AllocsPerRun(100, func() {
		_, err := ParseLastCPU(stat)
		note(err)
		_, _, err = ParseSchedstat([]byte("1 2 3\n"))
		note(err)
		_, err = AppendCPUTimes(times[:0], cpu)
		note(err)
		_, err = AppendRunDelays(delays[:0], sched)
		note(err)
		note(addResident(into, numa))
	})
	if allocations > 0 || failed != nil {
		t.Errorf("%v allocations, error %v", allocations, failed)
	}
}

func TestPerfCountsAreScaled(t *testing.T) {
	for _, c := range []struct {
		before, now PerfCount
		want        float64
	}{
		{PerfCount{}, PerfCount{100, time.Second, time.Second}, 100},
		// half the time without a place
		{PerfCount{100, time.Second, time.Second}, PerfCount{200, 3 * time.Second, 2 * time.Second}, 200},
		// all the time
		{PerfCount{100, time.Second, time.Second}, PerfCount{100, 2 * time.Second, time.Second}, 0},
		{PerfCount{100, time.Second, time.Second}, PerfCount{50, 2 * time.Second, 2 * time.Second}, 0}, // backwards
		{PerfCount{}, PerfCount{}, 0},
	} {
		if got := c.now.Since(c.before); got != c.want {
			t.Errorf("from %+v to %+v: %v, want %v", c.before, c.now, got, c.want)
		}
	}
	if _, err := parsePerfCount(nil); err == nil {
		t.Error("a counter in error state passed")
	}
}

func TestNodeLoadsAreLocal(t *testing.T) {
	for text, want := range map[string]bool{
		// Skylake
		"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\nprocessor : 1\nvendor_id : " +
			"x\n": true,
		"vendor_id : GenuineIntel\nmodel : 63\n": true,  // Haswell
		"vendor_id : GenuineIntel\nmodel : 45\n": false, // Sandy Bridge
		"vendor_id : AuthenticAMD\nmodel : 2\n":  false,
	} {
		if got, err := parseNodeLoadsAreLocal(text); err != nil || got != want {
			t.Errorf("%q: %v, error %v", text, got, err)
		}
	}
	if _, err := parseNodeLoadsAreLocal("CPU implementer : 0x41\n"); !errors.Is(err, ErrNodeLoadsMeaning) {
		t.Error(err)
	}
}

// Whether this machine has a PMU or not: a counter opens, or the error says why not.
func TestOpenNodeEvent_OpensOrGivesTheReason(t *testing.T) {
	lockThread()
	c, err := OpenNodeEvent(0, NodeLoads)
	var perf *PerfError
	switch {
	case err == nil:
		defer c.Close()
		if _, err := c.Read(); err != nil {
			t.Error(err)
		}
	case !errors.As(err, &perf) || !strings.Contains(err.Error(), "node-loads"):
		t.Error(err)
	}
}
