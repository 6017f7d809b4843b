package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The command says that there are no VMs only if every hypervisor reported
// none.
func TestAnEmptyListSaysWhetherAllWasSeen(t *testing.T) {
	for _, c := range []struct {
		gaps []inventory.Gap
		want string
	}{
		{nil, "no VMs on this host\n"},
		{[]inventory.Gap{{Kind: inventory.OtherGap, Object: inventory.HostRef(), What: "its name", Why: "lost"}},
			"no VMs on this host\nnot seen: host: its name\n  cause: lost\n"},
		{[]inventory.Gap{inventory.UnseenGap(guest.LibvirtQEMU, "away")}, "no VMs were seen\nnot seen: host: VMs " +
			"of qemu\n  cause: away\n"},
	} {
		var printed strings.Builder
		printList(&printed, &topology.Topology{}, guestList{Gaps: c.gaps}, false)
		if printed.String() != c.want {
			t.Errorf("gaps %v: printed %q, want %q", c.gaps, printed.String(), c.want)
		}
	}
}

// Differences during a guest's move are no drift.
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
	printList(&printed, &topology.Topology{}, guestList{Guests: []operate.Truth{g}}, false)
	for _, want := range []string{"(for host far)", "web1 was placed for host far; 'numavisor bind web1' places it " +
		"here"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("printed %q, want %q in it", printed.String(), want)
		}
	}
}

func TestList_ChoosesAndSorts(t *testing.T) {
	half, none := 0.5, 0.0
	inv := &inventory.Host{Guests: []inventory.Guest{{Name: "db1"}, {Name: "db2"}, {Name: "web"}}}
	names := func(all []operate.Truth) string {
		var s []string
		for _, g := range all {
			s = append(s, g.Guest)
		}
		return strings.Join(s, " ")
	}
	got, err := (&listing{sortBy: "name", names: []string{"web", "db1"}}).choose(inv)
	if err != nil || names(got) != "db1 web" {
		t.Errorf("by name: got %q, %v", names(got), err)
	}
	if _, err := (&listing{sortBy: "name", names: []string{"webb"}}).choose(inv); err == nil ||
		!strings.Contains(err.Error(), "did you mean web?") {
		t.Errorf("a name that no VM has: %v", err)
	}
	for by, want := range map[string]string{"local": "b a c", "wait": "a b c", "memory": "c a b", "name": "a b c"} {
		all := []operate.Truth{
			{Guest: "c", Memory: 3},
			{Guest: "a", Memory: 2, LocalShare: &half, WaitShare: &half},
			{Guest: "b", Memory: 1, LocalShare: &none, WaitShare: &none},
		}
		slices.SortStableFunc(all, orders[by])
		if names(all) != want {
			t.Errorf("--sort %s: got %q, want %q", by, names(all), want)
		}
	}
	for _, bad := range []listing{{sortBy: "names"}, {sortBy: "name", every: 1}} {
		if err := bad.check(); statusOf(err) != exitUsage {
			t.Errorf("%+v: got %v, want a usage error", bad, err)
		}
	}
}

func TestList_WatchEndsInTheMiddleOfALook(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	c := &cobra.Command{}
	c.SetContext(ctx)
	err := (&listing{every: time.Second}).repeat(c, func(look context.Context) error {
		interrupt()
		select {
		case <-look.Done():
			return look.Err()
		case <-time.After(20 * time.Second):
			return errors.New("the look did not end with the interrupt")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// Of a mirrored VM, the list shows how many of its vCPUs have a CPU.
func TestListShowsHowManyCPUsAMirroredVMHas(t *testing.T) {
	g := operate.Truth{Guest: "m1", State: "running", VCPUs: 14, HandedOver: &inventory.HandedOver{
		CPUs: topology.SetOf[topology.CPUID](1, 2, 3, 4)}}
	var printed strings.Builder
	printList(&printed, &topology.Topology{}, guestList{Guests: []operate.Truth{g}}, false)
	if !strings.Contains(printed.String(), " 4 of 14 ") {
		t.Errorf("printed\n%s", printed.String())
	}
	g.HandedOver.CPUs = topology.CPUSet{}
	if got := vcpusText(g); got != "14" {
		t.Errorf("without a record: %q", got)
	}
}
