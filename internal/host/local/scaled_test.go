package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// An observation shows what the daemon records of running VMs whose number of vCPUs follows their demand.
func TestAnObservationShowsTheRecordOfUsedVCPUs(t *testing.T) {
	h, err := Open(Options{Claims: t.TempDir(), Records: t.TempDir(), WithoutLibvirt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := &guest.Placement{Scale: &guest.Scale{Min: 2, Weight: 30}}
	host := func() inventory.Host {
		return inventory.Host{Guests: []inventory.Guest{
			{Name: "w", PID: 1, Placement: p}, {Name: "again", PID: 3, Placement: p}, {Name: "off", Placement: p},
			{Name: "o", PID: 2, Placement: &guest.Placement{}},
		}}
	}
	inv := host()
	if h.addScaled(&inv); inv.Guests[0].Seen.Scaled != nil || len(inv.Gaps) > 0 {
		t.Errorf("without a record: %+v, gaps %v", inv.Guests[0].Seen.Scaled, inv.Gaps)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(h.Ledger.Folder, "scale.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"w": {"pid": 1, "used": "0-2", "min_vcpus": 2, "weight": 30, "means": "flip", "silent": true},
		"again": {"pid": 2, "used": "0"}, "off": {"pid": 0, "used": "0"}, "o": {"pid": 2, "used": "0"}}`)
	h.addScaled(&inv)
	want := &inventory.Scaled{Used: topology.SetOf[guest.VCPUID](0, 1, 2), Min: 2, Weight: 30, Means: "flip", Silent: true}
	if diff := cmp.Diff(want, inv.Guests[0].Seen.Scaled); diff != "" {
		t.Errorf("w (-want +got):\n%s", diff)
	}
	for _, g := range inv.Guests[1:] {
		if g.Seen.Scaled != nil {
			t.Errorf("%s was started again, does not run, or uses all of its vCPUs: %+v", g.Name, g.Seen.Scaled)
		}
	}
	write("{")
	inv = host()
	if h.addScaled(&inv); len(inv.Gaps) != 1 || inv.Guests[0].Seen.Scaled != nil {
		t.Errorf("a damaged record: gaps %v", inv.Gaps)
	}
	inv.Guests, inv.Gaps = inv.Guests[3:], nil
	if h.addScaled(&inv); len(inv.Gaps) != 0 {
		t.Errorf("without such VMs nothing is missing: %v", inv.Gaps)
	}
}
