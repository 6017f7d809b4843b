package daemon_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/journal"
)

// cancels has a move cancelled when some of its memory is copied.
func cancels(t *testing.T, w *world) {
	t.Helper()
	w.busy("b", "3", "12-15")
	w.lies("a", 2, gib, "3", "0-1")
	w.start()
	time.Sleep(40 * time.Second)
	synctest.Wait()
	moving := w.status().Moving
	if share := w.share("a", "0"); len(moving) != 1 || share == 0 || share == 1 {
		t.Fatalf("%.2f copied, moving %+v: the test shows nothing", share, moving)
	}
	if err := w.d.Cancel(t.Context(), moving[0].ID); err != nil {
		t.Fatal(err)
	}
}

// notFailed wants one move that was undone, and none that counts as failed.
func (w *world) notFailed() {
	w.t.Helper()
	undone := w.entries(journal.MoveUndone)
	if len(undone) != 1 || !undone[0].Cancelled || w.share("a", "3") < 0.98 {
		w.t.Errorf("undone %+v, %.2f of it is where it was", undone, w.share("a", "3"))
	}
	s := w.status()
	if s.Totals.MovesFailed != 0 || slices.ContainsFunc(s.Alarms, func(a alarm.Alarm) bool { return a.Quantity == alarm.StuckMove }) {
		w.t.Errorf("%+v, alarms %+v", s.Totals, s.Alarms)
	}
}

// That an operator cancels a move is no failure of it: nobody is alarmed, by the
// daemon that was told so or by the next one.
func TestACancelledMoveDidNotFail(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 16 * mib
	within(t, square, p, func(t *testing.T, w *world) {
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
