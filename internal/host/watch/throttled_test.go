package watch

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// A guest that its own quota holds back does not wait for a CPU, though the
// kernel counts it as waiting: no other CPU would help it.
func TestSample_ThrottledTimeIsNotWaiting(t *testing.T) {
	w := newWorld(t, 2, 2)
	v := w.add("limited", 500, byNode{0: gib}, 0)
	free := w.add("free", 600, byNode{1: gib}, 2)
	vcpu := "sys/fs/cgroup/" + v.group() + "/vcpu0"
	throttled := func(micros int) {
		w.write(
			fmt.Sprintf(
				"usage_usec 1\nuser_usec 1\nsystem_usec 0\nnr_periods 9\nnr_throttled 8\nthrottled_usec "+
					"%d\nnr_bursts 0\nburst_usec 0\n",
				micros,
			),
			vcpu,
			"cpu.stat",
		)
	}
	w.write("max 100000\n", "sys/fs/cgroup", v.group(), "cpu.max")
	w.write("max 100000\n", "sys/fs/cgroup", free.group(), "cpu.max")
	w.write("25000 100000\n", vcpu, "cpu.max")
	throttled(5_000_000)
	eyes := w.watcher(Options{})
	w.follow(eyes)
	eyes.Sample()
	waits := func() (limited, free float64) {
		for _, g := range eyes.Sample().Guests {
			if g.Name == "limited" {
				limited = g.Load.Wait
			} else {
				free = g.Load.Wait
			}
		}
		return limited, free
	}
	for i, c := range []struct {
		micros int
		want   float64
	}{
		{5_700_000, 0.05}, // of 0.75 s, the quota caused 0.7 s
		{5_700_000, 0.75}, // none
		{9_000_000, 0},    // more than it waited: the figures are not from the same moment
		{100, 0.75},       // the counter restarted
	} {
		w.pass(time.Second, 0.25, 0.75)
		throttled(c.micros)
		limited, free := waits()
		if math.Abs(limited-c.want) > 1e-6 || math.Abs(free-0.75) > 1e-6 {
			t.Errorf("sample %d: waits %.3f, want %.3f; the other %.3f, want 0.75", i, limited, c.want, free)
		}
	}
}
