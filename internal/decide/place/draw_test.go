package place

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	huge  = 2 * topology.MiB
	giant = topology.GiB
)

// drawHost draws a small host of any shape: sparse ids, unequal nodes, nodes
// without CPUs or memory, asymmetric and missing distances, SMT, caches,
// pools, and guests of all sorts on it.
func drawHost(t *rapid.T, most int) *inventory.Host {
	h := &inventory.Host{Name: "host", Topology: drawTopology(t, most)}
	for i := range rapid.IntRange(0, 3).Draw(t, "others") {
		drawOther(t, h, fmt.Sprintf("other%d", i))
	}
	return h
}

func drawTopology(t *rapid.T, most int) topology.Topology {
	var topo topology.Topology
	count := rapid.SampledFrom(upTo(most)).Draw(t, "nodes")
	id, cpu := topology.NodeID(0), topology.CPUID(0)
	threads := rapid.IntRange(1, 2).Draw(t, "threads")
	for range count {
		id += topology.NodeID(rapid.SampledFrom([]int{0, 0, 0, 5}).Draw(t, "gap"))
		n := topology.Node{ID: id, Distances: map[topology.NodeID]int{}}
		cores := rapid.SampledFrom([]int{4, 2, 3, 4, 1, 2, 4, 0}).Draw(t, "cores")
		n.Memory = rapid.SampledFrom([]topology.Bytes{4, 8, 2, 4, 1, 4, 8, 0}).Draw(t, "memory") * topology.GiB
		first := cpu
		for c := range cores {
			core := cpu
			siblings := topology.Range(core, core+topology.CPUID(threads)-1)
			for range threads {
				topo.CPUs = append(topo.CPUs, topology.CPU{
					ID: cpu, Core: topology.CoreID(core), Node: id,
					L3: topology.L3ID(int(first) + c/2), Siblings: siblings,
				})
				n.CPUs = n.CPUs.With(cpu)
				cpu++
			}
		}
		if n.Memory > 0 {
			pool := topology.HugePagePool{Size: huge, Total: uint64(rapid.IntRange(0, 256).Draw(t, "pool"))}
			pool.Free = uint64(rapid.IntRange(0, int(pool.Total)).Draw(t, "free pages"))
			n.HugePages = []topology.HugePagePool{pool}
			rest := n.Memory - topology.Bytes(pool.Total)*huge
			n.Free = rest / 100 * topology.Bytes(rapid.IntRange(20, 100).Draw(t, "free"))
		}
		topo.Nodes = append(topo.Nodes, n)
		id++
	}
	drawDistances(t, &topo)
	if rapid.Bool().Draw(t, "housekeeping") && len(topo.CPUs) > 2 {
		topo.Housekeeping = topology.SetOf(topo.CPUs[0].ID)
	}
	topo.Devices = []topology.Device{{
		Address: "0000:01:00.0", Kind: topology.DeviceNIC,
		Node: rapid.SampledFrom(append([]topology.Node{{ID: topology.NoNode}}, topo.Nodes...)).
			Draw(t, "device node").
			ID,
	}}
	topo.Classify()
	return topo
}

// upTo lists n to 1, each after another n: rapid prefers the first elements.
func upTo(n int) []int {
	var all []int
	for i := n; i >= 1; i-- {
		all = append(all, n, i)
	}
	return all
}

func drawDistances(t *rapid.T, topo *topology.Topology) {
	measured := rapid.Bool().Draw(t, "measured")
	m := &topology.Measured{}
	for i := range topo.Nodes {
		n := &topo.Nodes[i]
		m.Nodes = append(m.Nodes, n.ID)
		var latency, bandwidth []float64
		for j := range topo.Nodes {
			d := 10
			if i != j {
				d = rapid.SampledFrom([]int{12, 16, 16, 16, 21, 21, 28, 28, 32, 32, 0, 255}).Draw(t, "distance")
			}
			if d > 0 {
				n.Distances[topo.Nodes[j].ID] = d
			}
			latency = append(latency, float64(8*max(d, 10))+rapid.Float64Range(0, 3).Draw(t, "noise"))
			bandwidth = append(bandwidth, 400_000/float64(max(d, 10)))
		}
		m.LatencyNanos = append(m.LatencyNanos, latency)
		m.BandwidthMBps = append(m.BandwidthMBps, bandwidth)
	}
	if measured {
		topo.Measured = m
	}
}

// drawOther places a guest on the host that takes some resources, managed or not.
func drawOther(t *rapid.T, h *inventory.Host, name string) {
	g := inventory.Guest{Name: name, State: "running"}
	node := rapid.SampledFrom(h.Topology.Nodes).Draw(t, "home")
	g.Seen.MemoryByNode = topology.MemoryByNode{}
	if node.Memory > 0 && rapid.Bool().Draw(t, "touched") {
		g.Seen.MemoryByNode[node.ID] = topology.Bytes(rapid.IntRange(1, 300).Draw(t, "seen")) * topology.MiB
	}
	size := rapid.SampledFrom([]topology.Bytes{0, huge}).Draw(t, "pages")
	memory := topology.Bytes(rapid.IntRange(1, 400).Draw(t, "held")) * huge
	if rapid.Bool().Draw(t, "managed") {
		g.Managed = true
		p := &guest.Placement{Guest: name, PageSize: size, CPUMode: guest.CPURange}
		r := guest.Reservation{Node: node.ID, PageSize: size, VCPUs: rapid.IntRange(0, 3).Draw(t, "vcpus")}
		if node.Memory > 0 {
			r.Memory = memory
		}
		if one, ok := node.CPUs.Minus(h.Topology.Housekeeping).First(); ok && rapid.Bool().Draw(t, "exclusive") {
			p.CPUMode, r.Exclusive = guest.CPUExclusive, topology.SetOf(one)
		}
		p.Reservations = []guest.Reservation{r}
		g.Placement = p
	} else {
		g.Config = inventory.Config{VCPUs: rapid.IntRange(1, 3).Draw(t, "vcpus"), Memory: memory, PageSize: size}
		if one, ok := node.CPUs.First(); ok && rapid.Bool().Draw(t, "pinned") {
			g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: topology.SetOf(one)}
		}
		if rapid.Bool().Draw(t, "tuned") {
			g.Config.NUMATune = &inventory.NUMATune{Mode: "strict", Nodes: topology.SetOf(node.ID)}
		}
	}
	h.Guests = append(h.Guests, g)
}

// drawSpec draws a small guest for the host.
func drawSpec(t *rapid.T, h *inventory.Host) guest.Spec {
	s := guest.Spec{
		Name:   "new",
		VCPUs:  rapid.SampledFrom([]int{4, 6, 2, 8, 7, 5, 9, 3, 1}).Draw(t, "vcpus"),
		Memory: topology.Bytes(rapid.SampledFrom([]int{100, 600, 1201, 301, 1, 3, 2000}).Draw(t, "memory")) * huge,
	}
	s.PageSize = rapid.SampledFrom([]topology.Bytes{0, 0, huge}).Draw(t, "page size")
	s.CPU.Binding = rapid.SampledFrom([]guest.CPUMode{"", guest.CPURange, guest.CPUNone, guest.CPUExclusive,
		guest.CPUExclusive}).
		Draw(t, "binding")
	s.CPU.SMT = rapid.SampledFrom([]guest.SMTPolicy{"", guest.SMTAny, guest.SMTPrefer, guest.SMTRequire,
		guest.SMTIsolate}).
		Draw(t, "smt")
	helpers := []guest.HelperPolicy{"", guest.HelperNodes, guest.HelperExclusive, guest.HelperNone}
	if !h.Topology.Housekeeping.IsEmpty() {
		helpers = append(helpers, guest.HelperHousekeeping)
	}
	s.CPU.Emulator = rapid.SampledFrom(helpers).Draw(t, "emulator")
	s.CPU.IOThreads = rapid.IntRange(0, 2).Draw(t, "iothreads")
	s.CPU.IOPolicy = rapid.SampledFrom(helpers).Draw(t, "io policy")
	s.Binding.Mode = rapid.SampledFrom([]guest.MemoryMode{"", guest.MemoryStrict, guest.MemoryInterleave,
		guest.MemoryNone}).
		Draw(t, "mode")
	drawTopologySpec(t, &s)
	drawLimits(t, h, &s)
	return s
}

func drawTopologySpec(t *rapid.T, s *guest.Spec) {
	s.Topology.Mode = rapid.SampledFrom([]guest.TopologyMode{"", guest.TopologyOff, guest.TopologyAuto,
		guest.TopologyCells, guest.TopologyCells, guest.TopologyMirror}).
		Draw(t, "topology")
	if s.Topology.Mode != guest.TopologyCells {
		return
	}
	n := rapid.IntRange(1, min(4, s.VCPUs, int(s.Memory/huge))).Draw(t, "cells")
	if rapid.Bool().Draw(t, "equal") {
		s.Topology.Count = n
		return
	}
	vcpus, pages := s.VCPUs, int(s.Memory/huge)
	for i := range n {
		later := n - 1 - i
		c := guest.CellSpec{VCPUs: vcpus, Memory: topology.Bytes(pages) * huge}
		if later > 0 {
			c.VCPUs = rapid.IntRange(1, vcpus-later).Draw(t, "cell vcpus")
			c.Memory = topology.Bytes(rapid.IntRange(1, pages-later).Draw(t, "cell pages")) * huge
		}
		vcpus, pages = vcpus-c.VCPUs, pages-int(c.Memory/huge)
		s.Topology.Cells = append(s.Topology.Cells, c)
	}
}

func drawLimits(t *rapid.T, h *inventory.Host, s *guest.Spec) {
	s.Limits.MaxDistance = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 16, 21}).Draw(t, "max distance")
	s.Limits.MaxClass = rapid.SampledFrom([]topology.Class{"", "", "", "", "", topology.Neighbour, topology.Local}).
		Draw(t, "max class")
	s.Limits.MaxNodes = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 2, 3}).Draw(t, "max nodes")
	if rapid.IntRange(0, 7).Draw(t, "limit nodes") == 7 {
		var ids []topology.NodeID
		for _, n := range h.Topology.Nodes {
			if rapid.IntRange(0, 3).Draw(t, "in") < 3 {
				ids = append(ids, n.ID)
			}
		}
		s.Limits.Nodes = topology.SetOf(ids...)
	}
	if rapid.IntRange(0, 5).Draw(t, "limit cpus") == 5 && len(h.Topology.CPUs) > 1 {
		last := h.Topology.CPUs[len(h.Topology.CPUs)-1].ID
		s.Limits.CPUs = topology.Range(1, last)
	}
	if rapid.IntRange(0, 2).Draw(t, "device") == 2 {
		s.Devices = []guest.DeviceSpec{{Address: "0000:01:00.0", Required: rapid.Bool().Draw(t, "required")}}
	}
}

func drawPolicy(t *rapid.T) policy.Policy {
	p := policy.Policy{
		Overcommit: rapid.SampledFrom([]float64{0, 1, 1.5, 4}).Draw(t, "overcommit"),
		Count:      rapid.SampledFrom([]policy.Capacity{"", policy.CountCores, policy.CountThreads}).Draw(t, "count"),
		Prefer: rapid.SampledFrom([]policy.Preference{"", policy.PreferSpread, policy.PreferPack}).
			Draw(t, "prefer"),
	}
	if rapid.Bool().Draw(t, "never grow") {
		none := topology.Bytes(0)
		p.GrowHugePagesUpTo = &none
	}
	return p
}
