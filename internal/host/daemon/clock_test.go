package daemon_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

// The clock was ahead while the last daemon ran, and is right again: that
// daemon's entries are in the future, but they neither put guests in cooldown
// until then nor prevent the saving of alarms.
func TestClock_SetBack(t *testing.T) {
	within(t, square, auto("a", "c"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.end()
		done := w.entries(journal.MoveDone)
		if len(done) != 1 {
			t.Fatalf("done %+v", done)
		}
		// The same, for another guest, written by a clock that was a week
		// ahead.
		const ahead = 7 * 24 * time.Hour
		entries := w.entries()
		w.folder = t.TempDir()
		for _, e := range entries {
			if e.At = e.At.Add(ahead); e.Move != nil {
				e.Guests, e.Move.Guests[0].Guest = []string{"c"}, "c"
			}
			if err := (record.Journal{Folder: w.folder}).Append(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := record.SaveAlarms(w.folder, record.Alarms{Written: time.Now().Add(ahead)}); err != nil {
			t.Fatal(err)
		}
		w.misplaced("c", 2, gib, "3", "8-9")
		w.start()
		defer w.end()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if a, err := record.ReadAlarms(w.folder); err != nil || time.Since(a.Written).Abs() > time.Minute {
			t.Errorf("alarms written %v, it is %v: %v", a.Written, time.Now(), err)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.MoveDone)); n != 2 {
			t.Errorf("c is degraded for half an hour and is not moved: %+v", w.status().Blocked)
		}
	})
}
