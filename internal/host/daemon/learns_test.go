package daemon_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// slice is the duration of copying one slice in these tests.
const slice = 500 * time.Millisecond

func slowly(c fake.Call) error {
	if c.Method == "Move" {
		time.Sleep(slice)
	}
	return nil
}

// The daemon learns the copy rate from its moves, plans with it, shows it with
// the plans, and remembers it across restarts.
func TestCopyRate_IsLearned(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.policy.Balance.Pace = 100 * mib // it pauses between slices
		w.Inject(fake.Fault{Before: slowly})
		w.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if rate := w.status().MoverBytesPerSecond; rate != 0 {
			t.Errorf("%v a second are known before the first copy", rate)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		done := w.entries(journal.MoveDone)
		if len(done) != 1 || done[0].Moved < 900*mib {
			t.Fatalf("done: %+v", done)
		}
		slices := 0
		for _, c := range w.Calls() {
			if c.Method == "Move" {
				slices++
			}
		}
		if e := done[0]; e.Copied != time.Duration(slices)*slice || e.Took <= e.Copied {
			t.Errorf("copied for %v of %v, in %d slices of %v each", e.Copied, e.Took, slices, slice)
		}
		want := float64(done[0].Moved) / done[0].Copied.Seconds()
		near := func(rate topology.Bytes) bool { return math.Abs(float64(rate)-want) < 2 }
		if rate := w.status().MoverBytesPerSecond; !near(rate) {
			t.Errorf("%v a second are known, %v were copied", rate, want)
		}
		w.end()
		w.policy.Balance.Pace = 0
		w.misplaced("c", 2, gib, "3", "4-5") // of unmanaged guests
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		s := w.status()
		if !near(s.MoverBytesPerSecond) {
			t.Errorf("after a restart %v a second are known, %v were copied", s.MoverBytesPerSecond, want)
		}
		if len(s.Advice) != 1 {
			t.Fatalf("advice %+v", s.Advice)
		}
		m := s.Advice[0].Move
		if m.Cost.BytesPerSecond != s.MoverBytesPerSecond || m.Cost.RateFrom != "measured here" ||
			!strings.Contains(m.Why, "a second (measured here)") {
			t.Errorf("planned with %v a second (%s): %s", m.Cost.BytesPerSecond, m.Cost.RateFrom, m.Why)
		}
		if took := float64(m.Cost.Bytes) / want; math.Abs(m.Cost.Took.Seconds()-took) > 0.01 {
			t.Errorf("planned to take %v, %v s at the rate known", m.Cost.Took, took)
		}
	})
}

// Moves that copied little do not set the rate.
func TestCopyRate_IgnoresSmallMoves(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, 32*mib, "3", "0-1")
		w.Inject(fake.Fault{Before: slowly})
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || done[0].Moved == 0 || done[0].Copied == 0 {
			t.Fatalf("done: %+v", done)
		}
		if rate := w.status().MoverBytesPerSecond; rate != 0 {
			t.Errorf("%v a second are known", rate)
		}
	})
}

// A move that was copied and rolled back sets the rate, too.
func TestCopyRate_IsLearnedFromAFailedMove(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		n := 0
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Move" {
				time.Sleep(slice)
				if n++; n == 4 || n == 5 { // it is resumed once, then undone
					return errors.New("no more")
				}
			}
			return nil
		}})
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		ended := w.entries(journal.MoveDone, journal.MovePartial, journal.MoveFailed, journal.MoveUndone)
		if len(ended) == 0 || ended[0].Kind == journal.MoveDone || ended[0].Moved < 64*mib {
			t.Fatalf("ended: %+v", ended)
		}
		if rate := w.status().MoverBytesPerSecond; rate == 0 {
			t.Error("no rate is known")
		}
	})
}
