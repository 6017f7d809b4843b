package operate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

// specs are guests that a create treats differently, all on the square machine.
var specs = map[string]guest.Spec{
	"small": {Name: "new", VCPUs: 2, Memory: 512 * mib},
	"all at once": {
		Name:    "new",
		VCPUs:   2,
		Memory:  512 * mib,
		Binding: guest.MemorySpec{Immediate: true},
	},
	"wide": {Name: "new", VCPUs: 6, Memory: 5 * gib},
	"strict and exclusive": {
		Name:    "new",
		VCPUs:   4,
		Memory:  gib,
		CPU:     guest.CPUSpec{Binding: guest.CPUExclusive, IOThreads: 1},
		Binding: guest.MemorySpec{Mode: guest.MemoryStrict},
	},
	"huge pages, pool suffices":   {Name: "new", VCPUs: 2, Memory: 64 * mib, PageSize: 2 * mib},
	"huge pages, pool must grow":  {Name: "new", VCPUs: 2, Memory: 512 * mib, PageSize: 2 * mib},
	"huge pages, pools must grow": {Name: "new", VCPUs: 6, Memory: 1024 * mib, PageSize: 2 * mib},
}

// A created guest is on its nodes from its first page on, and after it is
// deleted nothing of it is left.
func TestCreateAndDelete(t *testing.T) {
	for name, asked := range specs {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, square, folderOf(t))
			empty := w.Nodes()
			made, err := w.Create(spec(t, asked))
			if err != nil || len(made.Shortfalls()) > 0 {
				t.Fatalf("%v, falls short: %v", err, made.Shortfalls())
			}
			w.CheckInPlace(t, "new")
			if _, err := w.Touch("new", 8*gib); err != nil {
				t.Fatal(err)
			}
			w.CheckInPlace(t, "new")
			w.CheckSettled(t)
			if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
				t.Errorf("left behind (-before +after):\n%s", diff)
			}
		})
	}
}

func TestCreateNeverTouchesAGuestOfThatName(t *testing.T) {
	folder := folderOf(t)
	rapid.Check(t, func(t *rapid.T) {
		w, k := drawn(t, folder)
		before, host := w.MustGuest(t, "g"), w.Nodes()
		asked := spec(t, guest.Spec{Name: "g", VCPUs: 2, Memory: 512 * mib, PageSize: 2 * mib})
		if _, err := w.Create(asked); !errors.Is(err, operate.ErrExists) {
			t.Errorf("%s: error %v, want ErrExists", k.Name, err)
		}
		w.CheckUnchanged(t, before)
		if diff := cmp.Diff(host, w.Nodes()); diff != "" {
			t.Errorf("%s: the host changed (-before +after):\n%s", k.Name, diff)
		}
		w.CheckSettled(t)
	})
}

// Another program may define the name before Start; the hypervisor then refuses Start.
func TestCreate_NameIsTakenMeanwhile(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	other := kinds[0].Guest("new", 64*mib, []topology.NodeID{1}, cpus("0"))
	w.Inject(fake.Fault{Before: fake.NthOf("Start", 1, func() error { return w.Add(other) })})
	pools := w.Pools()
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); !errors.Is(err, guest.ErrExists) {
		t.Errorf("error %v, want that the name is taken", err)
	}
	if g := w.MustGuest(t, "new"); g.State != "running" || g.Managed {
		t.Errorf("the other guest was touched: %+v", g)
	}
	if diff := cmp.Diff(pools, w.Pools()); diff != "" {
		t.Errorf("pools not given back:\n%s", diff)
	}
	w.CheckSettled(t)
}

// The pages of a guest that may have started although its start failed stay
// recorded: deleting it gives them back to their node.
func TestPoolsOfAStartWithUnknownEndAreGivenBackOnDelete(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	empty := w.Nodes()
	w.Inject(fake.Fault{After: fake.NthOf("Start", 1, func() error { return errLost })})
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); !errors.Is(err, errLost) {
		t.Fatalf("error %v", err)
	}
	w.MustGuest(t, "new")
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}

// Pages that cannot be recorded in the ledger could not be given back later, so
// they are given back at once.
func TestPoolsThatCannotBeRecordedAreGivenBack(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if err := os.WriteFile(filepath.Join(w.Joined.Ledger.Folder, "pools"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := w.Nodes()
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); err == nil {
		t.Error("created without a record of the pages to give back")
	}
	if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	w.CheckSettled(t)
}

func TestDeleteOfAMissingGuest(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	w.MustAdd(t, kinds[0].Guest("g", 64*mib, []topology.NodeID{1}, cpus("0")))
	before := w.MustGuest(t, "g")
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "other"}); !errors.Is(
		err,
		operate.ErrNoGuest,
	) {
		t.Errorf("error %v, want ErrNoGuest", err)
	}
	w.CheckUnchanged(t, before)
}

// Deleting a VM that Numavisor did not create needs force, even after a bind.
func TestDelete_NeedsForceForVMsOfOthers(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	for _, name := range []string{"running", "bound", "stopped"} {
		d := kinds[0].Guest(name, 64*mib, []topology.NodeID{1}, cpus("0"))
		w.MustAdd(t, d)
	}
	if _, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "bound"}); err != nil {
		t.Fatal(err)
	}
	w.Vanish("stopped")
	for _, name := range []string{"running", "bound", "stopped"} {
		before := w.MustGuest(t, name)
		if _, err := w.Joined.WouldDelete(context.Background(), operate.DeleteRequest{Name: name}); !errors.Is(err,
			operate.ErrNotOurs) {
			t.Errorf("%s, dry run: error %v, want ErrNotOurs", name, err)
		}
		what, err := w.Joined.WouldDelete(context.Background(), operate.DeleteRequest{Name: name, Force: true})
		if err != nil || !strings.HasPrefix(what, "delete "+name+" (") {
			t.Errorf("%s, dry run with force: %q, %v", name, what, err)
		}
		w.CheckUnchanged(t, before)
		err = w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: name})
		if !errors.Is(err, operate.ErrNotOurs) {
			t.Errorf("%s: error %v, want ErrNotOurs", name, err)
		}
		w.CheckUnchanged(t, before)
		if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: name, Force: true}); err != nil {
			t.Errorf("%s, with force: %v", name, err)
		}
		if _, there := w.Guest(name); there {
			t.Errorf("%s exists after a delete with force", name)
		}
	}
}

// A guest that another program undefined leaves its pools enlarged; Delete of its
// name shrinks them.
func TestDelete_ShrinksThePoolsOfAMissingGuest(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	empty := w.Nodes()
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(context.Background(), "new"); err != nil {
		t.Fatal(err)
	}
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); !errors.Is(
		err,
		operate.ErrNoGuest,
	) {
		t.Errorf("error %v, want ErrNoGuest", err)
	}
	if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}

// The pages that were added for a guest are given back even after it moved
// them to another node.
func TestDeleteGivesPoolsBackAfterAMove(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	before := w.Pools()
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); err != nil {
		t.Fatal(err)
	}
	if b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "new",
		Change: limitTo("3")}); err != nil ||
		!b.Complete() {
		t.Fatalf("%v %v", err, b.Shortfalls())
	}
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, w.Pools()); diff != "" {
		t.Errorf("pages in the nodes' pools (-before +after):\n%s", diff)
	}
	w.CheckSettled(t)
}

// While a guest is started, its claim is replaced by the guest itself. An
// observation in between must contain one of the two.
func TestReservationIsAlwaysVisibleWhileAGuestStarts(t *testing.T) {
	for name, asked := range map[string]guest.Spec{
		"small pages": {VCPUs: 1, Memory: 600 * mib, Binding: guest.MemorySpec{Immediate: true}},
		"huge pages":  {VCPUs: 1, Memory: 512 * mib, PageSize: 2 * mib},
	} {
		for _, at := range []struct {
			method string
			after  bool
		}{{"Topology", true}, {"Guests", false}, {"Guests", true}} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, "nodes:1 cores:4 memory:2G huge:2M=256", folderOf(t))
				if asked.PageSize == 0 {
					w.Fill(0, 900*mib)
				} else {
					w.Fill(0, 256*mib)
				}
				first, second := asked, asked
				first.Name, second.Name = "first", "second"
				finish := half(t, w, spec(t, first))
				hook := fake.NthOf(at.method, 1, func() error { finish(); return nil })
				if at.after {
					w.Inject(fake.Fault{After: hook})
				} else {
					w.Inject(fake.Fault{Before: hook})
				}
				var noFit *place.NoFitError
				if _, err := w.Create(spec(t, second)); !errors.As(err, &noFit) {
					t.Errorf("two guests of %v were placed where there is room for one (%s, after it: %v): %v",
						asked.Memory, at.method, at.after, err)
				}
			})
		}
	}
}

// half makes another program decide on a guest and claim its resources; finish
// starts the guest and releases the claim.
func half(t *testing.T, w world, s guest.Spec) (finish func()) {
	t.Helper()
	trial := newWorld(t, "nodes:1 cores:4 memory:2G huge:2M=256", folderOf(t))
	made, err := trial.Create(s)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Joined.Ledger.Locked(context.Background(), func(tx claim.Locked) error {
		return tx.Put(claim.Claim{Name: s.Name, Holder: self, Placement: made.Placement})
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		w.MustAdd(t, fake.Define(s, made.Placement))
		if err := w.Joined.Ledger.Release(s.Name); err != nil {
			t.Error(err)
		}
	}
}

// Other guests' CPU sets may already include the CPUs that should be exclusive
// to a guest: the result says so until they are bound again.
func TestCreate_ReportsSharedExclusiveCPUs(t *testing.T) {
	w := newWorld(t, "nodes:1 cores:4 memory:4G huge:2M=64", folderOf(t))
	range2 := spec(t, guest.Spec{Name: "shared", VCPUs: 2, Memory: 256 * mib})
	if made, err := w.Create(range2); err != nil || len(made.Shortfalls()) > 0 {
		t.Fatalf("%v, falls short: %v", err, made.Shortfalls())
	}
	alone := spec(t,
		guest.Spec{Name: "alone", VCPUs: 2, Memory: 256 * mib, CPU: guest.CPUSpec{Binding: guest.CPUExclusive}})
	made, err := w.Create(alone)
	if err != nil {
		t.Fatal(err)
	}
	if short := made.Shortfalls(); len(short) != 1 || !strings.Contains(short[0], "numavisor bind shared ") {
		t.Errorf("shortfalls: %q", short)
	}
	if b, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "shared"}); err != nil || !b.Complete() {
		t.Fatalf("%v, falls short: %v", err, b.Shortfalls())
	}
	own, left := made.Placement.Exclusive(), w.MustGuest(t, "shared")
	for _, thread := range left.Seen.Threads {
		if thread.Affinity.Intersects(own) {
			t.Errorf("a thread of role %q may still run on CPUs %v; dedicated are %v", thread.Role, thread.Affinity, own)
		}
	}
	w.CheckInPlace(t, "shared")
	again := operate.BindRequest{Name: "alone", Recompute: true}
	if b, err := w.Joined.Bind(t.Context(), again); err != nil || !b.Complete() {
		t.Errorf("no other guest may run there now: %v, falls short: %v", err, b.Shortfalls())
	}
}
