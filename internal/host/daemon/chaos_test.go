package daemon_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// After any sequence of events everything settles: no move stays unfinished, no
// claim and no memory is lost, and then the daemon changes nothing more.
func TestEverythingSettles(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := auto("a", "c", "d")
			p.Balance.Pace, p.Balance.Cooldown = 16*mib, policy.Duration(20*time.Second)
			within(t, square, p, func(t *testing.T, w *world) {
				t.Helper()
				unrest(t, w, p, rand.New(rand.NewPCG(seed, 1)))
			})
		})
	}
}

func unrest(t *testing.T, w *world, p policy.Policy, r *rand.Rand) {
	t.Helper()
	w.roster = func() string {
		w.rosterMu.Lock()
		defer w.rosterMu.Unlock()
		return w.rosterNow
	}
	w.misplaced("a", 2, 512*mib, "3", "0-1")
	w.misplaced("c", 2, 512*mib, "3", "4-5")
	w.misplaced("d", 2, 768*mib, "0", "12-13")
	w.misplaced("e", 2, 256*mib, "1", "8-9") // only advised
	w.start()
	happen := slices.Concat(orders(t, w, p, r), mishaps(t, w, r))
	for range 100 {
		time.Sleep(time.Duration(200+r.IntN(9000)) * time.Millisecond)
		happen[r.IntN(len(happen))]()
	}
	w.full.Store(false)
	w.unobservable.Store(false)
	w.Inject(fake.Fault{})
	_ = w.d.Resume(t.Context())
	if err := w.d.SetPolicy(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.settles(t)
	w.end()
}

// orders are possible orders of an operator.
func orders(t *testing.T, w *world, p policy.Policy, r *rand.Rand) []func() {
	t.Helper()
	return []func(){
		func() { _ = w.d.Pause(t.Context(), time.Duration(r.IntN(2))*10*time.Second, "chaos") },
		func() { _ = w.d.Resume(t.Context()) },
		func() {
			for _, m := range w.status().Moving {
				_ = w.d.Cancel(t.Context(), m.ID)
			}
		},
		func() {
			for _, a := range w.status().Advice {
				_ = w.d.Accept(t.Context(), a.ID)
			}
		},
		func() {
			q := p
			q.Balance.Mode = []policy.Mode{policy.ModeAuto, policy.ModeAdvise, policy.ModeOff}[r.IntN(3)]
			if err := w.d.SetPolicy(t.Context(), q); err != nil {
				t.Error(err)
			}
		},
	}
}

// mishaps are things that can happen to a daemon and its guests.
func mishaps(t *testing.T, w *world, r *rand.Rand) []func() {
	t.Helper()
	return []func(){
		func() { w.end(); w.start() },
		func() { w.full.Store(true); w.end(); w.full.Store(false); w.start() }, // as if killed
		func() { w.full.Store(!w.full.Load()) },
		func() {
			away := errors.New("libvirt is away")
			w.Inject(fake.Fault{Before: func(fake.Call) error {
				if w.unobservable.Load() {
					return away
				}
				return nil
			}})
			w.unobservable.Store(!w.unobservable.Load())
		},
		func() {
			name := []string{"a", "c", "d", "e"}[r.IntN(4)]
			w.rosterMu.Lock()
			defer w.rosterMu.Unlock()
			w.rosterNow += name
			if w.unobservable.Load() {
				return
			}
			if _, there := w.Guest(name); !there {
				w.misplaced(name, 2, 256*mib, fmt.Sprint(r.IntN(4)), []string{"0-1", "4-5", "8-9", "12-13"}[r.IntN(4)])
			} else if err := w.Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		},
		func() {
			name := []string{"a", "c", "d"}[r.IntN(3)]
			if _, there := w.Guest(name); there && !w.unobservable.Load() {
				_ = w.PinVCPU(t.Context(), name, 0, cpus([]string{"0-3", "8-11"}[r.IntN(2)]))
			}
		},
	}
}

// settles checks that nothing is unfinished after an hour, and that there are no
// effects in the next hour.
func (w *world) settles(t *testing.T) {
	t.Helper()
	time.Sleep(time.Hour)
	synctest.Wait()
	if open := journal.InterruptedMoves(w.entries()); len(open) > 0 {
		t.Errorf("unfinished: %+v", open)
	}
	if s := w.status(); len(s.Moving) > 0 || s.Pause != nil {
		t.Errorf("moving %+v, pause %+v", s.Moving, s.Pause)
	}
	ledger := claim.Ledger{Folder: w.folder + "/run", Alive: func(claim.Process) bool { return true }}
	if claims, err := ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("claims: %+v, %v", claims, err)
	}
	if err := w.Audit(); err != nil {
		t.Error(err)
	}
	settled := len(w.entries())
	time.Sleep(time.Hour)
	synctest.Wait()
	if more := w.entries()[settled:]; slices.ContainsFunc(more, func(e journal.Entry) bool {
		return e.Kind == journal.MoveBegan || e.Kind == journal.Repaired || e.Kind == journal.MoveFailed
	}) {
		t.Errorf("it does not settle: %+v", more)
	}
}
