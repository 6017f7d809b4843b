package daemon_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/daemon"
)

// The loop reports Alive at a fixed rate until its end.
func TestSupervisor_GetsReportsOfTheDaemonsState(t *testing.T) {
	within(t, square, auto(), func(t *testing.T, w *world) {
		t.Helper()
		states := make(chan daemon.State, 10)
		w.supervisor = daemon.Supervisor{AliveEvery: 4 * time.Second, Report: func(s daemon.State) { states <- s }}
		w.start()
		if len(states) != 1 {
			t.Errorf("%d states after its start, want one", len(states))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.end()
		close(states)
		got := slices.Collect(func(yield func(daemon.State) bool) {
			for s := range states {
				if !yield(s) {
					return
				}
			}
		})
		want := []daemon.State{daemon.Ready, daemon.Alive, daemon.Alive, daemon.Stopping}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("states in 10 seconds (-want +got):\n%s", diff)
		}
	})
}

// A loop that hangs reports no Alive: the watchdog detects that.
func TestSupervisor_GetsNoReportOfALoopThatHangs(t *testing.T) {
	within(t, square, auto(), func(t *testing.T, w *world) {
		t.Helper()
		var alive atomic.Int32
		w.supervisor = daemon.Supervisor{AliveEvery: time.Second, Report: func(s daemon.State) {
			if s == daemon.Alive {
				alive.Add(1)
			}
		}}
		var hang atomic.Bool
		w.roster = func() string {
			if !hang.Load() {
				return ""
			}
			time.Sleep(time.Minute)
			return ""
		}
		w.start()
		hang.Store(true)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if alive.Load() > 1 {
			t.Errorf("%d reports of Alive from a loop that hangs", alive.Load())
		}
		hang.Store(false)
		w.end()
	})
}
