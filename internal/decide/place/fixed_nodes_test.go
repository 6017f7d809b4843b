package place_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestOnPutsCellsWhereAsked(t *testing.T) {
	r := place.Request{
		Host: fourNodes(),
		Spec: guest.Spec{
			Name:     "g",
			VCPUs:    4,
			Memory:   4 * topology.GiB,
			Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 2},
		},
	}
	p, err := place.On(r, []topology.NodeID{3, 1})
	if err != nil || len(p.Cells) != 2 || !p.Cells[0].Nodes.Contains(3) || !p.Cells[1].Nodes.Contains(1) {
		t.Fatalf("%+v, %v", p.Cells, err)
	}
	if vs := check.Placement(r.Host, r.Policy, r.Spec, p); len(vs) > 0 {
		t.Error(check.Error("g", vs))
	}
}

func TestOnRefusesAndSaysWhy(t *testing.T) {
	for _, c := range []struct {
		name  string
		spec  guest.Spec
		homes []topology.NodeID
		why   string
	}{
		{"too much memory", guest.Spec{VCPUs: 1, Memory: 20 * topology.GiB}, []topology.NodeID{0},
			"node 0 has 4.3 GiB too little memory"},
		{"too many vCPUs", guest.Spec{VCPUs: 5, Memory: topology.GiB}, []topology.NodeID{0}, "usable CPUs"},
		{"not a node", guest.Spec{VCPUs: 1, Memory: topology.GiB}, []topology.NodeID{9}, "node 9"},
		{"one node for two cells", guest.Spec{VCPUs: 2, Memory: topology.GiB,
			Topology: guest.TopologySpec{Mode: guest.TopologyCells,
				Count: 2}}, []topology.NodeID{1, 1}, "may not be combined"},
		{"two nodes for one cell", guest.Spec{VCPUs: 2, Memory: topology.GiB,
			Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 1}}, []topology.NodeID{1, 2}, "divided"},
		{"outside the limits", guest.Spec{VCPUs: 1, Memory: topology.GiB,
			Limits: guest.Limits{Nodes: topology.SetOf[topology.NodeID](2)}}, []topology.NodeID{1}, "limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Name = "g"
			_, err := place.On(place.Request{Host: fourNodes(), Spec: c.spec}, c.homes)
			var not *place.NotThereError
			if !errors.As(err, &not) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("want a refusal that names %q, got %v", c.why, err)
			}
		})
	}
}

// On never gives an illegal placement, whatever Place would answer for the same nodes.
func TestOnIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loads := rapid.SliceOfN(rapid.IntRange(0, 8), 4, 4).Draw(t, "loads")
		spec := guest.Spec{
			Name: "g", VCPUs: rapid.IntRange(1, 9).Draw(t, "vcpus"), Memory: topology.Bytes(rapid.IntRange(1,
				40).Draw(t, "memory")) * topology.GiB,
			CPU: guest.CPUSpec{
				Binding: rapid.SampledFrom([]guest.CPUMode{guest.CPURange, guest.CPUExclusive}).Draw(t, "binding"),
			},
			Topology: guest.TopologySpec{
				Mode: rapid.SampledFrom([]guest.TopologyMode{guest.TopologyOff, guest.TopologyAuto}).Draw(t, "mode"),
			},
		}
		r := place.Request{Host: fourNodes(loads...), Spec: spec}
		var homes []topology.NodeID
		for range rapid.IntRange(1, 3).Draw(t, "cells") {
			homes = append(homes, topology.NodeID(rapid.IntRange(0, 3).Draw(t, "home")))
		}
		p, err := place.On(r, homes)
		if err != nil {
			return
		}
		full := r.Spec
		full.CPU.Emulator, full.CPU.SMT = guest.HelperNodes, guest.SMTAny
		if vs := check.Placement(r.Host, r.Policy, full, p); len(vs) > 0 {
			t.Fatal(check.Error("g", vs))
		}
		if !p.Nodes.Equal(topology.SetOf(homes...)) {
			t.Fatalf("asked for %v, got %v", homes, p.Nodes)
		}
	})
}
