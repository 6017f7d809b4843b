package operate_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// drawn is a host with one unmanaged guest of a kind, on any nodes.
func drawn(t *rapid.T, folder string) (world, kind) {
	w := newWorld(t, square, folder)
	k := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
	ids := rapid.Permutation([]topology.NodeID{0, 1, 2, 3}).Draw(t, "nodes")
	size := topology.Bytes(rapid.IntRange(8, 30).Draw(t, "pages of 2 MiB in a cell")) * 2 * mib
	top := w.Nodes()
	w.MustAdd(t, k.Guest("g", size, ids, top.CPUsOf(topology.SetOf(ids[2]))))
	if !k.Huge && rapid.Bool().Draw(t, "smeared") {
		if err := w.Smear("g", top.NodeSet()); err != nil {
			t.Fatal(err)
		}
	}
	return w, k
}

// Without faults a bind ends with every page and thread where the placement
// wants it, whatever kind of guest it was; a second one finds nothing to do.
func TestBind_EveryKindOfGuest(t *testing.T) {
	folder := folderOf(t)
	rapid.Check(t, func(t *rapid.T) {
		w, k := drawn(t, folder)
		b, err := w.Bind("g")
		if err != nil {
			t.Fatalf("%s: %v", k.Name, err)
		}
		if len(b.Truth.Differences) > 0 {
			t.Errorf("%s: differs after the bind: %v", k.Name, b.Truth.Differences)
		}
		for _, o := range b.Outcomes {
			if o.Status != "done" {
				t.Errorf("%s: %s: %s %s", k.Name, o.Step, o.Status, o.Detail)
			}
		}
		w.CheckInPlace(t, "g")
		w.CheckSettled(t)
		again, err := w.Bind("g")
		if err != nil || len(again.Plan.Steps) > 0 {
			t.Errorf("%s: a guest in place gets a plan: %v\n%s", k.Name, err, again.Plan.Text())
		}
	})
}

// Before the intent is recorded, a guest that is being moved shows only its old
// placement: the claim must reserve the resources of the new one.
func TestMove_ReservesBothPlacements(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	s := spec(t, specs["small"])
	s.Limits.Nodes = nodes("1")
	if _, err := w.Create(s); err != nil {
		t.Fatal(err)
	}
	held := topology.MemoryByNode{}
	w.Inject(fake.Fault{Before: fake.NthOf("Record", 1, func() error {
		inv, err := w.Joined.Observe(context.Background())
		for _, h := range inv.Holdings("") {
			held[h.Node] += h.Memory()
		}
		return err
	})})
	if b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "new",
		Change: limitTo("3")}); err != nil ||
		!b.Complete() {
		t.Fatalf("%v %v", err, b.Shortfalls())
	}
	if held[1] < s.Memory || held[3] < s.Memory {
		t.Errorf("reserved while it moves from node 1 to node 3: %v", held)
	}
}

// Changes that other programs make to a guest show as drift, and a bind without
// options repairs it.
func TestDriftIsShownAndRepaired(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(w world) error
		want string // kind of a difference
	}{
		{"a vCPU is pinned elsewhere", func(w world) error { return w.Repin("new", 1, cpus("15")) },
			drift.VCPUAffinity},
		{"the emulator is pinned elsewhere", func(w world) error {
			return w.PinEmulator(context.Background(), "new",
				cpus("12-15"))
		}, drift.EmulatorAffinity},
		{"memory is on other nodes", func(w world) error { return w.Smear("new", nodes("0-3")) }, drift.Memory},
		{"the limit allows all nodes", func(w world) error {
			return w.SetMems(context.Background(), w.MustGuest(t, "new").PID, nodes("0-3"))
		}, drift.MemoryLimit},
		{"the policy is changed", func(w world) error {
			g := w.MustGuest(t, "new")
			return w.SetFilePolicy(g.PID, g.Seen.Ranges[0].Address, guest.MemoryStrict, nodes("3"))
		}, drift.MemoryPolicy},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, square, folderOf(t))
			if _, err := w.Create(spec(t, specs["wide"])); err != nil {
				t.Fatal(err)
			}
			if err := c.harm(w); err != nil {
				t.Fatal(err)
			}
			view, _, err := w.Joined.Show(context.Background(), "new")
			if err != nil ||
				!slices.ContainsFunc(
					view.Truth.Differences,
					func(d drift.Difference) bool { return d.Kind == c.want },
				) {
				t.Errorf("shown: %v, %v; want a difference of %s", view.Truth.Differences, err, c.want)
			}
			if !strings.HasPrefix(view.Truth.Verdict(), "not as intended: ") {
				t.Errorf("verdict %q", view.Truth.Verdict())
			}
			b, err := w.Bind("new")
			if err != nil || !b.Complete() || b.Why != nil {
				t.Errorf("repair: %v, falls short: %v, new placement: %v", err, b.Shortfalls(), b.Why)
			}
			w.CheckInPlace(t, "new")
			w.CheckSettled(t)
		})
	}
}

// A bind reports the pages that did not move, by size and reason.
func TestBind_ReportsWhatStaysBehind(t *testing.T) {
	w := misplaced(t, kinds[1], folderOf(t))
	if err := w.Stick("g", 4*mib); err != nil {
		t.Fatal(err)
	}
	b, err := elsewhere(context.Background(), w)
	if err != nil || b.Complete() {
		t.Fatalf("complete with 4 MiB left behind: %v", err)
	}
	if short := strings.Join(b.Shortfalls(), "; "); !strings.Contains(
		short,
		"partial 4 MiB did not move (1024 pages: in use or pinned)",
	) {
		t.Errorf("falls short: %s", short)
	}
	w.CheckSettled(t)
}

func TestBind_GuestThatDoesNotRun(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	w.Vanish("g")
	if _, err := w.Bind("g"); err == nil || !strings.Contains(err.Error(), "is shutoff: start it first") {
		t.Errorf("error %v", err)
	}
	if _, err := w.Bind("other"); !errors.Is(err, operate.ErrNoGuest) {
		t.Errorf("error %v, want ErrNoGuest", err)
	}
	w.CheckSettled(t)
}

func TestADryRunChangesNothing(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	before := w.MustGuest(t, "g")
	b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "g", Change: limitTo("3"), DryRun: true})
	if err != nil || len(b.Plan.Steps) == 0 || b.Outcomes != nil {
		t.Errorf("%v, %d steps, outcomes %v", err, len(b.Plan.Steps), b.Outcomes)
	}
	w.CheckUnchanged(t, before)
	w.CheckSettled(t)
}

// A guest that Numavisor did not create stays adopted, however often it is bound:
// balancing depends on that.
func TestBind_UnmanagedGuestStaysUnmanaged(t *testing.T) {
	w := newWorld(t, square, t.TempDir())
	w.MustAdd(t,
		fake.Definition{Name: "theirs", Config: inventory.Config{VCPUs: 1, Memory: 256 * mib, Source: "anonymous"}})
	for _, r := range []operate.BindRequest{{Name: "theirs"}, {Name: "theirs"}, {Name: "theirs", Recompute: true}} {
		if _, err := w.Joined.Bind(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if g := w.MustGuest(t, "theirs"); !g.Managed || !g.Adopted || g.Ours() {
			t.Errorf("after %+v: managed %v, adopted %v", r, g.Managed, g.Adopted)
		}
	}
}
