package daemon_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// slowWatcher takes some time for each sample, and counts them.
type slowWatcher struct {
	daemon.Watcher
	takes time.Duration
	part  bool // a slow source has not measured all guests
	count *atomic.Int64
}

func (w slowWatcher) Sample() inventory.Sample {
	time.Sleep(w.takes)
	w.count.Add(1)
	s := w.Watcher.Sample()
	s.Unmeasured = w.part
	return s
}

// On a calm host samples take a twentieth of the time, and are 15 s or half of degraded_for apart at most. Where a
// guest is degraded, they are as regular as ever, unless they take more than half of the time.
func TestRun_SamplesOfACalmHostTakeATwentiethOfTheTime(t *testing.T) {
	const long, short = policy.Duration(time.Minute), policy.Duration(10 * time.Second)
	for _, c := range []struct {
		name        string
		takes       time.Duration
		degradedFor policy.Duration
		degraded    bool
		part        bool
		from, upTo  int64 // samples in a minute
	}{
		{"fast", 10 * time.Millisecond, short, false, false, 60, 61},
		{"slow", 300 * time.Millisecond, long, false, false, 9, 11},
		{"slow, and guests may move soon after they begin", 300 * time.Millisecond, short, false, false, 11, 13},
		{"very slow", 5 * time.Second, long, false, false, 3, 5},
		{"slow, and a guest is far from its memory", 300 * time.Millisecond, long, true, false, 59, 65},
		{"very slow, and a guest is far from its memory", 2 * time.Second, long, true, false, 14, 16},
		{"slow, and not all is measured", 300 * time.Millisecond, long, false, true, 59, 65},
	} {
		advise := policy.Policy{Balance: policy.Balance{Mode: policy.ModeAdvise, DegradedFor: c.degradedFor}}
		within(t, square, advise, func(t *testing.T, w *world) {
			t.Helper()
			var count atomic.Int64
			w.watcher = func(of daemon.Watcher) daemon.Watcher { return slowWatcher{of, c.takes, c.part, &count} }
			w.busy("b", "3", "12-15")
			if c.degraded {
				w.misplaced("a", 2, gib, "3", "0-1")
			}
			w.start()
			defer w.end()
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			before := count.Load()
			time.Sleep(time.Minute)
			if n := count.Load() - before; n < c.from || n > c.upTo {
				t.Errorf("%s: %d samples in a minute, want %d to %d", c.name, n, c.from, c.upTo)
			}
		})
	}
}

// A guest that starts on a calm host is seen at the next regular time.
func TestRun_SeesAGuestThatStartsOnACalmHost(t *testing.T) {
	advise := policy.Policy{Balance: policy.Balance{Mode: policy.ModeAdvise, DegradedFor: policy.Duration(time.Minute)}}
	within(t, square, advise, func(t *testing.T, w *world) {
		t.Helper()
		var count, pid atomic.Int64
		w.watcher = func(of daemon.Watcher) daemon.Watcher { return slowWatcher{of, 300 * time.Millisecond, false, &count} }
		w.roster = func() string { return strconv.FormatInt(pid.Load(), 10) }
		w.busy("b", "3", "12-15")
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		for before := count.Load(); count.Load() == before; {
			time.Sleep(100 * time.Millisecond)
		}
		before := count.Load()
		pid.Add(1)
		time.Sleep(2 * time.Second)
		if count.Load() == before {
			t.Error("no sample within two seconds of the start of a guest")
		}
	})
}
