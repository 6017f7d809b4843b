package schedule

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// world is what a fleet should know: a fleet that is made from it at once is the oracle.
type world struct {
	hosts  map[string]Host
	claims map[string]*Decision // by VM
}

// fresh makes a fleet from the world.
func (w *world) fresh(t *rapid.T) *Fleet {
	f, err := New(nil, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(mapKeys(w.hosts)) {
		f.SetHost(w.hosts[name])
	}
	for _, vm := range slices.Sorted(mapKeys(w.claims)) {
		if err := f.Add(w.claims[vm]); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// reported returns the inventory of a host on which some of the claimed VMs run.
func (w *world) reported(t *rapid.T, h Host) Host {
	copied := *h.Inventory
	copied.Guests = nil
	for _, vm := range slices.Sorted(mapKeys(w.claims)) {
		d := w.claims[vm]
		if d.Host == h.Name && rapid.Bool().Draw(t, "shown") {
			copied.Guests = append(copied.Guests, inventory.Guest{Name: vm, State: "running", Managed: true,
				Spec:      &d.Spec,
				Placement: &d.Placement, Config: inventory.Config{VCPUs: d.Spec.VCPUs, Memory: d.Spec.Memory}})
		}
	}
	h.Inventory = &copied
	return h
}

// After any sequence of changes, a fleet knows the same as one that is made at once.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := New(nil, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		w := world{hosts: map[string]Host{}, claims: map[string]*Decision{}}
		for i := range rapid.IntRange(1, 30).Draw(t, "changes") {
			w.change(t, f, i)
			w.compare(t, f)
		}
	})
}

// change makes a random change to the fleet and the world.
func (w *world) change(t *rapid.T, f *Fleet, i int) {
	hosts, vms := slices.Sorted(mapKeys(w.hosts)), slices.Sorted(mapKeys(w.claims))
	kind := rapid.IntRange(0, 9).Draw(t, "change")
	switch {
	case kind == 0 || len(hosts) == 0:
		for _, h := range drawHosts(t) {
			f.SetHost(h)
			w.hosts[h.Name] = h
		}
	case kind == 1:
		name := rapid.SampledFrom(hosts).Draw(t, "removed")
		f.RemoveHost(name)
		delete(w.hosts, name)
		for _, vm := range vms {
			if w.claims[vm].Host == name {
				delete(w.claims, vm)
			}
		}
	case kind == 2:
		h := w.hosts[rapid.SampledFrom(hosts).Draw(t, "closed")]
		h.Cordoned, h.Unreachable = rapid.Bool().Draw(t, "cordoned"), rapid.Bool().Draw(t, "unreachable")
		w.hosts[h.Name] = h
		if f.SetCordoned(h.Name, h.Cordoned) != nil || f.SetUnreachable(h.Name, h.Unreachable) != nil {
			t.Fatal("the fleet does not know the host")
		}
	case kind < 5:
		h := w.reported(t, w.hosts[rapid.SampledFrom(hosts).Draw(t, "reports")])
		w.hosts[h.Name] = h
		f.SetHost(h)
	case kind == 5 && len(vms) > 0:
		d := w.claims[rapid.SampledFrom(vms).Draw(t, "leaves")]
		delete(w.claims, d.Spec.Name)
		h := w.reported(t, w.hosts[d.Host])
		w.hosts[h.Name] = h
		if err := f.Remove(d.Host, d.Spec.Name); err != nil {
			t.Fatal(err)
		}
		f.SetHost(h)
	default:
		d, err := f.Decide(Request{Spec: drawSpec(t, fmt.Sprintf("vm%d", i))})
		if err != nil {
			return
		}
		if rapid.Bool().Draw(t, "in a group") {
			d.Group = "g"
		}
		w.claims[d.Spec.Name] = d
		if err := f.Add(d); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) compare(t *rapid.T, f *Fleet) {
	want := w.fresh(t)
	if len(f.byName) != len(w.hosts) || f.largest != want.largest {
		t.Fatalf("%d hosts, the largest %+v; want %d, %+v", len(f.byName), f.largest, len(w.hosts), want.largest)
	}
	for name := range w.hosts {
		got, want := f.hosts[f.byName[name]], want.hosts[want.byName[name]]
		if !equalRooms(got.rooms, want.rooms) || !equalRooms(got.others, want.others) {
			t.Fatalf("%s: %+v; want %+v", name, got.rooms, want.rooms)
		}
	}
	for _, r := range []reason{cordoned, unreachable} {
		if f.closed[r] != want.closed[r] {
			t.Fatalf("%s: %d hosts; want %d", r, f.closed[r], want.closed[r])
		}
	}
	if got, want := f.membersOf("g"), want.membersOf("g"); !reflect.DeepEqual(got, want) {
		t.Fatalf("in the group: %v; want %v", got, want)
	}
	asFromTheStart(t, f)
	asFromTheStart(t, want)
}

func equalRooms(a, b []room) bool {
	return slices.EqualFunc(a, b, func(x, y room) bool { return x.node == y.node && x.equal(&y) })
}

// membersOf returns the VMs of a group with their hosts.
func (f *Fleet) membersOf(group string) map[string]string {
	out := map[string]string{}
	for _, m := range f.groups[group] {
		out[m.vm] = f.hosts[m.host].Name
	}
	return out
}

// A VM that is claimed and in the inventory counts once; while it moves on its host, on the
// nodes of both placements.
func TestAClaimedVMOfTheInventoryCountsOnce(t *testing.T) {
	f := fleetOf(t, "nodes:2 cores:8 memory:16G")
	d, err := f.Decide(Request{Spec: guest.Spec{Name: "vm", VCPUs: 4, Memory: 4 * gib,
		Limits: guest.Limits{MaxNodes: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Add(d); err != nil {
		t.Fatal(err)
	}
	claimed := slices.Clone(f.hosts[0].rooms)
	h := Host{Name: "h0", Inventory: machine(t, "nodes:2 cores:8 memory:16G")}
	h.Inventory.Guests = []inventory.Guest{{Name: "vm", State: "running", Managed: true, Spec: &d.Spec,
		Placement: &d.Placement}}
	f.SetHost(h)
	if !equalRooms(f.hosts[0].rooms, claimed) {
		t.Errorf("claimed: %+v; shown: %+v", claimed, f.hosts[0].rooms)
	}
	moved := *d
	moved.Placement.Reservations = slices.Clone(d.Placement.Reservations)
	moved.Placement.Reservations[0].Node = 1 - moved.Placement.Reservations[0].Node
	if err := f.Add(&moved); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.hosts[0].rooms {
		if r.vcpus != f.policy.Overcommit*8-4 {
			t.Errorf("during the move, node %d: %+v", r.node, r)
		}
	}
	if err := f.Remove("h0", "vm"); err != nil {
		t.Fatal(err)
	}
	if !equalRooms(f.hosts[0].rooms, fleetOf(t, "nodes:2 cores:8 memory:16G").hosts[0].rooms) {
		t.Errorf("removed: %+v", f.hosts[0].rooms)
	}
}

func TestAnUnreachableHostGetsNoVMs(t *testing.T) {
	f := fleetOf(t, "nodes:1 cores:8 memory:16G")
	if err := f.SetUnreachable("h0", true); err != nil {
		t.Fatal(err)
	}
	_, err := f.Decide(Request{Spec: guest.Spec{Name: "vm", VCPUs: 1, Memory: gib}})
	if err == nil || !strings.Contains(err.Error(), "1 host: unreachable") {
		t.Error(err)
	}
	if f.SetUnreachable("h1", true) == nil || f.SetCordoned("h1", true) == nil {
		t.Error("an unknown host is no error")
	}
}
