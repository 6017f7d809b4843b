package schedule

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// A fleet that looks inventories up decides as one that has them.
func TestLookUp_DecidesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts, groups := map[string]*inventory.Host{}, map[string]string{}
		full, err := New(nil, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		lean, err := New(nil, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		lean.LookUp(func(name string) *inventory.Host {
			out := *hosts[name]
			out.Guests, out.Claims = slices.Clone(out.Guests), slices.Clone(out.Claims)
			slices.Reverse(out.Guests) // in any order
			return &out
		})
		both := func(f func(*Fleet) error) {
			a, b := f(full), f(lean)
			if (a == nil) != (b == nil) {
				t.Fatalf("with inventories: %v; with look-ups: %v", a, b)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "host")
			vm := fmt.Sprint("vm", rapid.IntRange(0, 9).Draw(t, "vm"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				h := syntheticHost(t, name, "nodes:2 cores:4 memory:8G")
				if old := hosts[name]; old != nil {
					h.Inventory.Guests = old.Guests
				}
				hosts[name] = h.Inventory
				both(func(f *Fleet) error { f.Set(h, groups); return nil })
			case 2:
				both(func(f *Fleet) error { return f.Remove(name, vm) })
			default:
				r := Request{Spec: guest.Spec{Name: vm, VCPUs: rapid.IntRange(1, 4).Draw(t, "vcpus"), Memory: topology.GiB}}
				if rapid.Bool().Draw(t, "grouped") {
					r.Affinity = fleet.Affinity{Group: "g", Nodes: fleet.Differ}
				}
				var made []*Decision
				both(func(f *Fleet) error {
					d, err := f.Decide(r)
					if err == nil {
						made = append(made, d)
						err = f.Add(d)
					}
					return err
				})
				if len(made) == 0 {
					continue
				}
				if diff := cmp.Diff(made[0].Text(), made[1].Text()); diff != "" || made[0].Host != made[1].Host {
					t.Fatalf("with inventories, with look-ups:\n%s", diff)
				}
				on := *hosts[made[0].Host]
				on.Guests = append(slices.Clone(on.Guests), inventory.Guest{Name: vm, State: "running",
					Spec: &made[0].Spec, Placement: &made[0].Placement})
				hosts[made[0].Host], groups[vm] = &on, made[0].Group
			}
		}
		for name := range hosts {
			a, _ := full.Host(name)
			b, _ := lean.Host(name)
			if len(a.Inventory.Guests) > len(b.Inventory.Guests) { // those looked up are of the present
				t.Errorf("%s: %d VMs, %d looked up", name, len(a.Inventory.Guests), len(b.Inventory.Guests))
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
