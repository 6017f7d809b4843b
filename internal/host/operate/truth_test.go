package operate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestTruths_OfEveryGuest(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if _, err := w.Create(spec(t, specs["small"])); err != nil {
		t.Fatal(err)
	}
	w.MustAdd(t, kinds[0].Guest("loose", 64*mib, []topology.NodeID{1}, cpus("0")))
	w.MustAdd(t, kinds[0].Guest("off", 64*mib, []topology.NodeID{1}, cpus("0")))
	w.Vanish("off")
	inv, err := w.Joined.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all := operate.Truths(&inv)
	if len(all) != 3 || all[0].Guest != "loose" || all[1].Guest != "new" || all[2].Guest != "off" {
		t.Fatalf("guests %+v", all)
	}
	loose, made, off := all[0], all[1], all[2]
	if loose.Managed || loose.MemoryOnIntended != nil || loose.LocalShare == nil {
		t.Errorf("an unmanaged guest has no intended place, but a local share: %+v", loose)
	}
	if want := "as intended: 100 % of vCPUs on the intended CPUs, 100.0 % of memory on the intended " +
		"nodes"; made.Verdict() != want ||
		!made.Managed {
		t.Errorf("verdict %q, want %q", made.Verdict(), want)
	}
	if first, _ := made.Nodes.First(); made.VCPUsByNode[first] != 2 {
		t.Errorf("vCPUs ran on %v, intended nodes %s", made.VCPUsByNode, made.Nodes)
	}
	if off.State != "shutoff" || off.LocalShare != nil || off.MemoryByNode != nil {
		t.Errorf("a guest that is off has no memory on any node: %+v", off)
	}
}

func TestShow_EachCell(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if _, err := w.Create(spec(t, specs["wide"])); err != nil {
		t.Fatal(err)
	}
	view, _, err := w.Joined.Show(context.Background(), "new")
	if err != nil || len(view.Cells) != 2 {
		t.Fatalf("%v, cells %+v", err, view.Cells)
	}
	for i, c := range view.Cells {
		placed := view.Placement.Cells[i]
		if !c.VCPUs.Equal(placed.VCPUs) || !c.Intended.Equal(placed.Nodes) || c.Memory != placed.Memory ||
			c.Backing != "memfd" {
			t.Errorf("cell %d shown as %+v, placed as %+v", i, c, placed)
		}
	}
	w.Inject(fake.Fault{Before: fake.NthOf("Ranges", 1, func() error { return errLost })})
	if view, _, err = w.Joined.Show(context.Background(), "new"); err != nil || view.Cells == nil ||
		len(view.Cells) > 0 ||
		len(view.Gaps) != 1 {
		t.Errorf("%v; cells that could not be read: %v, gaps %v", err, view.Cells, view.Gaps)
	}
	if _, _, err := w.Joined.Show(context.Background(), "other"); !errors.Is(err, operate.ErrNoGuest) {
		t.Errorf("error %v", err)
	}
}

// A guest whose hypervisor does not answer may exist: the error says so, and
// names the hypervisor and no other gap.
func TestMissing_GuestMayBeHidden(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	w.Joined.Sources.Kernel = unreadable{w.Host}
	w.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { return errLost })})
	_, _, err := w.Joined.Show(context.Background(), "g")
	want := "VM g: cannot tell whether it exists: could not see VMs of qemu: the machine is on fire"
	if err == nil || err.Error() != want || !errors.Is(err, operate.ErrUnseen) || errors.Is(err, operate.ErrNoGuest) {
		t.Errorf("error %v, want %s", err, want)
	}
	w.Inject(fake.Fault{})
	_, _, err = w.Joined.Show(context.Background(), "other")
	if want := "VM other: no such VM on this host; 'numavisor list' shows all"; err == nil ||
		err.Error() != want ||
		!errors.Is(err, operate.ErrNoGuest) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// A guest that ends during the observation is observed again.
func TestShow_GuestEndsMeanwhile(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	w.Inject(fake.Fault{Before: fake.NthOf("Threads", 1, func() error { w.Vanish("g"); return nil })})
	if view, _, err := w.Joined.Show(context.Background(), "g"); err != nil || view.Truth.State != "shutoff" {
		t.Errorf("state %q, error %v, want shutoff", view.Truth.State, err)
	}
}

// The reason for a missing guest is what was observed of it.
func TestMissing_GuestMayHaveEnded(t *testing.T) {
	gone := inventory.Gap{Kind: inventory.GuestGone, Object: inventory.GuestRef("g"), Why: "it ended during the observation"}
	if err := operate.Missing(inventory.Host{Gaps: []inventory.Gap{gone}}, "g"); !errors.Is(err, operate.ErrNoGuest) ||
		!strings.Contains(err.Error(), gone.Why) {
		t.Errorf("error %v", err)
	}
}

// unreadable is a kernel with a setting that cannot be read, which hides no guest.
type unreadable struct{ *fake.Host }

func (u unreadable) Settings() (inventory.Kernel, []inventory.Gap) {
	settings, gaps := u.Host.Settings()
	return settings, append(
		gaps,
		inventory.Gap{
			Kind:   inventory.SettingsUnread,
			Object: inventory.HostRef(),
			What:   "/sys/kernel/mm/ksm/run",
			Why:    "permission denied",
		},
	)
}

// Pages that were added for a guest are given back if another program removed the
// guest, also if the observation has other gaps, but not while the guest may exist.
func TestPagesOfARemovedGuestAreGivenBack(t *testing.T) {
	w := newWorld(t, "nodes:1 cores:4 memory:4G huge:2M=64", folderOf(t))
	w.Joined.Sources.Kernel = unreadable{w.Host}
	huge := guest.Spec{Name: "new", VCPUs: 1, Memory: 256 * mib, PageSize: 2 * mib}
	if _, err := w.Create(spec(t, huge)); err != nil {
		t.Fatal(err)
	}
	w.Vanish("new")
	if err := w.Remove(context.Background(), "new"); err != nil {
		t.Fatal(err)
	}
	w.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { return errLost })})
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); !errors.Is(
		err,
		operate.ErrUnseen,
	) {
		t.Errorf("error %v", err)
	}
	if pages := w.Pools()[0]; pages != 128 {
		t.Errorf("the pool has %d pages: given back while the guest may exist", pages)
	}
	w.Inject(fake.Fault{})
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); !errors.Is(
		err,
		operate.ErrNoGuest,
	) {
		t.Errorf("error %v", err)
	}
	if pages := w.Pools()[0]; pages != 64 {
		t.Errorf("the pool has %d pages, 64 at first", pages)
	}
}

func TestDelete_FailureChangesNothing(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if _, err := w.Create(spec(t, specs["huge pages, pool must grow"])); err != nil {
		t.Fatal(err)
	}
	before, pools := w.MustGuest(t, "new"), w.Pools()
	w.Inject(fake.Fault{Before: fake.NthOf("Remove", 1, func() error { return errLost })})
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); !errors.Is(err, errLost) {
		t.Errorf("error %v", err)
	}
	w.CheckUnchanged(t, before)
	if now := w.Pools(); now[0] != pools[0] || now[1] != pools[1] || now[2] != pools[2] || now[3] != pools[3] {
		t.Errorf("pools %v, before %v", now, pools)
	}
	w.CheckSettled(t)
}

// Pages that are in use by others when their guest is deleted remain recorded, and
// the next Delete gives them back.
func TestPagesInUseAreGivenBackLater(t *testing.T) {
	w := newWorld(t, "nodes:1 cores:4 memory:4G huge:2M=64", folderOf(t))
	huge := guest.Spec{Name: "new", VCPUs: 1, Memory: 256 * mib, PageSize: 2 * mib}
	if _, err := w.Create(spec(t, huge)); err != nil {
		t.Fatal(err)
	}
	greedy := kinds[12].Guest("greedy", 256*mib, []topology.NodeID{0}, cpus("0"))
	w.Inject(fake.Fault{After: fake.NthOf("Remove", 1, func() error { return w.Add(greedy) })})
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); err == nil {
		t.Error("no error about pages that remain")
	}
	if pages := w.Pools()[0]; pages != 128 {
		t.Errorf("the pool has %d pages, all 128 are in use", pages)
	}
	w.Vanish("greedy")
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); !errors.Is(
		err,
		operate.ErrNoGuest,
	) {
		t.Errorf("error %v", err)
	}
	if pages := w.Pools()[0]; pages != 64 {
		t.Errorf("the pool has %d pages, 64 at first", pages)
	}
	w.CheckSettled(t)
}
