package daemon_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// accepted makes an operator accept a move of guest a, which is in mode advise.
func accepted(t *testing.T, w *world) {
	t.Helper()
	w.busy("b", "3", "12-15")
	w.misplaced("a", 2, gib, "3", "0-1")
	w.start()
	time.Sleep(30 * time.Second)
	synctest.Wait()
	advice := w.status().Advice
	if len(advice) != 1 {
		t.Fatalf("advice %+v: this run tested nothing", advice)
	}
	if err := w.d.Accept(t.Context(), advice[0].ID); err != nil {
		t.Fatal(err)
	}
}

// A step of an accepted move fails once: the daemon retries and completes the
// move, and does not report its guest as changed by others.
func TestMove_FailingStepIsRetried(t *testing.T) {
	for n := 1; n <= 5; n++ {
		within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
			t.Helper()
			var failed atomic.Bool
			w.Inject(
				fake.Fault{
					Before: fake.NthOf("Move", n, func() error { failed.Store(true); return errors.New("it broke") }),
				},
			)
			accepted(t, w)
			defer w.end()
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if !failed.Load() {
				t.Fatalf("copy %d: there is none: this run tested nothing", n)
			}
			if done, began := w.entries(journal.MoveDone), w.entries(journal.MoveBegan); len(done) != 1 ||
				len(began) != 1 ||
				w.share("a", "0") < 0.98 {
				t.Errorf("copy %d: began %+v, done %+v, on node 0: %v", n, began, done, w.share("a", "0"))
			}
			if wrong := w.entries(journal.Drifted, journal.MovePartial, journal.MoveFailed, journal.MoveUndone); len(
				wrong,
			) != 0 {
				t.Errorf("copy %d: %+v", n, wrong)
			}
		})
	}
}

// A step fails at every attempt: the daemon undoes the move and reports it as
// failed, and the guest does not stay in between.
func TestMove_PersistentFailureIsUndone(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Configure" {
				return errors.New("its definition is read-only")
			}
			return nil
		}})
		accepted(t, w)
		defer w.end()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		undone := w.entries(journal.MoveUndone)
		if len(undone) != 1 || undone[0].Cancelled || w.share("a", "3") < 0.98 {
			t.Errorf("undone %+v, %.2f of it is where it was", undone, w.share("a", "3"))
		}
		if s := w.status(); s.Totals.MovesFailed != 1 ||
			!slices.ContainsFunc(s.Alarms, func(a alarm.Alarm) bool { return a.Quantity == alarm.StuckMove }) {
			t.Errorf("%+v, alarms %+v", s.Totals, s.Alarms)
		}
		if wrong := w.entries(journal.Drifted, journal.MovePartial, journal.MoveFailed); len(wrong) != 0 {
			t.Errorf("%+v", wrong)
		}
	})
}
