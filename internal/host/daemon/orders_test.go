package daemon_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// A move that was resumed after a restart is shown under its name, and can be
// cancelled by it: the daemon then undoes it.
func TestCancel_ResumedMove(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 16 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		time.Sleep(25 * time.Second)
		synctest.Wait()
		w.end()
		began := w.entries(journal.MoveBegan)
		if len(began) != 1 || len(w.entries(journal.MoveDone)) != 0 {
			t.Fatalf("no move was interrupted: %+v", w.entries())
		}
		w.start()
		defer w.end()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		moving := w.status().Moving
		if len(moving) != 1 || moving[0].ID != began[0].ID {
			t.Fatalf("moving: %+v, it was begun as %s", moving, began[0].ID)
		}
		if err := w.d.Cancel(t.Context(), moving[0].ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if undone := w.entries(journal.MoveUndone); len(undone) != 1 || undone[0].ID != began[0].ID ||
			w.share("a", "3") < 0.98 {
			t.Errorf("undone: %+v, %.2f of it is where it was", undone, w.share("a", "3"))
		}
		if wrong := w.entries(journal.Drifted, journal.Repaired); len(wrong) != 0 {
			t.Errorf("the move itself is reported as an outside change: %+v", wrong)
		}
	})
}

// twoAdvised has two unmanaged guests, with a recommended move for each.
func twoAdvised(t *testing.T, w *world) (ids []string) {
	t.Helper()
	w.busy("b", "3", "12-15")
	w.misplaced("a", 1, 128*mib, "3", "0-1")
	w.misplaced("c", 1, 128*mib, "3", "4-5")
	w.start()
	time.Sleep(30 * time.Second)
	synctest.Wait()
	for _, a := range w.status().Advice {
		ids = append(ids, a.ID)
	}
	if len(ids) != 2 {
		t.Fatalf("%d moves recommended: this run tested nothing", len(ids))
	}
	return ids
}

// An accepted move is made, whatever the outcome of the move before it.
func TestAccept_SurvivesTheMoveBefore(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		ids := twoAdvised(t, w)
		defer w.end()
		away := func() error { return errors.New("libvirt is away") }
		w.Inject(fake.Fault{Before: fake.NthOf("StoredBinding", 1, away)})
		for _, id := range ids {
			if err := w.d.Accept(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if done, failed := w.entries(journal.MoveDone), w.entries(journal.MoveFailed); len(done) != 1 ||
			len(failed) != 1 {
			t.Errorf("done %+v, failed %+v", done, failed)
		}
	})
}

// A new policy drops moves planned under the old one, but not accepted moves.
func TestAccept_SurvivesANewPolicy(t *testing.T) {
	slow := policy.Policy{}
	slow.Balance.Pace = 32 * mib
	within(t, square, slow, func(t *testing.T, w *world) {
		t.Helper()
		ids := twoAdvised(t, w)
		defer w.end()
		for _, id := range ids {
			if err := w.d.Accept(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := w.d.SetPolicy(t.Context(), policy.Policy{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 2 {
			t.Errorf("done %+v", done)
		}
	})
}

// In mode off the daemon recommends nothing, and withdraws earlier
// recommendations.
func TestAdvice_WithdrawnInModeOff(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		ids := twoAdvised(t, w)
		defer w.end()
		if err := w.d.SetPolicy(t.Context(), policy.Policy{Balance: policy.Balance{Mode: policy.ModeOff}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.status(); len(s.Advice) != 0 || len(s.Degraded) != 0 {
			t.Errorf("advice %+v, degradation %+v", s.Advice, s.Degraded)
		}
		if err := w.d.Accept(t.Context(), ids[0]); err == nil {
			t.Error("a withdrawn recommendation was accepted")
		}
	})
}

// A pause that stops a repair does not count as a repeated manual change: the
// repair is made after the pause.
func TestRepair_ContinuesAfterAPause(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g, _ := w.Guest("a")
		if g.Placement == nil {
			t.Fatal("it was not bound")
		}
		machine := w.Nodes()
		if err := w.PinVCPU(t.Context(), "a", 0, machine.CPUSet().Minus(g.Placement.VCPUs[0].CPUs)); err != nil {
			t.Fatal(err)
		}
		w.Inject(fake.Fault{Before: fake.NthOf("Record", 1, func() error {
			go func() { _ = w.d.Pause(t.Context(), time.Minute, "now") }()
			time.Sleep(100 * time.Millisecond)
			return nil
		})})
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if len(w.entries(journal.Paused)) != 1 {
			t.Fatal("no repair was stopped: this run tested nothing")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		repairs := w.entries(journal.Repaired)
		if len(repairs) != 1 || !strings.HasPrefix(repairs[0].What, "bound to its placement") {
			t.Errorf("repairs: %+v; competitors %+v", repairs, w.status().Competitors)
		}
	})
}

// A pause before a move has begun is not a failure of the move: it is planned
// again.
func TestPause_BeforeAMoveBegins(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(9500 * time.Millisecond) // it is planned at 10 s
		synctest.Wait()
		w.Inject(fake.Fault{Before: fake.NthOf("StoredBinding", 1, func() error {
			go func() { _ = w.d.Pause(t.Context(), time.Minute, "now") }()
			time.Sleep(100 * time.Millisecond)
			return nil
		})})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(w.entries(journal.Paused)) != 1 || len(w.entries(journal.MoveBegan)) != 0 {
			t.Fatalf("this run tested nothing: %+v", w.entries())
		}
		if failed := w.entries(journal.MoveFailed); len(failed) != 0 || w.status().Totals.MovesFailed != 0 {
			t.Errorf("failed: %+v", failed)
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 1 {
			t.Errorf("a minute after the pause: %+v", w.status().Blocked)
		}
	})
}

// A recommendation that comes and goes with its guest's load is in the journal
// once an hour: more entries would push out the record of effects.
func TestAdvice_IsRecordedOnceAnHour(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		came := 0
		for i := range 180 {
			w.load.Idle.Store(i%2 == 1)
			time.Sleep(time.Minute)
			synctest.Wait()
			came += len(w.status().Advice)
		}
		if came < 80 {
			t.Fatalf("the recommendation came %d times: this run tested nothing", came)
		}
		notes := map[string]int{}
		for _, e := range w.entries(journal.Advised) {
			notes[e.ID]++
		}
		for id, n := range notes {
			if n > 3 {
				t.Errorf("advice %s has %d entries in 3 hours", id, n)
			}
		}
	})
}

// A repair that fails because libvirt restarts does not count as a repair: the
// daemon retries it after a while, records the failure once, and reports no
// outside change of the guest.
func TestRepair_RetriesAfterAFailure(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g, _ := w.Guest("a")
		if g.Placement == nil {
			t.Fatal("it was not bound")
		}
		w.load.Idle.Store(true) // the first binding is no repair
		machine := w.Nodes()
		if err := w.PinVCPU(t.Context(), "a", 0, machine.CPUSet().Minus(g.Placement.VCPUs[0].CPUs)); err != nil {
			t.Fatal(err)
		}
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Record" || c.Method == "PinVCPU" {
				return errors.New("libvirt restarts")
			}
			return nil
		}})
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if failed := w.entries(journal.RepairFailed); len(failed) != 1 ||
			!strings.Contains(failed[0].What, "libvirt restarts") ||
			len(w.entries(journal.Repaired)) != 0 {
			t.Errorf("noted %+v", w.entries(journal.RepairFailed, journal.Repaired))
		}
		if a := w.answer("changes to VM a"); !strings.Contains(a, "could not be bound to its placement") ||
			!strings.Contains(a, "libvirt restarts") {
			t.Errorf("the status says %q", a)
		}
		w.Inject(fake.Fault{})
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.Repaired)); n != 1 || w.answer("changes to VM a") != "" {
			t.Errorf("%d repairs, the status says %q", n, w.answer("changes to VM a"))
		}
	})
}
