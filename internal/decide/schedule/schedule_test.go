package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

// several against the definition: VMs of k cells on different nodes are placed one by one
// on the k nodes with the most room.
func TestSeveral_CountsVMsOnDifferentNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		k := rapid.IntRange(1, 7).Draw(t, "cells")
		counts := make([]float64, nodes)
		for i := range counts {
			counts[i] = float64(rapid.IntRange(0, 9).Draw(t, "room"))
		}
		left, want := slices.Clone(counts), 0.0
		for {
			slices.SortFunc(left, func(a, b float64) int { return int(b - a) })
			if k > nodes || left[k-1] == 0 {
				break
			}
			for i := range k {
				left[i]--
			}
			want++
		}
		if got := several(slices.Clone(counts), k); got != want {
			t.Fatalf("%v in %d cells: %v, want %v", counts, k, got, want)
		}
	})
}

func drawHosts(t *rapid.T) []Host {
	var hosts []Host
	for i := range rapid.IntRange(1, 5).Draw(t, "hosts") {
		text := rapid.SampledFrom([]string{
			"nodes:1 cores:4 memory:8G", "nodes:2 cores:4 memory:8G,16G", "nodes:4 cores:2 threads:2 memory:4G",
			"nodes:2 cores:8 memory:16G huge:2M=1024", "nodes:3 cores:4 memory:8G memory-only:1",
			"nodes:2 cores:4 memory:8G housekeeping:0-1",
		}).Draw(t, "machine")
		hosts = append(hosts, Host{Name: fmt.Sprintf("h%d", i), Inventory: machine(t, text),
			Rack:     rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "rack"),
			Cordoned: rapid.IntRange(0, 9).Draw(t, "cordoned") == 0})
	}
	return hosts
}

func drawSpec(t *rapid.T, name string) guest.Spec {
	s := guest.Spec{Name: name, VCPUs: rapid.IntRange(1, 12).Draw(t, "vcpus"),
		Memory: topology.Bytes(rapid.IntRange(1, 20).Draw(t, "memory")) * gib}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: rapid.IntRange(1, min(3, s.VCPUs)).Draw(t, "cells")}
	case 1:
		s.CPU.Binding = guest.CPUExclusive
	case 2:
		s.PageSize = 2 * topology.MiB
	case 3:
		s.Limits.MaxNodes = rapid.IntRange(1, 2).Draw(t, "most")
	}
	return s
}

// A stream of requests with departures: what is decided is legal, rules of groups
// hold, a refusal is true for each host, and summaries are as if they were made from the start.
func TestStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := drawHosts(t)
		p := policy.Policy{Overcommit: rapid.SampledFrom([]float64{1, 2}).Draw(t, "overcommit")}
		f, err := New(hosts, p, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		var running []*Decision
		for i := range rapid.IntRange(1, 25).Draw(t, "requests") {
			if len(running) > 0 && rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
				k := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				if err := f.Remove(running[k].Host, running[k].Spec.Name); err != nil {
					t.Fatal(err)
				}
				running = slices.Delete(running, k, k+1)
			}
			r := Request{Spec: drawSpec(t, fmt.Sprintf("vm%d", i))}
			if rapid.Bool().Draw(t, "in a group") {
				level := rapid.SampledFrom([]fleet.Together{fleet.AnyWhere, fleet.Same, fleet.Differ})
				r.Affinity = fleet.Affinity{Group: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "group"),
					Racks: level.Draw(t, "racks"), Hosts: level.Draw(t, "hosts"), Nodes: level.Draw(t, "nodes")}
				if r.Affinity.Validate() != nil {
					r.Affinity = fleet.Affinity{}
				}
			}
			d, err := f.Decide(r)
			if err != nil {
				refusedRightly(t, f, r, err)
				continue
			}
			legal(t, f, r, d)
			if err := f.Add(d); err != nil {
				t.Fatal(err)
			}
			running = append(running, d)
			asFromTheStart(t, f)
		}
	})
}

// legal checks a decision by package check and by the rules of the group.
func legal(t *rapid.T, f *Fleet, r Request, d *Decision) {
	h := f.hosts[f.byName[d.Host]]
	if h.Cordoned {
		t.Fatalf("%s: host %s is cordoned", d.Spec.Name, d.Host)
	}
	if err := check.Error(d.Spec.Name, check.Placement(h.Inventory, f.policy, d.Spec, d.Placement)); err != nil {
		t.Fatal(err)
	}
	others := f.groups[r.Affinity.Group]
	if r.Affinity.Group == "" || len(others) == 0 {
		return
	}
	onHost, inRack := 0, 0
	for _, m := range others {
		if f.hosts[m.host].rack() == h.rack() {
			inRack++
		}
		if f.hosts[m.host] == h {
			onHost++
			shared := !m.nodes.Intersect(d.Placement.Nodes).IsEmpty()
			if r.Affinity.Nodes == fleet.Differ && shared {
				t.Fatalf("%s: shares nodes %s with %s of its group", d.Spec.Name, d.Placement.Nodes, m.vm)
			}
		}
	}
	a := r.Affinity
	if a.Hosts == fleet.Same && onHost == 0 || a.Hosts == fleet.Differ && onHost > 0 ||
		a.Racks == fleet.Same && inRack == 0 || a.Racks == fleet.Differ && inRack > 0 ||
		a.Nodes == fleet.Same && onHost == 0 {
		t.Fatalf("%s: host %s has %d VMs of its group, its rack %d; rules %+v", d.Spec.Name, d.Host, onHost, inRack, a)
	}
}

// refusedRightly asks package place about each host.
func refusedRightly(t *rapid.T, f *Fleet, r Request, err error) {
	var none *NoHostError
	if !errors.As(err, &none) {
		t.Fatal(err)
	}
	rule, _ := f.rule(&r)
	for i, h := range f.hosts {
		spec, _ := r.Spec.Normalize()
		if rule.excludes(i, h) != "" || rule.limitNodes(&spec, i, &h.Inventory.Topology) != nil {
			continue
		}
		request := place.Request{Host: h.Inventory, Spec: spec, Policy: f.policy, WithoutAdvice: true}
		if p, _, placed := place.Place(request); placed == nil {
			t.Fatalf("refused (%v), and host %s takes it on nodes %s", err, h.Name, p.Nodes)
		}
	}
}

// asFromTheStart compares summaries that changes have brought up to date with new ones.
func asFromTheStart(t *rapid.T, f *Fleet) {
	left := slices.Clone(f.left)
	for s := range f.likely {
		sum := 0.0
		for _, h := range f.hosts {
			if h.Inventory == nil {
				continue
			}
			whole, _ := rooms(h.Inventory, coresOf(&h.Inventory.Topology), &f.policy)
			fresh := fit{on: make([]float64, len(whole))}
			f.fit(&host{rooms: whole, makes: h.makes}, &f.likely[s], &fresh)
			sum += fresh.vms
		}
		if sum != left[s] {
			t.Fatalf("shape %+v: %v fit by the summaries, %v in fact", f.likely[s].shape, left[s], sum)
		}
	}
}

// The hosts are ranked as the package comment says: the rank of a chosen host is not above
// that of any other, computed without the memory of earlier decisions.
func TestTheBestRankIsChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := New(drawHosts(t), policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			d, err := f.Decide(Request{Spec: drawSpec(t, fmt.Sprintf("vm%d", i))})
			if err != nil {
				continue
			}
			asked, weights := likely{shape: shapeOf(&d.Spec)}, f.scarcity()
			chosen := f.price(f.hosts[f.byName[d.Host]], &asked, weights)
			for i, h := range f.hosts {
				refused := slices.ContainsFunc(d.Why.Next, func(n Next) bool {
					return n.Host == h.Name && n.Refused != ""
				})
				other := f.price(h, &asked, weights)
				earlier := i < f.byName[d.Host] && !chosen.less(&other)
				if other.cells > 0 && !h.Cordoned && !refused && (other.less(&chosen) || earlier) {
					t.Fatalf("%s: host %s has %+v, host %s %+v", d.Spec.Name, d.Host, chosen, h.Name, other)
				}
			}
			if err := f.Add(d); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func fleetOf(t *testing.T, machines ...string) *Fleet {
	t.Helper()
	var hosts []Host
	for i, text := range machines {
		hosts = append(hosts, Host{Name: fmt.Sprintf("h%d", i), Inventory: machine(t, text)})
	}
	f, err := New(hosts, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestARefusalNamesTheReasons(t *testing.T) {
	f, err := New([]Host{
		{Name: "h0", Cordoned: true, Inventory: machine(t, "nodes:2 cores:2 memory:64G")},
		{Name: "h1", Inventory: machine(t, "nodes:2 cores:32 memory:4G")},
	}, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Decide(Request{Spec: guest.Spec{Name: "big", VCPUs: 8, Memory: 32 * gib}})
	want := "no host for VM big: 1 host: cordoned; 1 host: too little free memory"
	if err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
}

// A VM that no node holds goes to a host where package place divides it unevenly.
func TestUnevenCells(t *testing.T) {
	f := fleetOf(t, "nodes:2 cores:8 memory:8G", "nodes:2 cores:8 memory:48G,16G")
	d, err := f.Decide(Request{Spec: guest.Spec{Name: "thin", VCPUs: 1, Memory: 56 * gib}})
	if err != nil || d.Host != "h1" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestHostsOfOneNameAreRefused(t *testing.T) {
	h := Host{Name: "twin", Inventory: machine(t, "nodes:1")}
	if _, err := New([]Host{h, h}, policy.Policy{}, Weights{}); err == nil || !strings.Contains(err.Error(), "twin") {
		t.Error(err)
	}
}

func FuzzParseRequests(f *testing.F) {
	f.Add("requests:\n- {name: a, count: 2, affinity: {group: g, hosts: same}, spec: {vcpus: 1, memory: 1G}}\n- remove: a-1\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = ParseRequests(strings.NewReader(text)) })
}

func FuzzParseHosts(f *testing.F) {
	f.Add("hosts:\n- {name: a, count: 2, rack: r, machine: 'nodes:2 cores:2 memory:1G'}\n- {name: b, inventory: b.json}\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = ParseHosts(strings.NewReader(text)) })
}

// A fleet may have no hosts yet, or none any more.
func TestDecide_WithoutHosts(t *testing.T) {
	h := Host{Name: "h", Inventory: machine(t, "nodes:2 cores:4 memory:8G")}
	f, err := New(nil, policy.Policy{}, Weights{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		_, err := f.Decide(Request{Spec: guest.Spec{Name: "vm", VCPUs: 1, Memory: topology.GiB}})
		return err
	}
	var none *NoHostError
	if err := ask(); !errors.As(err, &none) {
		t.Errorf("no host: %v", err)
	}
	f.SetHost(h)
	if err := ask(); err != nil {
		t.Errorf("one host: %v", err)
	}
	f.RemoveHost("h")
	if err := ask(); !errors.As(err, &none) {
		t.Errorf("the host left: %v", err)
	}
}
