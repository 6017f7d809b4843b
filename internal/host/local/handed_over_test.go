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

// mirroredHost has a running mirrored VM m, one that does not run, and an ordinary one.
func mirroredHost() inventory.Host {
	p := &guest.Placement{Handoff: &guest.Handoff{Min: 2, Weight: 30}}
	return inventory.Host{Guests: []inventory.Guest{
		{Name: "m", PID: 1, Placement: p}, {Name: "off", Placement: p}, {Name: "o", PID: 2, Placement: &guest.Placement{}},
	}}
}

// An observation shows what the daemon records of running mirrored VMs.
func TestAnObservationShowsTheRecordOfGrants(t *testing.T) {
	h, err := Open(Options{Claims: t.TempDir(), Records: t.TempDir(), WithoutLibvirt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	inv := mirroredHost()
	h.addHandedOver(&inv)
	if g := inv.Guests[0].Seen.HandedOver; g != nil || len(inv.Gaps) > 0 {
		t.Errorf("without a record: %+v, gaps %v", g, inv.Gaps)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(h.Ledger.Folder, "handoff.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"grants": [{"cpu": 4, "guest": "m"}, {"cpu": 5, "guest": "x"}, {"cpu": 6, "guest": "m", "leaving": true}],
		"guests": {"m": {"means": "flip", "silent": true, "taken": 3, "misbehaved": 1}}}`)
	h.addHandedOver(&inv)
	want := &inventory.HandedOver{CPUs: topology.SetOf[topology.CPUID](4, 6), Min: 2, Weight: 30, Means: "flip",
		Silent: true, Taken: 3, Misbehaved: 1}
	if diff := cmp.Diff(want, inv.Guests[0].Seen.HandedOver); diff != "" {
		t.Errorf("m (-want +got):\n%s", diff)
	}
	if inv.Guests[1].Seen.HandedOver != nil || inv.Guests[2].Seen.HandedOver != nil {
		t.Error("a VM that does not run, or hands nothing over, has a record")
	}
	write("{")
	inv = mirroredHost()
	if h.addHandedOver(&inv); len(inv.Gaps) != 1 || inv.Guests[0].Seen.HandedOver != nil {
		t.Errorf("a damaged record: gaps %v", inv.Gaps)
	}
	inv.Guests, inv.Gaps = inv.Guests[1:], nil
	if h.addHandedOver(&inv); len(inv.Gaps) != 0 {
		t.Errorf("without mirrored VMs nothing is missing: %v", inv.Gaps)
	}
}
