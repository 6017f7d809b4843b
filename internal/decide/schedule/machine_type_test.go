package schedule

import (
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// fleetOfTypes has hosts of a name for the types of machines that they make.
func fleetOfTypes(t *testing.T, makes map[string]inventory.Host) *Fleet {
	t.Helper()
	var hosts []Host
	for name, inv := range makes {
		var err error
		if inv.Topology, err = topology.Synthetic("nodes:2 cores:4 memory:4G"); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, Host{Name: name, Inventory: &inv})
	}
	f, err := New(hosts, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// VMs go to hosts that make their type, also when others are open, closed, gone or removed; an inventory of an older
// daemon counts as one of a KVM host, unless it says that it takes no new VMs.
func TestMachineTypes(t *testing.T) {
	f := fleetOfTypes(t, map[string]inventory.Host{
		"old": {}, "kvm": {MachineTypes: []string{"kvm", "qemu"}}, "xen": {MachineTypes: []string{"xen"}, NoNewVMs: true},
		"shown": {NoNewVMs: true}})
	spec := guest.Spec{Name: "vm", VCPUs: 2, Memory: topology.GiB}
	where := func(machine string) map[string]bool {
		on := map[string]bool{}
		for host := range f.byName {
			if _, err := f.Decide(Request{Spec: spec, Machine: machine, Host: host, WhatIf: true}); err == nil {
				on[host] = true
			}
		}
		return on
	}
	for machine, want := range map[string]string{"": "old kvm", "kvm": "old kvm", "qemu": "old kvm", "xen": "xen"} {
		on := where(machine)
		if len(on) != len(strings.Fields(want)) {
			t.Errorf("type %q goes to %v, want %s", machine, on, want)
		}
		for _, host := range strings.Fields(want) {
			if !on[host] {
				t.Errorf("type %q does not go to %s", machine, host)
			}
		}
	}
	excluded := func(machine string, want int) {
		t.Helper()
		for _, host := range []string{"old", "kvm", "xen"} {
			_ = f.SetCordoned(host, true) // a host that was removed is no host
			defer func() { _ = f.SetCordoned(host, false) }()
		}
		_, err := f.Decide(Request{Spec: spec, Machine: machine, WhatIf: true})
		var none *NoHostError
		if !errors.As(err, &none) {
			t.Fatalf("error %v", err)
		}
		got := 0
		for _, x := range none.Excluded {
			if x.Reason == otherType {
				got = x.Hosts
			}
		}
		if got != want {
			t.Errorf("type %q: %d hosts cannot make it, want %d: %v", machine, got, want, err)
		}
	}
	excluded("xen", 1) // the others are cordoned
	f.RemoveHost("shown")
	excluded("xen", 0)
	f.RemoveHost("xen")
	if on := where("xen"); len(on) > 0 {
		t.Errorf("type xen goes to %v", on)
	}
}

// Room on hosts of another type counts for no VM: what is scarce is what hosts of its type have.
func TestMachineTypes_FitsCountByType(t *testing.T) {
	f := fleetOfTypes(t, map[string]inventory.Host{"kvm": {}, "xen": {MachineTypes: []string{"xen"}}})
	entries, err := ParseRequests(strings.NewReader("requests:\n- {name: a, count: 9, machine_type: xen, " +
		"spec: {vcpus: 1, memory: 1G}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Replay(entries)
	if err != nil || out.Summary.Placed == 0 || out.Summary.Refused == 0 {
		t.Fatalf("%+v, %v", out.Summary, err)
	}
	for _, o := range out.Outcomes {
		if o.Decision != nil && o.Decision.Host != "xen" {
			t.Errorf("%s is on %s", o.VM, o.Decision.Host)
		}
	}
	for i := range f.likely {
		if l := &f.likely[i]; l.machine == "xen" && f.left[i] > 1 {
			t.Errorf("%v VMs of shape %+v still fit", f.left[i], l.shape)
		}
	}
	const unknown = "requests:\n- {name: a, machine_type: bhyve, spec: {vcpus: 1, memory: 1G}}\n"
	if _, err := ParseRequests(strings.NewReader(unknown)); err == nil {
		t.Error("an unknown type is accepted")
	}
}
