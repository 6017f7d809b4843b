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

// claimed makes another process on the host move a guest, until it is released.
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

// A guest that another process is moving is between two placements for a while:
// that is not drift, and the daemon does not repair it.
func TestDrift_IgnoresMovesOfOtherProcesses(t *testing.T) {
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
		release := w.claimed("a")
		machine := w.Nodes()
		if err := w.PinVCPU(t.Context(), "a", 0, machine.CPUSet().Minus(g.Placement.VCPUs[0].CPUs)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if wrong := w.entries(journal.Drifted, journal.Repaired); len(wrong) != 0 {
			t.Errorf("during the move: %+v", wrong)
		}
		release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.Repaired)); n != 1 {
			t.Errorf("left unfinished, it was repaired %d times", n)
		}
	})
}

// Another process resumes an interrupted move when the daemon starts, and is
// then killed: the daemon resumes the move.
func TestStart_ResumesAMoveOfAKilledProcess(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
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
			t.Fatal("the other process finished it: this run tested nothing")
		}
		release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || w.share("a", "0") < 0.98 {
			t.Errorf("%+v", w.entries())
		}
	})
}
