package main

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// That there are no VMs is said only where all hypervisors told so.
func TestAnEmptyListSaysWhetherAllWasSeen(t *testing.T) {
	for _, c := range []struct {
		gaps []inventory.Gap
		want string
	}{
		{nil, "no VMs on this host\n"},
		{[]inventory.Gap{{Kind: inventory.OtherGap, Object: inventory.HostRef(), What: "its name", Why: "lost"}},
			"no VMs on this host\nnot seen: host: its name: lost\n"},
		{[]inventory.Gap{inventory.UnseenGap(guest.LibvirtQEMU, "away")}, "no VMs were seen\nnot seen: host: VMs " +
			"of qemu: away\n"},
	} {
		var printed strings.Builder
		printList(&printed, &topology.Topology{}, guestList{Gaps: c.gaps})
		if printed.String() != c.want {
			t.Errorf("gaps %v: printed %q, want %q", c.gaps, printed.String(), c.want)
		}
	}
}

// Differences while a guest is on its way are no drift.
func TestList_GuestBeingMovedIsNotDrifted(t *testing.T) {
	moving := operate.Truth{
		Guest:       "g",
		Managed:     true,
		InProgress:  true,
		Differences: []drift.Difference{{Kind: "memory"}},
	}
	if got := driftText(moving); got != "being bound or moved" {
		t.Errorf("shown as %q", got)
	}
}

func TestList_NamesTheHostThatAVMWasPlacedFor(t *testing.T) {
	g := operate.Truth{Guest: "web1", State: "running", PlacedFor: &guest.HostIdentity{ID: "1f", Name: "far"}}
	var printed strings.Builder
	printList(&printed, &topology.Topology{}, guestList{Guests: []operate.Truth{g}})
	for _, want := range []string{"(for host far)", "web1 was placed for host far; 'numavisor bind web1' places it " +
		"here"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("printed %q, want %q in it", printed.String(), want)
		}
	}
}
