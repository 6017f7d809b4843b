package place_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func mirrorSpec(name string, least int) guest.Spec {
	return guest.Spec{Name: name, Memory: topology.GiB, CPU: guest.CPUSpec{Sharing: guest.SharingHandoff, MinVCPUs: least}}
}

func synthetic(t interface{ Fatal(args ...any) }, description string) inventory.Host {
	topo, err := topology.Synthetic(description)
	if err != nil {
		t.Fatal(err)
	}
	return inventory.Host{Name: "host", Topology: topo}
}

// placeAll places guests one after the other, each legally, and returns the last error.
func placeAll(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, h *inventory.Host, p policy.Policy, specs ...guest.Spec,
) error {
	t.Helper()
	for _, s := range specs {
		s, err := s.Normalize()
		if err != nil {
			t.Fatalf("%v", err)
		}
		placed, _, err := place.Place(place.Request{Host: h, Spec: s, Policy: p})
		if err != nil {
			return err
		}
		s = s.Resolve(&placed)
		if broken := check.Placement(h, p, s, placed); len(broken) > 0 {
			t.Fatalf("%s: %v: %+v", s.Name, broken, placed)
		}
		g := inventory.Guest{Name: s.Name, State: "running", Config: inventory.Config{VCPUs: s.VCPUs, Memory: s.Memory}}
		g.SetIntent(guest.Intent{Host: h.Identity(), Spec: s, Placement: placed})
		h.Guests = append(h.Guests, g)
		if h.CheckIntents(); h.Guests[len(h.Guests)-1].Placement == nil {
			t.Fatalf("the intent of %s counts as impossible: %+v", s.Name, h.Gaps)
		}
	}
	return nil
}

// TestPlace_Mirror: two guests mirror the same CPUs, start with CPUs of their own, and
// see the host's cores; a third whose minimum is not left is refused.
func TestPlace_Mirror(t *testing.T) {
	h := synthetic(t, "nodes:2 cores:4 threads:2 memory:8G")
	p := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("0-15"), WholeCores: true}}
	if err := placeAll(t, &h, p, mirrorSpec("a", 6), mirrorSpec("b", 6)); err != nil {
		t.Fatal(err)
	}
	a, b := h.Guests[0].Placement, h.Guests[1].Placement
	if want := (guest.CPUTopology{Sockets: 2, Dies: 1, Cores: 4, Threads: 2}); a.Handoff.Seen != want {
		t.Errorf("a sees %+v, want %+v", a.Handoff.Seen, want)
	}
	if got := a.VCPUs[1].CPUs.String(); a.VCPUs[0].CPUs.String() != "0" || got != "8" {
		t.Errorf("vCPU 1 of a has CPU %s; want the sibling of CPU 0", got)
	}
	if a.Handoff.Home != 0 || b.Handoff.Home != 1 || b.Cells[0].Nodes.String() != "1" {
		t.Errorf("homes are %d and %d, the first cell of b is on node %s", a.Handoff.Home, b.Handoff.Home, b.Cells[0].Nodes)
	}
	if a.Handoff.First.Intersects(b.Handoff.First) || a.Handoff.First.Len() != 6 {
		t.Errorf("a starts with CPUs %s, b with %s", a.Handoff.First, b.Handoff.First)
	}
	var noFit *place.NoFitError
	if err := placeAll(t, &h, p, mirrorSpec("c", 5)); !errors.As(err, &noFit) {
		t.Errorf("a minimum of 5 of 4 CPUs: %v", err)
	}
	if err := placeAll(t, &h, p, mirrorSpec("c", 4)); err != nil {
		t.Error(err)
	}
}

// TestPlace_MirrorKeepsOthersOff: other guests do not get CPUs that are handed over.
func TestPlace_MirrorKeepsOthersOff(t *testing.T) {
	h := synthetic(t, "nodes:2 cores:4 memory:8G")
	p := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("1-3,5-7")}}
	one := guest.Spec{Name: "one", VCPUs: 1, Memory: topology.GiB}
	if err := placeAll(t, &h, p, mirrorSpec("a", 2), one); err != nil {
		t.Fatal(err)
	}
	if cpus := h.Guests[1].Placement.VCPUs[0].CPUs; cpus.Intersects(p.Handoff.CPUs) {
		t.Errorf("the other VM may run on CPUs %s", cpus)
	}
	if e := h.Guests[0].Placement.Emulator.String(); e != "0,4" {
		t.Errorf("the emulator has CPUs %s; want those that are not handed over", e)
	}
	two := guest.Spec{Name: "two", VCPUs: 3, Memory: topology.GiB, CPU: guest.CPUSpec{Binding: guest.CPUExclusive}}
	if err := placeAll(t, &h, p, two); err == nil {
		t.Error("3 exclusive CPUs of 2 that are not handed over")
	}
}

// TestPlace_MirrorsAreNotTheHostsLoad: the load of VMs that hand CPUs over is on their CPUs,
// and leaves the others free.
func TestPlace_MirrorsAreNotTheHostsLoad(t *testing.T) {
	h := synthetic(t, "nodes:1 cores:8 memory:8G")
	p := policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("4-7")}}
	if err := placeAll(t, &h, p, mirrorSpec("a", 2)); err != nil {
		t.Fatal(err)
	}
	h.Guests[0].Seen.Load = &inventory.GuestLoad{CPU: 4}
	h.Load = []inventory.NodeLoad{{Node: 0, CPU: 4.5}}
	if d := capacity.Available(&h, p, "")[0].Demand; d != 0.5 {
		t.Errorf("demand on the shared CPUs is %v; want the host's own 0.5", d)
	}
}

// TestPlace_MirrorMemoryAsAsked: cells have the listed memory, in the order of the nodes.
func TestPlace_MirrorMemoryAsAsked(t *testing.T) {
	h := synthetic(t, "nodes:2 cores:2 memory:8G")
	p := policy.Policy{Handoff: policy.Handoff{CPUs: h.Topology.CPUSet()}}
	s := mirrorSpec("a", 1)
	home := topology.NodeID(1)
	s.Memory, s.CPU.Home = 0, &home
	s.Topology.Cells = []guest.CellSpec{{Memory: topology.GiB}, {Memory: 3 * topology.GiB}}
	if err := placeAll(t, &h, p, s); err != nil {
		t.Fatal(err)
	}
	c := h.Guests[0].Placement.Cells
	if c[0].Nodes.String() != "1" || c[0].Memory != 3*topology.GiB || c[1].Memory != topology.GiB {
		t.Errorf("cells %+v", c)
	}
}

// TestPlace_MirrorsAreLegalTogether: on random hosts each placement is legal, and all
// guests together are input of a decision that takes nothing from any of them.
func TestPlace_MirrorsAreLegalTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := synthetic(t, rapid.SampledFrom([]string{
			"nodes:2 cores:3 threads:2 memory:8G", "nodes:4 cores:2 memory:8G distances:10,16,28 square",
			"nodes:4 sockets:2 cores:4 l3:2 threads:2 memory:8G,16G,8G,8G", "nodes:1 cores:6 memory:8G",
			"nodes:2 cores:2 memory:8G memory-only:1",
		}).Draw(t, "host"))
		var out topology.CPUSet
		for _, c := range h.Topology.CPUs {
			if rapid.IntRange(0, 5).Draw(t, "without") == 0 {
				out = out.Union(c.Siblings)
			}
		}
		p := policy.Policy{Handoff: policy.Handoff{
			CPUs: h.Topology.CPUSet().Minus(out), WholeCores: rapid.Bool().Draw(t, "whole"),
		}}
		for i := range rapid.IntRange(1, 5).Draw(t, "guests") {
			s := mirrorSpec(fmt.Sprintf("vm%d", i), rapid.IntRange(1, 4).Draw(t, "min"))
			if n := rapid.SampledFrom(h.Topology.Nodes).Draw(t, "node"); rapid.Bool().Draw(t, "narrow") {
				s.Limits.Nodes = topology.SetOf(n.ID)
			}
			var noFit *place.NoFitError
			if err := placeAll(t, &h, p, s); err != nil && !errors.As(err, &noFit) {
				t.Fatal(err)
			}
		}
		guests, first := handoff.Placed(&h, "")
		d, _, err := handoff.Decide(handoff.Input{
			Topology: &h.Topology, Rules: handoff.RulesOf(p), Guests: guests, Grants: first,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range d.Releases {
			if r.Reason == handoff.ReasonMinimum || r.Reason == handoff.ReasonShare {
				t.Fatalf("a VM starts with a CPU that it must release: %+v, %+v", r, guests)
			}
		}
	})
}
