package inventory_test

import (
	"encoding/json"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// A guest of an older document gets the capabilities of its hypervisor; those
// in a document are used unchanged.
func TestGuest_CapabilitiesFromJSON(t *testing.T) {
	for text, want := range map[string]inventory.Capabilities{
		`{"name":"g","hypervisor":"qemu"}`: {PinVCPU: true, MoveMemory: true, LiveNodeset: true,
			StoreIntent: true},
		`{"name":"g","hypervisor":"qemu-plain"}`: {MoveMemory: true},
		`{"name":"g","hypervisor":"xen"}`: {PinVCPU: true, StoreIntent: true, NoHelpers: true, Recreate: true, Migrate: true,
			SoftAffinity: true},
		`{"name":"g","hypervisor":"bhyve"}`:                    {},
		`{"name":"g","hypervisor":"qemu","capabilities":{}}`:   {},
		`{"name":"g","capabilities":{"move_memory":true}}`:     {MoveMemory: true},
		`{"name":"g","hypervisor":"qemu","capabilities":null}`: inventory.CapabilitiesOf(guest.LibvirtQEMU),
	} {
		var g inventory.Guest
		if err := json.Unmarshal([]byte(text), &g); err != nil || g.Can != want || g.Name != "g" {
			t.Errorf("%s: read as %+v, %v; want %+v", text, g.Can, err, want)
		}
	}
}

func TestGuest_JSONRoundTrip(t *testing.T) {
	for _, can := range []inventory.Capabilities{{}, {MoveMemory: true}, inventory.CapabilitiesOf(guest.LibvirtQEMU)} {
		data, err := json.Marshal(inventory.Guest{Name: "g", Hypervisor: guest.LibvirtQEMU, Can: can})
		if err != nil {
			t.Fatal(err)
		}
		var back inventory.Guest
		if err := json.Unmarshal(data, &back); err != nil || back.Can != can {
			t.Errorf("%s: capabilities %+v, %v; want %+v", data, back.Can, err, can)
		}
	}
}
