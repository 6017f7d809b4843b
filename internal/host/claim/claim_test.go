package claim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/topology"
)

func ledger(t *testing.T, dead ...int) claim.Ledger {
	t.Helper()
	return claim.Ledger{Folder: t.TempDir(), Alive: func(p claim.Process) bool {
		for _, d := range dead {
			if p.PID == d {
				return false
			}
		}
		return true
	}}
}

func put(t *testing.T, l claim.Ledger, name string, pid int) {
	t.Helper()
	err := l.Locked(t.Context(), func(tx claim.Locked) error {
		return tx.Put(claim.Claim{Name: name, Holder: claim.Process{PID: pid}, Placement: guest.Placement{Guest: name}})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestClaims_OfEndedProcessesAreVoid(t *testing.T) {
	l := ledger(t, 2)
	put(t, l, "alive", 1)
	put(t, l, "dead", 2)
	shown, err := l.Claims()
	if err != nil || len(shown) != 1 || shown[0].Name != "alive" {
		t.Fatalf("Claims() = %v, %v; want only the living holder's", shown, err)
	}
	if err := l.Locked(t.Context(), func(tx claim.Locked) error { _, err := tx.Claims(); return err }); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(l.Folder, "claims")); len(left) != 1 {
		t.Errorf("the void claim was not removed: %v", left)
	}
}

// A process that is killed while it writes a claim leaves a file that the next decision removes.
func TestClaims_RemovesUnfinishedFiles(t *testing.T) {
	l := ledger(t)
	put(t, l, "alive", 1)
	if err := os.WriteFile(filepath.Join(l.Folder, "claims", "dead.json.432.new"), []byte(`{"name`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Locked(t.Context(), func(tx claim.Locked) error { _, err := tx.Claims(); return err }); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(l.Folder, "claims")); len(left) != 1 || left[0].Name() != "alive.json" {
		t.Errorf("the folder has %v, want the claim of the living holder alone", left)
	}
}

// Each of many simultaneous decisions claims the lowest free number; no number
// may be used twice.
func TestLedger_ConcurrentDecisions(t *testing.T) {
	l := ledger(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			err := l.Locked(t.Context(), func(tx claim.Locked) error {
				held, err := tx.Claims()
				if err != nil {
					return err
				}
				node := topology.NodeID(len(held))
				return tx.Put(
					claim.Claim{
						Name:      fmt.Sprint("guest ", i),
						Holder:    claim.Process{PID: 1},
						Placement: guest.Placement{Nodes: topology.SetOf(node)},
					},
				)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	held, err := l.Claims()
	if err != nil {
		t.Fatal(err)
	}
	var taken topology.NodeSet
	for _, c := range held {
		taken = taken.Union(c.Placement.Nodes)
	}
	if taken.Len() != 20 {
		t.Errorf("20 decisions claimed %d rooms: %s", taken.Len(), taken)
	}
}

func TestLockEndsWithTheDeadline(t *testing.T) {
	l := ledger(t)
	err := l.Locked(t.Context(), func(claim.Locked) error {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
		defer cancel()
		return l.Locked(ctx, func(claim.Locked) error { t.Error("two decisions at once"); return nil })
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestLedger_NamesOfAnyKind(t *testing.T) {
	l := ledger(t)
	for _, name := range []string{"../../etc/passwd", "a b", "ünï", "."} {
		put(t, l, name, 1)
		if held, err := l.Claims(); err != nil || len(held) != 1 || held[0].Name != name {
			t.Errorf("%q: %v, %v", name, held, err)
		}
		if err := l.Release(name); err != nil {
			t.Error(err)
		}
	}
}

func TestGrownPoolsAddUp(t *testing.T) {
	l := ledger(t)
	for range 2 {
		if err := l.PutGrown("g", []claim.Grown{{Node: 1, Size: 2 * topology.MiB, Pages: 3}}); err != nil {
			t.Fatal(err)
		}
	}
	grown, err := l.GrownFor("g")
	if err != nil || len(grown) != 1 || grown[0].Pages != 6 {
		t.Errorf("got %v, %v; want 6 pages on node 1", grown, err)
	}
	if err := l.ForgetGrown("g"); err != nil {
		t.Fatal(err)
	}
	if grown, err := l.GrownFor("g"); err != nil || grown != nil {
		t.Errorf("after forgetting: %v, %v", grown, err)
	}
}

func TestDamagedClaimIsNamed(t *testing.T) {
	l := ledger(t)
	put(t, l, "g", 1)
	if err := os.WriteFile(filepath.Join(l.Folder, "claims", "g.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	put(t, l, "h", 1)
	if err := os.Mkdir(filepath.Join(l.Folder, "claims", "x.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	shown, err := l.Claims()
	if err == nil {
		t.Fatal("a damaged claim counted as none: its resources would be given away")
	}
	for _, want := range []string{"g.json", "x.json", "remove"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if len(shown) != 1 || shown[0].Name != "h" {
		t.Errorf("besides the damaged claims %v are shown; want h", shown)
	}
	decided := l.Locked(t.Context(), func(tx claim.Locked) error { _, err := tx.Claims(); return err })
	if decided == nil {
		t.Error("a decision was made although a claim is damaged")
	}
}

// flock(2) needs only a descriptor for reading: no other user may open the
// lock.
func TestLedger_IsItsOwnersOnly(t *testing.T) {
	l := ledger(t)
	l.Folder = filepath.Join(l.Folder, "numavisor")
	for _, folder := range []string{"", "claims", "pools"} { // as an older version made them
		if err := os.MkdirAll(filepath.Join(l.Folder, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.Folder, "lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	put(t, l, "g", 1)
	if err := l.PutGrown("g", []claim.Grown{{Node: 1, Size: 2 * topology.MiB, Pages: 3}}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "lock": 0o600, "claims": 0o700, "claims/g.json": 0o600,
		"pools/g.json": 0o600} {
		info, err := os.Stat(filepath.Join(l.Folder, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %o; wanted %o", path, info.Mode().Perm(), want)
		}
	}
}

// A daemon's move may take hours: it must not wait for the lock as long.
func TestLedger_WaitsForItsLockForALimitedTime(t *testing.T) {
	l := ledger(t)
	l.Wait = 50 * time.Millisecond
	err := l.Locked(t.Context(), func(claim.Locked) error {
		return l.Locked(t.Context(), func(claim.Locked) error { t.Error("two decisions at once"); return nil })
	})
	if want := fmt.Sprintf("process %d (", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v; wanted an error with %q", err, want)
	}
}

// A claim that was put or released is a change; reading them is none.
func TestUnchangedSince(t *testing.T) {
	l := ledger(t)
	unchanged := func(at time.Time) (is bool) {
		t.Helper()
		if err := l.Locked(t.Context(), func(tx claim.Locked) error {
			if _, err := tx.Claims(); err != nil {
				return err
			}
			is = tx.UnchangedSince(at)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if !unchanged(time.Now()) {
		t.Error("a ledger without claims has changed")
	}
	began := time.Now()
	put(t, l, "a", 1)
	if unchanged(began) || unchanged(time.Now()) || !unchanged(time.Now().Add(time.Minute)) {
		t.Error("a claim was put a moment ago")
	}
	folder := filepath.Join(l.Folder, "claims")
	hour := began.Add(-time.Hour)
	if err := os.Chtimes(folder, hour, hour); err != nil {
		t.Fatal(err)
	}
	if !unchanged(began) {
		t.Error("the claim was put an hour ago")
	}
	if err := l.Release("a"); err != nil {
		t.Fatal(err)
	}
	if unchanged(began) {
		t.Error("the claim was released after that")
	}
}

// A process that releases its claim knows what it did to the guest; what others do, it does not know.
func TestReleaseSeen(t *testing.T) {
	for name, c := range map[string]struct {
		seen      time.Duration // before the release
		others    func(*testing.T, claim.Ledger)
		unchanged bool
	}{
		"alone":                                  {unchanged: true},
		"it has seen the guest before its claim": {seen: 2 * time.Hour},
		"another process has a claim":            {others: func(t *testing.T, l claim.Ledger) { t.Helper(); put(t, l, "b", 1) }},
		"another process has released a claim": {others: func(t *testing.T, l claim.Ledger) {
			t.Helper()
			put(t, l, "b", 1)
			if err := l.Release("b"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger(t)
			put(t, l, "a", 1)
			hour := time.Now().Add(-time.Hour) // as if it had been put then
			if err := os.Chtimes(filepath.Join(l.Folder, "claims"), hour, hour); err != nil {
				t.Fatal(err)
			}
			seen := time.Now().Add(-c.seen)
			if c.others != nil {
				c.others(t, l)
			}
			if err := l.ReleaseSeen(t.Context(), seen, "a"); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Claims(); err != nil || len(got) > 1 || len(got) == 1 && got[0].Name != "b" {
				t.Errorf("claims after the release: %v, %v", got, err)
			}
			unchanged := false
			if err := l.Locked(t.Context(), func(tx claim.Locked) error {
				unchanged = tx.UnchangedSince(seen)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if unchanged != c.unchanged {
				t.Errorf("unchanged since it was seen: %v, want %v", unchanged, c.unchanged)
			}
			put(t, l, "c", 1)
			if err := l.Locked(t.Context(), func(tx claim.Locked) error {
				if tx.UnchangedSince(time.Now()) {
					t.Error("a claim was put after the release, and nothing seems changed")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
