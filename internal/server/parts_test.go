package server

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/topology"
)

// fill sets all fields of a value below a depth, with numbers that count up.
func fill(v reflect.Value, depth int, n *int) {
	*n++
	if depth == 0 || v.Type().PkgPath() == "time" {
		return
	}
	switch v.Kind() { //nolint:exhaustive // the others are not in records
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth-1, n)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), depth-1, n)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1, n)
		fill(value, depth-1, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("text%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	}
}

// Records with all their fields, also those that a later version adds, are as they were written, however many others
// share their parts.
func TestParts_ChangeNoRecord(t *testing.T) {
	t.Parallel()
	st := newState()
	cpus := topology.SetOf[topology.CPUID](3, 70)
	for round := range 3 {
		var vm fleet.VM
		var status fleet.VMStatus
		var report fleet.Report
		n := 100 * (round / 2) // the first two are equal but for their names
		fill(reflect.ValueOf(&vm).Elem(), 7, &n)
		fill(reflect.ValueOf(&status).Elem(), 7, &n)
		fill(reflect.ValueOf(&report).Elem(), 7, &n)
		vm.Name = fmt.Sprint("vm", round)
		vm.Spec.Name, vm.Placement.Guest, vm.Placement.VCPUs[0].CPUs = vm.Name, vm.Name, cpus
		status.Name, status.Host, status.Placement.Guest = vm.Name, "h", vm.Name
		report.Inventory.Guests[0].Name = vm.Name
		report.Inventory.Guests[0].Spec, report.Inventory.Guests[0].Placement = &vm.Spec, &vm.Placement
		report.Inventory.Gaps = nil // their kinds are checked
		report.Inventory.Topology.Nodes[1].Free = topology.Bytes(round)
		for key, value := range map[string]any{store.VMs + vm.Name: vm, statusKey(vm.Name, "h"): status,
			store.Reports + fmt.Sprint("h", round): report} {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			c := newChange(1)
			if err := st.apply(&store.Event{Record: store.Record{Key: key, Value: text, Revision: 1}}, &c); err != nil {
				t.Fatal(err)
			}
		}
		compare(t, vm, st.vmOf(vm.Name).value)
		compare(t, status, st.statusOf(vm.Name, "h").value)
		got := st.reports[fmt.Sprint("h", round)]
		shown := got.Report
		shown.Inventory = *got.inventory(true)
		compare(t, report, shown)
	}
	if a, b := st.vms["vm0"], st.vms["vm1"]; a.placement != b.placement || a.rest != b.rest {
		t.Error("equal parts of VMs are not shared")
	}
	cpusOf := func(host string) []topology.CPU { return st.reports[host].Inventory.Topology.CPUs }
	if a, b := cpusOf("h0"), cpusOf("h1"); &a[0] != &b[0] {
		t.Error("equal topologies are not shared")
	}
}

// Specs and placements without a name, or with that of another VM, are as they were written.
func TestParts_ChangeNoName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a", "b"} {
		var p parts
		vm := fleet.VM{Name: "a", Host: "h", Spec: guest.Spec{Name: name}, Placement: guest.Placement{Guest: name}}
		compare(t, vm, p.ofVM(vm, 1).value())
		status := fleet.VMStatus{Name: "a", Host: "h", Placement: guest.Placement{Guest: name}}
		of := p.ofStatus(status, 1)
		compare(t, status, of.value())
		g := inventory.Guest{Name: "a", Spec: &vm.Spec, Placement: &vm.Placement}
		reported := p.ofGuest(g)
		compare(t, g, reported.value(true))
		alone := inventory.Guest{Name: "a"}
		reported = p.ofGuest(alone)
		compare(t, alone, reported.value(true))
	}
}

// Texts with the name of a VM, and UUIDs of any form, are as they were written.
func TestParts_ChangeNoText(t *testing.T) {
	t.Parallel()
	var p parts
	for _, text := range []string{"", "web", "/images/web.qcow2", "/web/web.img", "/images/other", "/web\x2dweb.scope",
		"we", "web\x00web", "5c3c1b52-9d6e-4b0a-8f0e-0a1b2c3d4e5f", "5C3C1B52-9d6e-4b0a-8f0e-0a1b2c3d4e5f",
		"5c3c1b529d6e4b0a8f0e0a1b2c3d4e5f", "00000000-0000-0000-0000-000000000000", "5c3c-"} {
		for _, name := range []string{"", "web", text} {
			of := p.around(text, name)
			if got := of.text(name); got != text {
				t.Errorf("%q of %q reads as %q", text, name, got)
			}
		}
		id := idOf(text)
		if got := id.text(); got != text {
			t.Errorf("UUID %q reads as %q", text, got)
		}
	}
	if a, b := p.around("/images/a.img", "a"), p.around("/images/b.img", "b"); a != b || a.at != 8 {
		t.Errorf("got %+v and %+v", a, b)
	}
}

// The scheduler counts the same room on a host as those who read all of it.
func TestHostOf_HasAllThatCounts(t *testing.T) {
	t.Parallel()
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	topo.Nodes[0].Free = 2 * topology.GiB
	placement := func(name string) *guest.Placement {
		return &guest.Placement{Guest: name, Reservations: []guest.Reservation{{Node: 0, Memory: 4 * topology.GiB, VCPUs: 2}}}
	}
	seen := inventory.Seen{MemoryByNode: topology.MemoryByNode{0: 3 * topology.GiB}}
	host := inventory.Host{Topology: topo, Guests: []inventory.Guest{
		{Name: "ours", State: "running", Managed: true, Spec: &guest.Spec{Name: "ours", VCPUs: 2}, Placement: placement("ours"),
			Seen: seen},
		{Name: "other", State: "running", Config: inventory.Config{VCPUs: 2, Memory: 2 * topology.GiB}, Seen: seen}}}
	st := newState()
	for key, value := range map[string]any{store.Hosts + "h": fleet.Host{Name: "h"},
		store.Reports + "h": fleet.Report{Inventory: host}, store.VMs + "ours": fleet.VM{Name: "ours", Host: "h",
			Spec: *host.Guests[0].Spec, Placement: *placement("ours")}} {
		text, _ := json.Marshal(value)
		c := newChange(1)
		if err := st.apply(&store.Event{Record: store.Record{Key: key, Value: text, Revision: 1}}, &c); err != nil {
			t.Fatal(err)
		}
	}
	want := capacity.Available(&host, policy.Policy{}.WithDefaults(), "")
	for _, whole := range []bool{false, true} {
		got, _ := hostOf(st, "h", newLoads(), whole)
		compare(t, want, capacity.Available(got.Inventory, policy.Policy{}.WithDefaults(), ""))
	}
}

// compare compares the JSON forms.
func compare[T any](t *testing.T, want, got T) {
	t.Helper()
	x, errX := json.MarshalIndent(want, "", " ")
	y, errY := json.MarshalIndent(got, "", " ")
	if diff := cmp.Diff(string(x), string(y)); diff != "" || errX != nil || errY != nil {
		t.Errorf("(-want +got) %v %v:\n%s", errX, errY, diff)
	}
}

// A pool does not grow without end.
func TestPool_IsBounded(t *testing.T) {
	t.Parallel()
	var p parts
	for i := range 2*mostParts + 10 {
		text := fmt.Sprint(i)
		p.word(&text)
		vm := p.ofVM(fleet.VM{Name: "a", Spec: guest.Spec{Name: "a", VCPUs: i}}, 1).value()
		of := p.ofGuest(inventory.Guest{Name: "a", Config: inventory.Config{VCPUs: i}, Spec: &vm.Spec})
		g := of.value(true)
		if text != fmt.Sprint(i) || g.Config.VCPUs != i || g.Spec.VCPUs != i || g.Spec.Name != "a" || vm.Spec.VCPUs != i ||
			vm.Spec.Name != "a" {
			t.Fatal(text, g, vm)
		}
	}
	if len(p.words) > mostParts || len(p.vms) > mostParts || len(p.guests) > mostParts || len(p.specs) > mostParts {
		t.Errorf("%d words, %d VMs, %d VMs of reports, %d specs", len(p.words), len(p.vms), len(p.guests), len(p.specs))
	}
}
