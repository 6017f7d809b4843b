package daemon_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// sampled notes when samples are taken.
type sampled struct {
	daemon.Watcher
	at *[]time.Time
}

func (s sampled) Sample() inventory.Sample {
	*s.at = append(*s.at, time.Now())
	return s.Watcher.Sample()
}

// beginsToWork lets a misplaced guest use CPUs after a time from now on; early reports whether it was sampled at once.
func (w *world) beginsToWork(after time.Duration, cpus float64, fails error) (early func() bool) {
	w.misplaced("a", 2, gib, "3", "0-1")
	var at []time.Time
	began := time.Now()
	w.watcher = func(inner daemon.Watcher) daemon.Watcher { return sampled{inner, &at} }
	w.used = func() (time.Duration, error) {
		return time.Duration(cpus * float64(max(0, time.Since(began)-after))), fails
	}
	w.load.Idle.Store(true)
	return func() bool {
		return slices.ContainsFunc(at, func(each time.Time) bool {
			since := each.Sub(began)
			return since > after && since < after+400*time.Millisecond
		})
	}
}

// Guests that begin to work between two samples are sampled at once, if degraded_for is short; else, and if the guests
// have no vCPUs for more, or what they use is not known, in the regular time.
func TestLook_SamplesGuestsThatBeginToWork(t *testing.T) {
	const regular, begins = 10 * time.Second, 10300 * time.Millisecond
	for name, c := range map[string]struct {
		degradedFor time.Duration
		cpus        float64
		fails       error
		soon        bool
	}{
		"surge":         {time.Second, 2, nil, true},
		"noise":         {time.Second, 0.1, nil, false},
		"long patience": {10 * time.Second, 2, nil, false},
		"not known":     {time.Second, 2, errors.New("no cgroup"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := auto("a")
			p.Balance.DegradedFor = policy.Duration(c.degradedFor)
			within(t, square, p, func(t *testing.T, w *world) {
				t.Helper()
				early := w.beginsToWork(begins, c.cpus, c.fails)
				w.start()
				time.Sleep(regular + 900*time.Millisecond)
				synctest.Wait()
				w.end()
				if early() != c.soon {
					t.Errorf("sampled at once: %v, want %v", early(), c.soon)
				}
			})
		})
	}
}

// Guests that begin to work soon after the daemon was resumed between two samples are sampled at once, too.
func TestLook_AfterAPause(t *testing.T) {
	const resumed, begins = 10100 * time.Millisecond, 10300 * time.Millisecond
	p := auto("a")
	p.Balance.DegradedFor = policy.Duration(time.Second)
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		began, early := time.Now(), w.beginsToWork(begins, 2, nil)
		w.start()
		time.Sleep(2500 * time.Millisecond)
		if err := w.d.Pause(t.Context(), 0, "load test"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(resumed)))
		if err := w.d.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(begins + 400*time.Millisecond)))
		synctest.Wait()
		w.end()
		if !early() {
			t.Error("not sampled at once")
		}
	})
}

// A host that does not show how much CPU time all guests have used is sampled in the regular time. Where two timers end
// at once, Go chooses one at random.
func TestLook_OfAHostThatShowsNothing(t *testing.T) {
	for range 20 {
		within(t, square, auto("a"), func(t *testing.T, w *world) {
			t.Helper()
			w.start()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			w.end()
		})
	}
}

// The connection by which guests are changed is opened at the start; an error of it ends nothing.
func TestConnect_AtTheStart(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		calls := 0
		w.connect = func(context.Context) error { calls++; return errors.New("no libvirtd") }
		w.start()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.end()
		if calls != 1 {
			t.Errorf("connected %d times", calls)
		}
	})
}
