package daemon_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/journal"
)

// claimed has another process on the host move a guest, until it is released.
func (w *world) claimed(name string) (release func()) {
	w.t.Helper()
	g, _ := w.Guest(name)
	ledger := claim.Ledger{Folder: w.folder + "/run", Alive: func(claim.Process) bool { return true }}
	err := ledger.Locked(w.t.Context(), func(tx claim.Locked) error {
		to := *g.Placement
		to.Nodes = nodes("0-3")
		return tx.Put(claim.Claim{Name: name, Holder: hosttest.Self, Placement: to})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := ledger.Release(name); err != nil {
			w.t.Error(err)
		}
	}
}

// What another process is moving lies neither here nor there for a while: that
// is no drift, and is not repaired against it.
func TestAGuestThatAnotherProcessMovesHasNotDrifted(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.lies("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g, _ := w.Guest("a")
		if g.Placement == nil {
			t.Fatal("it was not bound")
		}
		release := w.claimed("a")
		machine := w.Nodes()
		if err := w.PinVCPU(t.Context(), "a", 0, machine.CPUSet().Minus(g.Placement.VCPUs[0].CPUs)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if wrong := w.entries(journal.Drifted, journal.Repaired); len(wrong) != 0 {
			t.Errorf("while it is moved: %+v", wrong)
		}
		release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.Repaired)); n != 1 {
			t.Errorf("left so, it was repaired %d times", n)
		}
	})
}

// A move that was cut short is another process' when the daemon starts; that one
// is killed: the daemon takes the move up.
func TestAMoveThatAnotherProcessLeavesIsTakenUp(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.lies("a", 2, gib, "3", "0-1")
		w.start()
		w.Inject(fake.Fault{Before: fake.NthOf("Move", 2, func() error { w.stop(); return nil })})
		time.Sleep(time.Minute)
		synctest.Wait()
		w.end()
		release := w.claimed("a")
		w.Inject(fake.Fault{})
		w.start()
		defer w.end()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 0 {
			t.Fatal("done by somebody, the test shows nothing")
		}
		release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || w.share("a", "0") < 0.98 {
			t.Errorf("%+v", w.entries())
		}
	})
}
