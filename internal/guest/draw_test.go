package guest_test

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// drawSpec draws a spec that can be written to a file: most are valid, many
// contradict themselves.
func drawSpec(t *rapid.T) guest.Spec {
	s := guest.Spec{
		Name:   rapid.SampledFrom([]string{"", "web1", "a b", "ä", "a/b"}).Draw(t, "name"),
		VCPUs:  rapid.IntRange(0, 9).Draw(t, "vcpus"),
		Memory: drawBytes(t, "memory"),
		PageSize: rapid.SampledFrom([]topology.Bytes{0, 0, 2 * topology.MiB, gib, 3 * topology.MiB}).
			Draw(t, "page size"),
		CPU: guest.CPUSpec{
			Binding: rapid.SampledFrom([]guest.CPUMode{"", guest.CPUNone, guest.CPURange, guest.CPUExclusive, "tight"}).
				Draw(t, "binding"),
			SMT: rapid.SampledFrom([]guest.SMTPolicy{"", guest.SMTAny, guest.SMTPrefer, guest.SMTRequire,
				guest.SMTIsolate}).
				Draw(t, "smt"),
			Emulator: rapid.SampledFrom([]guest.HelperPolicy{"", guest.HelperNodes, guest.HelperNone}).
				Draw(t, "emulator"),
			IOThreads: rapid.IntRange(0, 3).Draw(t, "I/O threads"),
		},
		Binding: guest.MemorySpec{
			Mode: rapid.SampledFrom([]guest.MemoryMode{"", guest.MemoryNone, guest.MemoryPreferred, guest.MemoryStrict,
				guest.MemoryInterleave, guest.MemoryRestrictive}).
				Draw(t, "mode"),
			Immediate: rapid.Bool().Draw(t, "immediate"),
		},
		Topology: guest.TopologySpec{
			Mode: rapid.SampledFrom([]guest.TopologyMode{"", "", guest.TopologyOff, guest.TopologyAuto,
				guest.TopologyCells, guest.TopologyMirror}).
				Draw(t, "topology"),
			Count: rapid.SampledFrom([]int{0, 0, 0, 1, 2, 8}).Draw(t, "count"),
		},
		Limits: guest.Limits{
			MaxDistance: rapid.SampledFrom([]int{0, 0, 9, 10, 32, 255}).Draw(t, "distance"),
			MaxClass:    rapid.SampledFrom([]topology.Class{"", "", topology.Local, topology.Remote}).Draw(t, "class"),
			Nodes:       rapid.SampledFrom([]topology.NodeSet{{}, {}, nodes("1"), nodes("0,2")}).Draw(t, "nodes"),
			CPUs:        rapid.SampledFrom([]topology.CPUSet{{}, {}, cpus("0-3"), cpus("0-63")}).Draw(t, "cpus"),
			MaxNodes:    rapid.IntRange(0, 2).Draw(t, "nodes at most"),
		},
		Movable: rapid.SampledFrom([]*bool{nil, new(bool)}).Draw(t, "movable"),
	}
	if rapid.IntRange(0, 2).Draw(t, "list cells") == 0 {
		for i := range rapid.IntRange(1, 3).Draw(t, "cells") {
			s.Topology.Cells = append(
				s.Topology.Cells,
				guest.CellSpec{
					VCPUs:  rapid.IntRange(0, 3).Draw(t, fmt.Sprint("vcpus of ", i)),
					Memory: drawBytes(t, fmt.Sprint("memory of ", i)),
				},
			)
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "devices") {
		s.Devices = append(s.Devices, guest.DeviceSpec{
			Address: rapid.SampledFrom([]string{"0000:3b:00.0", "3B:00.0", "10000:01:00.1"}).
				Draw(t, fmt.Sprint("address ", i)),
			Passthrough: rapid.Bool().Draw(t, fmt.Sprint("passthrough ", i)),
		})
	}
	return s
}

func drawBytes(t *rapid.T, what string) topology.Bytes {
	unit := rapid.SampledFrom([]topology.Bytes{gib, gib, topology.MiB, 1000}).Draw(t, what+" unit")
	return unit * topology.Bytes(rapid.IntRange(0, 16).Draw(t, what))
}
