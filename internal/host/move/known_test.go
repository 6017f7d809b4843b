package move_test

import (
	"errors"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// knownMove moves a guest after the host was observed; change is made in between. It returns how often
// all guests were listed, and mappings read, before the move began.
func knownMove(t *testing.T, change func(w world, known *inventory.Host)) (listed, read int, err error) {
	t.Helper()
	w := newWorld(t, square, folderOf(t))
	w.MustAdd(t, kinds[0].Guest("a", gib, []topology.NodeID{3}, cpus("0-3")))
	w.Joined.Clock = time.Now
	b := &book{}
	m := planned(t, w, plan.Batch, map[string]string{"a": "1"})
	known, err := w.Joined.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known.Taken = time.Now().Add(time.Minute)
	change(w, &known)
	w.Inject(fake.Fault{Before: func(c fake.Call) error {
		switch {
		case len(b.Recorded) > 0:
		case c.Method == "Guests":
			listed++
		case c.Method == "Ranges":
			read++
		}
		return nil
	}})
	moved, err := w.Joined.Move(t.Context(), move.Request{ID: "m", Move: m, Journal: b, Known: &known})
	if err == nil && !moved.Complete() {
		t.Errorf("%s: %v", moved.End, moved.Shortfalls())
	}
	if err == nil && (moved.Seen == nil || len(moved.Seen.Claims) > 0 || moved.Seen.Guests[0].Seen.Ranges != nil) {
		t.Errorf("the host after the move: %+v", moved.Seen)
	}
	return listed, read, err
}

// A move of a host that is known observes its guests, not all of the host.
func TestMove_UsesWhatIsKnown(t *testing.T) {
	if listed, read, err := knownMove(t, func(world, *inventory.Host) {}); err != nil || listed != 0 || read != 1 {
		t.Errorf("%v; all guests were listed %d times, mappings read %d times", err, listed, read)
	}
}

// Mappings that are known are not read again before the move. Where the vCPUs of its guest may run is.
func TestMove_DoesNotReadKnownMappings(t *testing.T) {
	for _, changes := range []bool{false, true} {
		listed, read, err := knownMove(t, func(w world, known *inventory.Host) {
			closely, err := w.Joined.Observe(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			known.Guests = closely.Guests
			if changes {
				if err := w.PinVCPU(t.Context(), "a", 0, cpus("8-11")); err != nil {
					t.Fatal(err)
				}
			}
		})
		if errors.Is(err, move.ErrStale) != changes || err != nil && !changes {
			t.Errorf("its vCPUs were pinned: %v; %v", changes, err)
		}
		if listed != 0 || read != 0 {
			t.Errorf("all guests were listed %d times, mappings read %d times", listed, read)
		}
	}
}

// If another process has placed a guest since, the host is observed.
func TestMove_ObservesAHostThatMayHaveChanged(t *testing.T) {
	for what, change := range map[string]func(world, *inventory.Host){
		"a claim since": func(w world, known *inventory.Host) {
			known.Taken = time.Now()
			err := w.Joined.Ledger.Locked(t.Context(), func(tx claim.Locked) error {
				return tx.Put(claim.Claim{Name: "other", Holder: self})
			})
			if err = errors.Join(err, w.Joined.Ledger.Release("other")); err != nil {
				t.Fatal(err)
			}
		},
		"a guest of it is not known": func(_ world, known *inventory.Host) { known.Guests = nil },
	} {
		if listed, _, err := knownMove(t, change); err != nil || listed != 1 {
			t.Errorf("%s: %v; all guests were listed %d times", what, err, listed)
		}
	}
}

// A guest that has changed since is refused, also if the rest of the host is known.
func TestMove_SeesThatItsGuestHasChanged(t *testing.T) {
	_, _, err := knownMove(t, func(w world, _ *inventory.Host) {
		if err := w.PinVCPU(t.Context(), "a", 0, cpus("8-11")); err != nil {
			t.Fatal(err)
		}
	})
	if !errors.Is(err, move.ErrStale) {
		t.Errorf("%v", err)
	}
}
