package operate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/topology"
)

// Memory that a device pins is not touched, and the bind says so.
func TestBind_ReportsMemoryPinnedByADevice(t *testing.T) {
	machine, err := topology.Synthetic(square)
	if err != nil {
		t.Fatal(err)
	}
	machine.Devices = []topology.Device{{Address: "0000:3b:00.0", Kind: topology.DeviceNIC, Node: 0}}
	w := join(t, fake.New(machine), folderOf(t))
	d := kinds[0].Guest("g", 64*mib, []topology.NodeID{1}, cpus("12-15"))
	d.Config.Devices = []string{"0000:3b:00.0"}
	w.MustAdd(t, d)
	memory := w.MustGuest(t, "g").Seen.Ranges[0].ByNode
	b, err := elsewhere(context.Background(), w)
	if err != nil || b.Complete() {
		t.Fatalf("complete with pinned memory: %v", err)
	}
	if short := strings.Join(b.Shortfalls(), "; "); !strings.Contains(short, "0000:3b:00.0") {
		t.Errorf("falls short: %s", short)
	}
	if now := w.MustGuest(t, "g").Seen.Ranges[0].ByNode; now[3] != memory[3] {
		t.Errorf("pinned memory was on %v, and is now on %v", memory, now)
	}
	w.CheckSettled(t)
}

// Pages of 1 GiB move only into free pages of the target's pool. If it has none
// and cannot grow, the bind reports what is missing; with room it is done.
func TestBind_PagesThatNeedRoomInThePool(t *testing.T) {
	w := newWorld(t, "nodes:2 cores:2 memory:8G huge:1G=2", folderOf(t))
	s := spec(t, guest.Spec{Name: "new", VCPUs: 1, Memory: gib, PageSize: gib, Limits: guest.Limits{Nodes: nodes("1")}})
	if _, err := w.Create(s); err != nil {
		t.Fatal(err)
	}
	if err := w.Smear("new", nodes("0")); err != nil {
		t.Fatal(err)
	}
	if gone, err := w.ShrinkPool(1, gib, 2); err != nil || gone != 2 {
		t.Fatalf("%d pages went: %v", gone, err)
	}
	w.Fill(1, gib-mib)
	b, err := w.Bind("new")
	if !errors.Is(err, unix.ENOMEM) || b.Complete() {
		t.Fatalf("error %v, complete: %v; want that there is no room", err, b.Complete())
	}
	short := strings.Join(b.Shortfalls(), "; ")
	for _, want := range []string{"grow-huge-page-pool: 1 pages of 1 GiB on node 1: partial 0 of 1 " +
		"pages", "move-memory", "cell 0 has memory on nodes other than 1: node 0: 1 GiB"} {
		if !strings.Contains(short, want) {
			t.Errorf("falls short: %s; want also %s", short, want)
		}
	}
	w.CheckSettled(t)
	w.Drain()
	if b, err := w.Bind("new"); err != nil || !b.Complete() {
		t.Errorf("with room: %v, falls short: %v", err, b.Shortfalls())
	}
	w.CheckInPlace(t, "new")
	w.CheckSettled(t)
}

// A target that fills up while it is copied to leaves the guest running, in
// two places, and says how much did not fit; with room again it is finished.
func TestBindToANodeThatFillsUp(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	s := spec(
		t,
		guest.Spec{
			Name:    "new",
			VCPUs:   2,
			Memory:  512 * mib,
			Binding: guest.MemorySpec{Immediate: true},
			Limits:  guest.Limits{Nodes: nodes("1")},
		},
	)
	if _, err := w.Create(s); err != nil {
		t.Fatal(err)
	}
	if err := w.Smear("new", nodes("0")); err != nil {
		t.Fatal(err)
	}
	w.Fill(1, 100*mib)
	b, err := w.Bind("new")
	if !errors.Is(err, unix.ENOMEM) || b.Complete() {
		t.Fatalf("error %v, complete: %v", err, b.Complete())
	}
	for _, o := range b.Outcomes {
		if o.Status == apply.Failed && (o.Moved == nil || o.Moved.Moved != 100*mib || o.Moved.Failed != 412*mib) {
			t.Errorf("%s: moved %+v, want 100 MiB and 412 MiB left", o.Step, o.Moved)
		}
	}
	if seen := b.Truth.MemoryByNode; seen[0] != 412*mib {
		t.Errorf("the truth after it: %v", seen)
	}
	w.Drain()
	if b, err := w.Bind("new"); err != nil || !b.Complete() {
		t.Errorf("with room: %v, falls short: %v", err, b.Shortfalls())
	}
	w.CheckInPlace(t, "new")
	w.CheckSettled(t)
}
