package daemon_test

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
)

// Whoever asks while guests are moved gets what is his own: it is written out
// while the loop goes on (the race detector sees to that).
func TestManyAskWhileGuestsAreMoved(t *testing.T) {
	p := auto("a", "c")
	p.Balance.Pace = 64 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.lies("a", 1, 512*mib, "3", "0-1")
		w.lies("c", 1, 512*mib, "3", "4-5")
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
					series, _ := w.d.Series(t.Context(), "guest", "a") // of the first second there is none
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
			t.Error("nothing was moved, the test shows nothing")
		}
	})
}
