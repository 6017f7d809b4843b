package inventory_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Of all that was not seen only a hypervisor that could not be asked hides guests.
func TestHiddenBy(t *testing.T) {
	away := inventory.GuestsUnseen("qemu", "it is away")
	h := inventory.Host{Gaps: []inventory.Gap{
		{Object: "host", What: "/sys/kernel/mm/ksm/run", Why: "not there"},
		{Object: "guest VMs", What: "VMs of old", Why: "a guest's gap is none of the host"},
		away,
	}}
	if diff := cmp.Diff([]inventory.Gap{away}, h.HiddenBy()); diff != "" {
		t.Errorf("gaps that hide guests (-want +got):\n%s", diff)
	}
	if want := (inventory.Gap{Object: "host", What: "VMs of qemu", Why: "it is away"}); away != want {
		t.Errorf("gap %+v, want %+v", away, want)
	}
}
