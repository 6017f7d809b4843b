package operate_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var (
	here  = guest.HostIdentity{ID: "id-here", Name: "fake"}
	there = guest.HostIdentity{ID: "id-there", Name: "far"}
)

// migrated is a host to which a VM "g" has migrated: its metadata holds the
// placement that host made, on nodes 2-3, and the VM runs on node 0.
func migrated(t *testing.T, host guest.HostIdentity) world {
	t.Helper()
	w := newWorld(t, square, folderOf(t))
	w.Joined.Sources.HostID = func() (string, error) { return here.ID, nil }
	asked := spec(t, guest.Spec{Name: "g", VCPUs: 1, Memory: 512 * mib, Limits: guest.Limits{Nodes: nodes("2-3")}})
	made, err := w.Create(asked)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(context.Background(), "g"); err != nil {
		t.Fatal(err)
	}
	d := kinds[0].Guest("g", 512*mib, []topology.NodeID{0}, cpus("0-3"))
	d.Intent = &guest.Intent{Host: host, Spec: asked, Placement: made.Placement}
	w.MustAdd(t, d)
	return w
}

func observed(t *testing.T, w world) (inventory.Host, inventory.Guest) {
	t.Helper()
	inv, err := w.Joined.Observe(context.Background(), "g")
	if err != nil || len(inv.Guests) != 1 {
		t.Fatalf("%d guests, %v", len(inv.Guests), err)
	}
	return inv, inv.Guests[0]
}

func TestObserve_IgnoresIntentsOfAnotherHost(t *testing.T) {
	inv, g := observed(t, migrated(t, there))
	if g.Managed || g.Spec != nil || g.Placement != nil || g.PlacedFor == nil || *g.PlacedFor != there {
		t.Errorf("managed %v, spec %v, placement %v, placed for %v", g.Managed, g.Spec, g.Placement, g.PlacedFor)
	}
	for _, h := range inv.Holdings("") {
		if h.Node != 0 && h.Memory() > 0 {
			t.Errorf("it holds %v of node %d by the placement of another host", h.Memory(), h.Node)
		}
	}
	truth := operate.Truths(&inv)[0]
	if truth.Managed || len(truth.Differences) > 0 || truth.PlacedFor == nil || *truth.PlacedFor != there {
		t.Errorf("managed %v, drift %v, placed for %v", truth.Managed, truth.Differences, truth.PlacedFor)
	}
}

func TestObserve_UsesIntentsOfThisHostAndOfNone(t *testing.T) {
	renamed := guest.HostIdentity{ID: here.ID, Name: "former name"}
	for _, host := range []guest.HostIdentity{here, renamed, {}} {
		_, g := observed(t, migrated(t, host))
		if !g.Managed || g.Placement == nil || g.PlacedFor != nil {
			t.Errorf("intent of %+v: managed %v, placement %v, placed for %v", host, g.Managed, g.Placement,
				g.PlacedFor)
		}
	}
}

func TestBind_PlacesAMigratedVM(t *testing.T) {
	w := migrated(t, there)
	b, err := w.Bind("g")
	if err != nil || b.Why == nil {
		t.Fatalf("%v; the other host's placement was repaired: %s", err, b.Plan.Text())
	}
	_, g := observed(t, w)
	if !g.Managed || !g.Ours() || g.PlacedFor != nil {
		t.Errorf("after the bind: managed %v, ours %v, placed for %v", g.Managed, g.Ours(), g.PlacedFor)
	}
	recordedFor(t, w, "g", here)
	w.CheckInPlace(t, "g")
}

// Every way to record an intent names the host.
func TestIntentNamesTheHost(t *testing.T) {
	w := migrated(t, guest.HostIdentity{})
	if _, err := w.Bind("g"); err != nil { // a repair
		t.Fatal(err)
	}
	recordedFor(t, w, "g", here)
	if _, err := w.Create(spec(t, specs["small"])); err != nil {
		t.Fatal(err)
	}
	recordedFor(t, w, "new", here)
}

// recordedFor checks which host the metadata of a guest names.
func recordedFor(t *testing.T, w world, name string, want guest.HostIdentity) {
	t.Helper()
	intent, ok := w.Intent(name)
	if !ok {
		t.Fatalf("guest %s has no intent", name)
	}
	if diff := cmp.Diff(want, intent.Host); diff != "" {
		t.Errorf("the intent of guest %s is for (-want +got):\n%s", name, diff)
	}
}
