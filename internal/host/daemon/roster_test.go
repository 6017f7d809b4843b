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

// What is known of guests that run already before the host was looked at for
// the first time: nothing. Their alarms of before a restart are not over then.
func TestAlarmsOutlastARestart(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.roster = func() string { return "a b" }
		w.lies("a", 4, gib, "3", "12-15")
		w.lies("b", 4, gib, "3", "12-15")
		w.start()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(w.status().Alarms) == 0 {
			t.Fatal("no alarm, the test shows nothing")
		}
		w.end()
		w.Inject(fake.Fault{Before: func(c fake.Call) error { // libvirt comes up later
			if c.Method == "Guests" {
				time.Sleep(5 * time.Second)
			}
			return nil
		}})
		w.start()
		defer w.end()
		if _, err := w.d.Inventory(t.Context()); err == nil {
			t.Error("an inventory is told before the host was looked at")
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if over := w.entries(journal.Cleared); len(over) != 0 {
			t.Errorf("the restart ended alarms: %+v", over)
		}
	})
}

// A first look that fails is tried again in the next turn, not half a minute later.
func TestAFirstLookThatFailsIsTriedAgainAtOnce(t *testing.T) {
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

// A guest that comes while the host is being looked at may have been missed:
// the host is looked at once more.
func TestAGuestThatComesDuringALookIsSeen(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		var came atomic.Bool
		w.roster = func() string { return fmt.Sprint(came.Load()) }
		w.lies("a", 1, 256*mib, "3", "12-15")
		w.Inject(fake.Fault{After: fake.NthOf("Guests", 1, func() error {
			w.lies("b", 1, 256*mib, "2", "8-11")
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

// A look that begins in mid-move and ends after it has seen half of it: that is
// nobody's change.
func TestALookThatOutlastsAMoveIsNotTakenForDrift(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 64 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		var came atomic.Bool
		w.roster = func() string { return fmt.Sprint(came.Load()) }
		w.busy("b", "3", "12-15")
		w.lies("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(20500 * time.Millisecond)
		synctest.Wait()
		if len(w.status().Moving) != 1 {
			t.Fatal("nothing moves, the test shows nothing")
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
			t.Fatalf("not one move, the test shows nothing: %+v", w.entries())
		}
		if wrong := w.entries(journal.Drifted, journal.Repaired); len(wrong) != 0 {
			t.Errorf("the move itself is taken for somebody else's change: %+v", wrong)
		}
	})
}

// Guests come and go faster than the host can be looked at: it is planned all
// the same, on what a look shows that began after the last move.
func TestGuestsThatComeAllTheTimeHoldNoPlanUp(t *testing.T) {
	p := auto("a", "c")
	p.Balance.GuestsPerRound = 1
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		var n atomic.Int64
		w.roster = func() string { return fmt.Sprint(n.Add(1)) }
		w.busy("b", "3", "12-15")
		w.lies("a", 1, 512*mib, "3", "0-1")
		w.lies("c", 1, 512*mib, "3", "4-5")
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
