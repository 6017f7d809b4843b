package adopt_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func pins(lists ...string) map[guest.VCPUID]topology.CPUSet {
	m := map[guest.VCPUID]topology.CPUSet{}
	for i, l := range lists {
		m[guest.VCPUID(i)] = topology.MustParseSet[topology.CPUID](l)
	}
	return m
}

func TestSpecKeepsWhatARunningGuestCannotChange(t *testing.T) {
	no := false
	for _, c := range []struct {
		name   string
		config inventory.Config
		want   guest.Spec
	}{
		{"plain guest", inventory.Config{VCPUs: 2, Memory: topology.GiB},
			guest.Spec{CPU: guest.CPUSpec{Binding: guest.CPURange},
				Binding:  guest.MemorySpec{Mode: guest.MemoryRestrictive},
				Topology: guest.TopologySpec{Mode: guest.TopologyOff}, Movable: &no}},
		{"one CPU each", inventory.Config{VCPUs: 2, Pins: pins("4", "5"), Source: "memfd"},
			guest.Spec{CPU: guest.CPUSpec{Binding: guest.CPUExclusive},
				Binding:  guest.MemorySpec{Mode: guest.MemoryPreferred},
				Topology: guest.TopologySpec{Mode: guest.TopologyOff}}},
		{"the same CPU twice is no exclusive binding", inventory.Config{VCPUs: 2, Pins: pins("4", "4"),
			Source: "memfd"},
			guest.Spec{CPU: guest.CPUSpec{Binding: guest.CPURange},
				Binding:  guest.MemorySpec{Mode: guest.MemoryPreferred},
				Topology: guest.TopologySpec{Mode: guest.TopologyOff}}},
		{"cells' policies count, not the limit around them", inventory.Config{VCPUs: 3, Source: "memfd",
			NUMATune: &inventory.NUMATune{Mode: "strict", Cells: []inventory.CellTune{{Mode: "preferred"}}},
			Cells: []inventory.ConfigCell{{ID: 1, VCPUs: topology.SetOf[guest.VCPUID](2), Memory: 5},
				{ID: 0, VCPUs: topology.SetOf[guest.VCPUID](0, 1), Memory: 7}}},
			guest.Spec{CPU: guest.CPUSpec{Binding: guest.CPURange},
				Binding: guest.MemorySpec{Mode: guest.MemoryPreferred},
				Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 2,
					Cells: []guest.CellSpec{{VCPUs: 2, Memory: 7}, {VCPUs: 1, Memory: 5}}}}},
		{"vfio pins memory", inventory.Config{VCPUs: 1, Source: "memfd", Devices: []string{"0000:01:00.0"},
			NUMATune: &inventory.NUMATune{Mode: "strict"}},
			guest.Spec{CPU: guest.CPUSpec{Binding: guest.CPURange}, Binding: guest.MemorySpec{Mode: guest.MemoryStrict},
				Topology: guest.TopologySpec{Mode: guest.TopologyOff}, Movable: &no,
				Devices: []guest.DeviceSpec{{Address: "0000:01:00.0", Passthrough: true}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Name, c.want.VCPUs, c.want.Memory = "g", c.config.VCPUs, c.config.Memory
			if diff := cmp.Diff(c.want, adopt.Spec(inventory.Guest{Name: "g", Config: c.config})); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAlignGivesCellsTheVCPUsTheyHave(t *testing.T) {
	set := topology.SetOf[guest.VCPUID]
	cpu := func(id topology.CPUID) topology.CPUSet { return topology.SetOf(id) }
	p := guest.Placement{
		Cells: []guest.Cell{{ID: 0, VCPUs: set(0, 1)}, {ID: 1, VCPUs: set(2, 3)}},
		VCPUs: []guest.VCPU{{ID: 0, CPUs: cpu(10)}, {ID: 1, CPUs: cpu(11)}, {ID: 2, CPUs: cpu(20)},
			{ID: 3, CPUs: cpu(21)}},
	}
	got := adopt.Align(p,
		inventory.Config{Cells: []inventory.ConfigCell{{ID: 0, VCPUs: set(0, 2)}, {ID: 1, VCPUs: set(1, 3)}}})
	for v, want := range []topology.CPUID{10, 20, 11, 21} {
		if got.VCPUs[v].ID != guest.VCPUID(v) || !got.VCPUs[v].CPUs.Contains(want) {
			t.Errorf("vCPU %d: %+v, want CPU %d", v, got.VCPUs[v], want)
		}
	}
	if !got.Cells[1].VCPUs.Equal(set(1, 3)) || !p.Cells[1].VCPUs.Equal(set(2, 3)) {
		t.Errorf("cell 1 has %s (its argument now %s)", got.Cells[1].VCPUs, p.Cells[1].VCPUs)
	}
}

func TestFixed_CellsOfRunningGuest(t *testing.T) {
	set := topology.SetOf[guest.VCPUID]
	seen := &guest.Placement{Visible: true, Cells: []guest.Cell{
		{ID: 0, VCPUs: set(0, 1, 2), Memory: 6}, {ID: 1, VCPUs: set(3), Memory: 2}}}
	want := guest.TopologySpec{Mode: guest.TopologyCells, Count: 2,
		Cells: []guest.CellSpec{{VCPUs: 3, Memory: 6}, {VCPUs: 1, Memory: 2}}}
	auto := guest.Spec{VCPUs: 4, Memory: 8, Topology: guest.TopologySpec{Mode: guest.TopologyAuto}}
	if diff := cmp.Diff(want, adopt.Fixed(auto, seen).Topology); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	hidden := *seen
	hidden.Visible = false
	for name, p := range map[string]*guest.Placement{"hidden cells": &hidden, "no placement": nil} {
		if diff := cmp.Diff(auto, adopt.Fixed(auto, p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A guest that sees one node, and whose memory stays, gets no more nodes elsewhere; a smaller limit of its own holds.
func TestElsewhere(t *testing.T) {
	nodes := func(ids ...topology.NodeID) *guest.Placement { return &guest.Placement{Nodes: topology.SetOf(ids...)} }
	visible := nodes(0, 1)
	visible.Visible = true
	moves := inventory.CapabilitiesOf(guest.LibvirtQEMU)
	for name, c := range map[string]struct {
		own  int
		at   *guest.Placement
		can  inventory.Capabilities
		want int
	}{
		"one node":              {0, nodes(3), inventory.CapabilitiesOf(guest.Xen), 1},
		"two nodes":             {0, nodes(0, 3), inventory.CapabilitiesOf(guest.Xen), 2},
		"a greater limit":       {4, nodes(3), inventory.CapabilitiesOf(guest.Xen), 1},
		"a smaller limit":       {1, nodes(0, 3), inventory.CapabilitiesOf(guest.Xen), 1},
		"its memory moves":      {0, nodes(3), moves, 0},
		"it sees the nodes":     {0, visible, inventory.CapabilitiesOf(guest.Xen), 0},
		"it was never placed":   {0, nil, inventory.CapabilitiesOf(guest.Xen), 0},
		"nothing is known":      {0, nodes(3), inventory.Capabilities{}, 1},
		"a limit of what moves": {2, nodes(3), moves, 2},
	} {
		s := guest.Spec{Topology: guest.TopologySpec{Mode: guest.TopologyOff}, Limits: guest.Limits{MaxNodes: c.own}}
		if got := adopt.Elsewhere(s, c.at, c.can).Limits.MaxNodes; got != c.want {
			t.Errorf("%s: at most %d nodes, want %d", name, got, c.want)
		}
	}
}
