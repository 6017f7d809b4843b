package daemon_test

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
)

// A reply that is requested during moves belongs to its client alone: it is
// written while the loop goes on (the race detector checks that).
func TestStatus_DuringMoves(t *testing.T) {
	p := auto("a", "c")
	p.Balance.Pace = 64 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 1, 512*mib, "3", "0-1")
		w.misplaced("c", 1, 512*mib, "3", "4-5")
		w.start()
		defer w.end()
		var askers sync.WaitGroup
		for i := range 4 {
			askers.Go(func() {
				for range 300 {
					time.Sleep(time.Duration(90+10*i) * time.Millisecond)
					s, err := w.d.Status(t.Context())
					if err != nil {
						t.Error(err)
					}
					h, err := w.d.Inventory(t.Context())
					if err != nil {
						t.Error(err)
					}
					series, _ := w.d.Series(t.Context(), "guest", "a") // the first second has none
					for _, answer := range []any{s, h, series} {
						if _, err := json.Marshal(answer); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		askers.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.MoveDone)); n == 0 {
			t.Error("nothing was moved: this run tested nothing")
		}
	})
}
