package schedule

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func syntheticHost(t interface{ Fatal(...any) }, name, machine string) Host {
	topo, err := topology.Synthetic(machine)
	if err != nil {
		t.Fatal(err)
	}
	return Host{Name: name, Inventory: &inventory.Host{Version: inventory.Version, Name: name, Topology: topo}}
}

// A fleet that hosts were put into one after the other, with VMs coming and going, counts the same
// room as a fleet that is made of the same hosts at once.
func TestSet_LeavesWhatANewFleetHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machines := []string{"nodes:2 cores:4 memory:8G", "nodes:4 cores:2 memory:4G"}
		f, err := New(nil, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"a", "b", "c"}
		hosts := map[string]Host{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "host")
			h := syntheticHost(t, name, rapid.SampledFrom(machines).Draw(t, "machine"))
			h.Cordoned = rapid.Bool().Draw(t, "cordoned")
			hosts[name] = h
			f.Set(h, nil)
			vm := fmt.Sprint("vm", rapid.IntRange(0, 99).Draw(t, "vm"))
			d, err := f.Decide(Request{Spec: guest.Spec{Name: vm, VCPUs: 2, Memory: topology.GiB}})
			if err == nil && f.Add(d) == nil && rapid.Bool().Draw(t, "leaves") {
				if err := f.Remove(d.Host, vm); err != nil {
					t.Fatal(err)
				}
			}
		}
		var all []Host
		for _, h := range f.hosts {
			all = append(all, h.Host)
		}
		fresh, err := New(all, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		if f.closed[cordoned] != fresh.closed[cordoned] {
			t.Errorf("%d hosts are cordoned, want %d", f.closed[cordoned], fresh.closed[cordoned])
		}
		for s := range f.likely {
			want := 0.0
			for _, h := range fresh.hosts {
				on := fit{on: make([]float64, len(h.rooms))}
				fresh.fit(h, &likely{shape: f.likely[s].shape}, &on)
				want += on.vms
			}
			if f.left[s] != want {
				t.Errorf("shape %+v: %v fit, want %v", f.likely[s].shape, f.left[s], want)
			}
		}
	})
}

func TestDecide_OnlyOnTheHostThatIsAskedFor(t *testing.T) {
	f, err := New(nil, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		h := syntheticHost(t, name, "nodes:2 cores:4 memory:8G")
		h.Preference = map[string]float64{"a": -5}[name]
		f.Set(h, nil)
	}
	r := Request{Spec: guest.Spec{Name: "vm", VCPUs: 2, Memory: topology.GiB}, Host: "b"}
	d, err := f.Decide(r)
	if err != nil || d.Host != "b" {
		t.Fatalf("got %+v, %v", d, err)
	}
	r.Spec.VCPUs = 64
	if d, err := f.Decide(r); err == nil {
		t.Fatalf("placed on %s", d.Host)
	}
	r.Host = "none"
	if _, err := f.Decide(r); err == nil {
		t.Fatal("a host that is not in the fleet was accepted")
	}
}

func TestSet_ReplacesTheMembersOfGroups(t *testing.T) {
	f, err := New(nil, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := syntheticHost(t, "a", "nodes:2 cores:4 memory:8G"), syntheticHost(t, "b", "nodes:2 cores:4 memory:8G")
	f.Set(a, nil)
	f.Set(b, nil)
	r := Request{Spec: guest.Spec{Name: "one", VCPUs: 2, Memory: topology.GiB},
		Affinity: fleet.Affinity{Group: "g", Hosts: fleet.Differ}}
	d, err := f.Decide(r)
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]Host{"a": a, "b": b}[d.Host]
	inv := *on.Inventory
	inv.Guests = []inventory.Guest{{Name: "one", State: "running", Spec: &d.Spec, Placement: &d.Placement}}
	on.Inventory = &inv
	f.Set(on, map[string]string{"one": "g"})
	f.Set(on, map[string]string{"one": "g"}) // a repeated report counts once
	r.Spec.Name = "two"
	second, err := f.Decide(r)
	if err != nil || second.Host == d.Host {
		t.Fatalf("the second VM went to %+v, %v; the first to %s", second, err, d.Host)
	}
	inv.Guests = nil
	f.Set(on, nil)
	if len(f.groups["g"]) != 0 {
		t.Errorf("the group still has %v", f.groups["g"])
	}
}

func TestDecide_FleetWithoutHosts(t *testing.T) {
	f, err := New(nil, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var none *NoHostError
		if _, err := f.Decide(Request{Spec: guest.Spec{Name: "vm", VCPUs: 2, Memory: topology.GiB}}); !errors.As(err, &none) {
			t.Errorf("got %v, want a refusal", err)
		}
	}
}
