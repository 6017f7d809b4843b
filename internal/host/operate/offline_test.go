package operate_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
)

// A placement whose CPUs are offline cannot be repaired: the VM gets a new
// placement.
func TestBind_PlacesAVMWhoseCPUsAreOffline(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	asked := spec(t, guest.Spec{Name: "g", VCPUs: 2, Memory: 512 * mib})
	if _, err := w.Create(asked); err != nil {
		t.Fatal(err)
	}
	home := w.MustGuest(t, "g").Placement.Nodes
	machine := w.Nodes()
	w.SwitchOff(machine.CPUsOf(home))
	inv, _ := observed(t, w)
	if truth := operate.Truths(&inv)[0]; len(truth.Differences) == 0 {
		t.Error("list shows no drift of a VM whose CPUs are all offline")
	}
	b, err := w.Bind("g")
	if err != nil || !b.Complete() {
		t.Fatalf("%v %v", err, b.Shortfalls())
	}
	if b.Why == nil || b.Plan.Placement.Nodes.Intersects(home) {
		t.Errorf("bound to nodes %s, those without CPUs are %s", b.Plan.Placement.Nodes, home)
	}
	w.CheckInPlace(t, "g")
	w.CheckSettled(t)
}

// A placement with some CPUs still online is not replaced.
func TestBind_KeepsAPlacementThatHasCPUsLeft(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if _, err := w.Create(spec(t, guest.Spec{Name: "g", VCPUs: 2, Memory: 512 * mib})); err != nil {
		t.Fatal(err)
	}
	first, _ := w.MustGuest(t, "g").Placement.VCPUs[0].CPUs.First()
	w.SwitchOff(cpus("").With(first))
	inv, _ := observed(t, w)
	if truth := operate.Truths(&inv)[0]; len(truth.Differences) > 0 {
		t.Errorf("drift %v", truth.Differences)
	}
	if b, err := w.Bind("g"); err != nil || len(b.Plan.Steps) > 0 {
		t.Errorf("%v; a VM in place gets a plan:\n%s", err, b.Plan.Text())
	}
}
