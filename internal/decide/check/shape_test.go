package check

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func askCells(cells ...guest.CellSpec) guest.TopologySpec {
	return guest.TopologySpec{Mode: guest.TopologyCells, Count: len(cells), Cells: cells}
}

func TestPlacement_Shape(t *testing.T) {
	checkRules(t, []ruleCase{
		{"no cell", shared, func(s *situation) { s.placed.Cells = nil },
			want("shape guest", "shape guest", "shape guest")},
		{"cell out of order", shared, func(s *situation) { s.placed.Cells[1].ID = 5 }, want("shape cell 5")},
		{"vCPU in two cells", shared, func(s *situation) { s.placed.Cells[1].VCPUs = vcpus("1-3") },
			want("shape cell 1")},
		{"vCPU in no cell", shared, func(s *situation) { s.placed.Cells[1].VCPUs = vcpus("3") }, want("shape guest")},
		{"vCPU missing", shared, func(s *situation) { s.placed.VCPUs = s.placed.VCPUs[:3] }, want("shape guest")},
		{"vCPUs out of order", shared,
			func(s *situation) { s.placed.VCPUs[2].ID, s.placed.VCPUs[3].ID = 3, 2 },
			want("shape vCPU 3", "shape vCPU 2")},
		{"cell smaller than its reservation", shared,
			func(s *situation) { s.placed.Cells[0].Memory -= gib },
			want("shape guest")},
		{"cell on no node", shared,
			func(s *situation) { s.placed.Cells[0].Nodes = nodes("") },
			want("shape cell 0", "cpus vCPU 0", "cpus vCPU 1", "reservations guest")},
		{"cell outside the guest's nodes", shared,
			func(s *situation) { s.placed.Nodes = nodes("0") },
			want("shape cell 1", "reservations node 1")},
		{"cell of broken pages", alone, func(s *situation) {
			s.spec.Memory, s.placed.Cells[0].Memory, s.placed.Reservations[0].Memory = gib+gib/2, gib+gib/2, gib+gib/2
		}, want("shape cell 0")},
	})
}

func TestPlacement_RequestedCells(t *testing.T) {
	checkRules(t, []ruleCase{
		{"as requested", shared, func(s *situation) {
			s.spec.Topology = askCells(guest.CellSpec{VCPUs: 2, Memory: 4 * gib},
				guest.CellSpec{VCPUs: 2, Memory: 4 * gib})
		}, nil},
		{"as many as requested", shared, func(s *situation) {
			s.spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
		}, nil},
		{"other vCPUs", shared, func(s *situation) {
			s.spec.Topology = askCells(guest.CellSpec{VCPUs: 1, Memory: 4 * gib},
				guest.CellSpec{VCPUs: 3, Memory: 4 * gib})
		}, want("shape cell 0", "shape cell 1")},
		{"other memory", shared, func(s *situation) {
			s.spec.Topology = askCells(guest.CellSpec{VCPUs: 2, Memory: 3 * gib},
				guest.CellSpec{VCPUs: 2, Memory: 5 * gib})
		}, want("shape cell 0", "shape cell 1")},
		{"fewer cells than listed", shared, func(s *situation) {
			cell := guest.CellSpec{VCPUs: 2, Memory: 4 * gib}
			s.spec.Topology = askCells(cell, cell, cell)
		}, want("shape guest")},
		{"fewer cells than counted", shared, func(s *situation) {
			s.spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 3}
		}, want("shape guest")},
		{"sizes of a mode that does not use them", shared, func(s *situation) {
			s.spec.Topology = askCells(guest.CellSpec{VCPUs: 1, Memory: gib})
			s.spec.Topology.Mode = guest.TopologyAuto
		}, nil},
	})
}

func TestPlacement_GuestDistances(t *testing.T) {
	to1 := func(d int) func(*situation) { return func(s *situation) { s.placed.Cells[0].Distances[1] = d } }
	checkRules(t, []ruleCase{
		{"least to another cell", shared, to1(11), nil},
		{"greatest to another cell", shared, to1(254), nil},
		{"local to another cell", shared, to1(10), want("shape cell 0")},
		{"unreachable", shared, to1(255), want("shape cell 0")},
		{"remote to itself", shared, func(s *situation) { s.placed.Cells[0].Distances[0] = 11 }, want("shape cell 0")},
		{"row missing", shared, func(s *situation) { s.placed.Cells[0].Distances = nil }, want("shape cell 0")},
		{"cells not visible", shared, func(s *situation) { s.placed.Visible = false },
			want("shape cell 0", "shape cell 1")},
	})
}

func TestPlacement_Nodes(t *testing.T) {
	checkRules(t, []ruleCase{
		{"unknown node", shared, func(s *situation) { s.placed.Nodes = nodes("0-1,9") }, want("nodes node 9")},
		{"node without memory", shared, func(s *situation) { s.placed.Nodes = nodes("0-1,3") }, want("nodes node 3")},
		{"limits name the nodes", shared, func(s *situation) { s.spec.Limits.Nodes = nodes("0-1") }, nil},
		{"limits leave out a node", shared,
			func(s *situation) { s.spec.Limits.Nodes = nodes("0") },
			want("nodes node 1", "cpus vCPU 2", "cpus vCPU 3")},
		{"memory-only node, not named", shared, func(s *situation) { s.placed.Nodes = nodes("0-2") },
			want("nodes node 2")},
		{"memory-only node, named", shared, func(s *situation) {
			s.placed.Nodes, s.spec.Limits.Nodes = nodes("0-2"), nodes("0-2")
		}, nil},
		{"as many nodes as max_nodes", shared, func(s *situation) { s.spec.Limits.MaxNodes = 2 }, nil},
		{"more nodes than max_nodes", shared, func(s *situation) { s.spec.Limits.MaxNodes = 1 }, want("nodes guest")},
		{"CPU-only node counts for max_nodes", shared,
			func(s *situation) { lendCPUs(s); s.spec.Limits.MaxNodes = 2 },
			want("nodes guest")},
		{"cells share a node", shared, func(s *situation) {
			s.placed.Cells[1].Nodes = nodes("0")
			s.placed.Reservations[0].Memory, s.placed.Reservations[1].Memory = 8*gib, 0
			s.placed.VCPUs[2].CPUs, s.placed.VCPUs[3].CPUs = cpus("1-5"), cpus("1-5")
		}, want("nodes cell 1")},
		{"interleaved cells share all nodes", shared, interleave, nil},
	})
}

// lendCPUs runs the vCPUs of cell 1 on the CPUs of node 3, which has no memory.
func lendCPUs(s *situation) {
	s.placed.VCPUs[2].CPUs, s.placed.VCPUs[3].CPUs = cpus("16-17"), cpus("16-17")
	s.placed.Reservations[1].VCPUs = 0
	s.placed.Reservations = append(s.placed.Reservations, guest.Reservation{Node: 3, VCPUs: 2})
}

// interleave spreads the memory of both cells over nodes 0 and 1; every vCPU may use both.
func interleave(s *situation) {
	s.placed.MemoryMode = guest.MemoryInterleave
	for i := range s.placed.Cells {
		s.placed.Cells[i].Nodes = nodes("0-1")
	}
	for i := range s.placed.VCPUs {
		s.placed.VCPUs[i].CPUs = cpus("1-5,8-15")
	}
}

func TestPlacement_Distances(t *testing.T) {
	unreachable := func(s *situation) { s.host.Topology.Nodes[0].Distances[1] = 255 }
	checkRules(t, []ruleCase{
		{"greatest allowed distance", shared, func(s *situation) { s.spec.Limits.MaxDistance = 21 }, nil},
		{"greater distance", shared,
			func(s *situation) { s.spec.Limits.MaxDistance = 20 },
			want("distance node 0", "distance node 1")},
		{"greater distance one way", shared, func(s *situation) {
			s.host.Topology.Nodes[1].Distances[0] = 22
			s.spec.Limits.MaxDistance = 21
		}, want("distance node 1")},
		{"unknown distance", shared, func(s *situation) {
			delete(s.host.Topology.Nodes[0].Distances, 1)
			s.spec.Limits.MaxDistance = 100
		}, want("distance node 0")},
		{"unknown distance without a limit", shared,
			func(s *situation) { delete(s.host.Topology.Nodes[0].Distances, 1) },
			nil},
		{"greatest allowed class", shared,
			func(s *situation) { s.spec.Limits.MaxClass = s.host.Topology.Nodes[0].Classes[1] },
			nil},
		{"farther class than neighbour", shared, func(s *situation) {
			s.host.Topology.Nodes[0].Classes[1], s.host.Topology.Nodes[1].Classes[0] = topology.Remote, topology.Neighbour
			s.spec.Limits.MaxClass = topology.Neighbour
		}, want("distance node 0")},
		{"local class only", shared,
			func(s *situation) { s.spec.Limits.MaxClass = topology.Local },
			want("distance node 0", "distance node 1")},
		{"no path by the firmware", shared, unreachable, want("distance node 0")},
		{"no path by the firmware, but measured", shared, func(s *situation) {
			unreachable(s)
			s.host.Topology.Measured = &topology.Measured{
				Nodes:        []topology.NodeID{0, 1, 2},
				LatencyNanos: [][]float64{{80, 140, 200}, {140, 80, 200}, {0, 0, 0}},
			}
		}, nil},
	})
}

func TestPlacement_Devices(t *testing.T) {
	need := func(address string, on topology.NodeID, required bool) func(*situation) {
		return func(s *situation) {
			s.host.Topology.Devices[0].Node = on
			s.spec.Devices = []guest.DeviceSpec{{Address: address, Required: required}}
		}
	}
	const address = "0000:01:00.0"
	checkRules(t, []ruleCase{
		{"required, on the guest's node", alone, need(address, 1, true), nil},
		{"required, on another node", alone, need(address, 0, true), want("devices device 0000:01:00.0")},
		{"wanted, on another node", alone, need(address, 0, false), nil},
		{"required, on no known node", alone, need(address, topology.NoNode, true), nil},
		{"required, another device", alone, need("0000:02:00.0", 0, true), nil},
	})
}
