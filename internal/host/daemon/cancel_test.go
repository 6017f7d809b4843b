package daemon_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/journal"
)

// cancels cancels a move after some of its memory has been copied.
func cancels(t *testing.T, w *world) {
	t.Helper()
	w.busy("b", "3", "12-15")
	w.misplaced("a", 2, gib, "3", "0-1")
	w.start()
	time.Sleep(40 * time.Second)
	synctest.Wait()
	moving := w.status().Moving
	if share := w.share("a", "0"); len(moving) != 1 || share == 0 || share == 1 {
		t.Fatalf("%.2f copied, moving %+v: this run tested nothing", share, moving)
	}
	if err := w.d.Cancel(t.Context(), moving[0].ID); err != nil {
		t.Fatal(err)
	}
}

// notFailed checks that one move was undone and that none counts as failed.
func (w *world) notFailed() {
	w.t.Helper()
	undone := w.entries(journal.MoveUndone)
	if len(undone) != 1 || !undone[0].Cancelled || w.share("a", "3") < 0.98 {
		w.t.Errorf("undone %+v, %.2f of it is where it was", undone, w.share("a", "3"))
	}
	s := w.status()
	if s.Totals.MovesFailed != 0 ||
		slices.ContainsFunc(s.Alarms, func(a alarm.Alarm) bool { return a.Quantity == alarm.StuckMove }) {
		w.t.Errorf("%+v, alarms %+v", s.Totals, s.Alarms)
	}
}

// A move that an operator cancels has not failed: neither this daemon nor the
// next one raises an alarm.
func TestCancel_IsNoFailure(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 16 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		cancels(t, w)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.notFailed()
		if n := w.status().Totals.MovesCancelled; n != 1 {
			t.Errorf("%d moves are counted as cancelled", n)
		}
		w.end()
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.notFailed()
	})
}

// The daemon ends while it undoes a cancelled move: it stops at the next slice,
// and the next daemon continues undoing it.
func TestStop_DuringRollback(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 8 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		cancels(t, w)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		copied := w.share("a", "0")
		begin := time.Now()
		w.end()
		if took := time.Since(begin); took > 5*time.Second || copied == 0 || len(w.entries(journal.MoveUndone)) != 0 {
			t.Errorf("the daemon took %v to stop, with %.2f to be copied back", took, copied)
		}
		w.start()
		defer w.end()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.notFailed()
	})
}

// A pause also stops the undoing of a move; resuming continues it.
func TestPause_DuringRollback(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 8 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		cancels(t, w)
		defer w.end()
		time.Sleep(9 * time.Second)
		if err := w.d.Pause(t.Context(), 0, "now"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		copied := w.share("a", "0")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if now := w.share("a", "0"); now != copied || copied == 0 || len(w.status().Moving) != 0 {
			t.Errorf("while paused from %.2f to %.2f, moving %+v", copied, now, w.status().Moving)
		}
		if err := w.d.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.notFailed()
	})
}

// A cancelled move is undone completely, even if its window ends before.
func TestWindow_EndsDuringRollback(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.policy.Balance.Pace = 8 * mib
		w.policy = openFor(t, w.policy, time.Now().Truncate(time.Minute))
		cancels(t, w)
		defer w.end()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if w.status().Held == "" || w.share("a", "0") == 0 {
			t.Fatal("it was undone before its window ended: this run tested nothing")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.notFailed()
	})
}
