package inventory_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// A gap hides guests by its kind, whatever its text says.
func TestHost_HiddenBy(t *testing.T) {
	hiding := inventory.UnseenGap(guest.PlainQEMU, "it is away")
	h := inventory.Host{Gaps: []inventory.Gap{
		{Kind: inventory.SettingsUnread, Object: inventory.HostRef(), What: "VMs of qemu", Why: "not there"},
		{Kind: inventory.ThreadsUnread, Object: inventory.GuestRef("VMs"), What: "VMs of old", Why: "EIO"},
		{
			Kind:       inventory.HypervisorAbsent,
			Object:     inventory.HostRef(),
			Hypervisor: guest.Xen,
			What:       "the hypervisor xen",
			Why:        "not on this host",
		},
		hiding,
	}}
	if diff := cmp.Diff([]inventory.Gap{hiding}, h.HiddenBy()); diff != "" {
		t.Errorf("gaps that hide guests (-want +got):\n%s", diff)
	}
	for hypervisor, want := range map[guest.Hypervisor]bool{guest.PlainQEMU: true, guest.LibvirtQEMU: false,
		guest.Xen: false} {
		if got := hiding.HidesGuestsOf(hypervisor); got != want {
			t.Errorf("hides guests of %s: %v, want %v", hypervisor, got, want)
		}
	}
}

func TestGap_JSON(t *testing.T) {
	gap := inventory.UnseenGap(guest.PlainQEMU, "it is away")
	const text = `{"kind":"guests-unseen","object":"host","hypervisor":"qemu-plain","what":"VMs of QEMU without libvirt","why":"it is away"}`
	written, err := json.Marshal(gap)
	if err != nil || string(written) != text {
		t.Errorf("written: %s, %v\nwant %s", written, err, text)
	}
	var read inventory.Gap
	if err := json.Unmarshal([]byte(text), &read); err != nil || read != gap {
		t.Errorf("read back: %+v, %v", read, err)
	}
}

// Documents from before gaps had kinds can be read; Parse derives the kinds on
// which decisions depend.
func TestGap_WithoutKind(t *testing.T) {
	for text, want := range map[string]inventory.Gap{
		`{"object":"host","what":"VMs of qemu","why":"w"}`:                                               {Kind: inventory.GuestsUnseen, Hypervisor: guest.LibvirtQEMU},
		`{"object":"host","what":"VMs of QEMU without libvirt","why":"w"}`:                               {Kind: inventory.GuestsUnseen, Hypervisor: guest.PlainQEMU},
		`{"object":"host","what":"accesses by pmu","why":"w"}`:                                           {Kind: inventory.AccessUnmeasured},
		`{"object":"host","what":"loads of its VMs and nodes, and how fast memory is copied","why":"w"}`: {Kind: inventory.LoadsUnmeasured},
		`{"object":"host","what":"its name","why":"w"}`:                                                  {Kind: inventory.OtherGap},
		`{"object":"guest VMs of qemu","what":"VMs of qemu","why":"w"}`:                                  {Kind: inventory.OtherGap},
		`{"kind":"cgroup-unread","object":"guest g","what":"VMs of qemu","why":"w"}`:                     {Kind: inventory.CgroupUnread},
	} {
		var got inventory.Gap
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got.Kind != want.Kind || got.Hypervisor != want.Hypervisor || got.Why != "w" {
			t.Errorf("%s: read as %+v, want kind %s of hypervisor %q", text, got, want.Kind, want.Hypervisor)
		}
	}
}

func TestGap_Refused(t *testing.T) {
	for _, text := range []string{
		`{"kind":"guests-invisible","object":"host","what":"w","why":"w"}`,
		`{"kind":"","object":"host","what":"w","why":"w"}`,
		`{"kind":"other","what":"w","why":"w"}`,
		`{"kind":"other","object":"","what":"w","why":"w"}`,
		`{"kind":"other","object":"disk 1","what":"w","why":"w"}`,
	} {
		var g inventory.Gap
		if err := json.Unmarshal([]byte(text), &g); err == nil {
			t.Errorf("%s: read as %+v", text, g)
		}
	}
}

// Hidden guests and unreadable reservations make the free resources unknown.
func TestHost_RoomHiddenBy(t *testing.T) {
	away, damaged := inventory.UnseenGap(guest.LibvirtQEMU, "it is away"), inventory.ClaimsGap("damaged")
	h := inventory.Host{Gaps: []inventory.Gap{{Kind: inventory.OtherGap, What: "its name", Why: "lost"}, away, damaged}}
	if diff := cmp.Diff([]inventory.Gap{away, damaged}, h.RoomHiddenBy()); diff != "" {
		t.Errorf("gaps that hide resources (-want +got):\n%s", diff)
	}
	if damaged.HidesGuests() {
		t.Error("a damaged reservation hides guests")
	}
}
