package daemon_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// Before the first observation the daemon knows nothing of guests that already
// run. Their alarms from before a restart have not cleared then.
func TestAlarms_SurviveARestart(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.roster = func() string { return "a b" }
		w.misplaced("a", 4, gib, "3", "12-15")
		w.misplaced("b", 4, gib, "3", "12-15")
		w.start()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(w.status().Alarms) == 0 {
			t.Fatal("no alarm: this run tested nothing")
		}
		w.end()
		w.Inject(fake.Fault{Before: func(c fake.Call) error { // libvirt starts later
			if c.Method == "Guests" {
				time.Sleep(5 * time.Second)
			}
			return nil
		}})
		w.start()
		defer w.end()
		if _, err := w.d.Inventory(t.Context()); err == nil {
			t.Error("an inventory was returned before the first observation")
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if over := w.entries(journal.Cleared); len(over) != 0 {
			t.Errorf("the restart ended alarms: %+v", over)
		}
	})
}

// A first observation that fails is retried in the next turn, not half a minute
// later.
func TestObserve_RetriesTheFirstObservationAtOnce(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.roster = func() string { return "a" }
		w.Inject(fake.Fault{Before: fake.NthOf("Topology", 1, func() error { return errors.New("not yet") })})
		w.start()
		defer w.end()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if h, err := w.d.Inventory(t.Context()); err != nil || len(h.Topology.Nodes) != 4 {
			t.Errorf("nodes %+v: %v", h.Topology.Nodes, err)
		}
	})
}

// A guest that starts during an observation may have been missed: the daemon
// observes the host again.
func TestObserve_GuestThatStartsMeanwhile(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		var came atomic.Bool
		w.roster = func() string { return fmt.Sprint(came.Load()) }
		w.misplaced("a", 1, 256*mib, "3", "12-15")
		w.Inject(fake.Fault{After: fake.NthOf("Guests", 1, func() error {
			w.misplaced("b", 1, 256*mib, "2", "8-11")
			time.Sleep(2 * time.Second)
			return nil
		})})
		w.start()
		defer w.end()
		came.Store(true)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := len(w.status().Guests); n != 2 {
			t.Errorf("%d guests are known", n)
		}
	})
}

// An observation begins during a move and ends after it, so that it saw half of
// the move: that is not an outside change.
func TestObserve_SpanningAMoveIsNoDrift(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 64 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		var came atomic.Bool
		w.roster = func() string { return fmt.Sprint(came.Load()) }
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(20500 * time.Millisecond)
		synctest.Wait()
		if len(w.status().Moving) != 1 {
			t.Fatal("no move is running: this run tested nothing")
		}
		w.Inject(fake.Fault{After: fake.NthOf("Memory", 1, func() error { time.Sleep(15 * time.Second); return nil })})
		came.Store(true)
		for len(w.status().Moving) == 1 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 1 {
			t.Fatalf("not exactly one move, so this run tested nothing: %+v", w.entries())
		}
		if wrong := w.entries(journal.Drifted, journal.Repaired); len(wrong) != 0 {
			t.Errorf("the move itself is reported as an outside change: %+v", wrong)
		}
	})
}

// Guests come and go faster than the host can be observed: the daemon plans all
// the same, from an observation that began after the last move.
func TestPlan_DespiteFrequentGuestChanges(t *testing.T) {
	p := auto("a", "c")
	p.Balance.GuestsPerRound = 1
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		var n atomic.Int64
		w.roster = func() string { return fmt.Sprint(n.Add(1)) }
		w.busy("b", "3", "12-15")
		w.misplaced("a", 1, 512*mib, "3", "0-1")
		w.misplaced("c", 1, 512*mib, "3", "4-5")
		w.Inject(fake.Fault{After: func(c fake.Call) error {
			if c.Method == "Guests" {
				time.Sleep(2500 * time.Millisecond)
			}
			return nil
		}})
		w.start()
		defer w.end()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 2 {
			t.Errorf("done %+v", done)
		}
	})
}
