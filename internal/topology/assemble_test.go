package topology

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestAssembleResolvesContradictions(t *testing.T) {
	plain := func() (Topology, []SeenCPU) {
		cpus := []SeenCPU{{ID: 3, Socket: 1}, {ID: 0, Core: 5}, {ID: 1, Core: 5}, {ID: 2, Socket: 1, Core: 5}}
		return Topology{Nodes: []Node{
			{ID: 4, CPUs: MustParseSet[CPUID]("2-3"), Memory: GiB, Distances: map[NodeID]int{0: 20, 4: 10}},
			{ID: 0, CPUs: MustParseSet[CPUID]("0-1"), Memory: GiB, Distances: map[NodeID]int{0: 10, 4: 20}},
		}}, cpus
	}
	for name, c := range map[string]struct {
		spoil func(*Topology, *[]SeenCPU)
		gap   string
		check func(Topology) bool
	}{
		"CPU listed twice": {func(s *Topology, _ *[]SeenCPU) { s.Nodes[0].CPUs = MustParseSet[CPUID]("1-3") },
			"CPUs 1 of node 4", func(t Topology) bool {
				return t.Nodes[0].CPUs.String() == "0-1" &&
					t.Nodes[1].CPUs.String() == "2-3"
			}},
		"CPU described twice": {func(_ *Topology, c *[]SeenCPU) { *c = append(*c, SeenCPU{ID: 3, Socket: 7}) },
			"CPUs 3 are described twice", func(t Topology) bool { return t.CPUs[3].Socket == 1 }},
		"homeless CPU": {func(_ *Topology, c *[]SeenCPU) { *c = append(*c, SeenCPU{ID: 9}) },
			"CPUs 9 are online but no node", func(t Topology) bool { return len(t.CPUs) == 4 }},
		"node twice": {func(s *Topology, _ *[]SeenCPU) { s.Nodes = append(s.Nodes, Node{ID: 4, Memory: TiB}) },
			"node 4: number", func(t Topology) bool { return len(t.Nodes) == 2 && t.Nodes[1].Memory == GiB }},
		"more free than there is": {func(s *Topology, _ *[]SeenCPU) { s.Nodes[0].Free = TiB },
			"node 4: 1 TiB free of 1 GiB", func(t Topology) bool { return t.Nodes[1].Free == GiB }},
		"more pages free than there are": {func(s *Topology,
			_ *[]SeenCPU) {
			s.Nodes[0].HugePages = []HugePagePool{{2 * MiB, 1, 2}}
		},
			"node 4: 2 huge pages", func(t Topology) bool { return t.Nodes[1].HugePages[0].Free == 1 }},
		"no distance": {func(s *Topology, _ *[]SeenCPU) { delete(s.Nodes[0].Distances, 0) },
			"node 4: no distance to nodes 0", func(t Topology) bool { return t.Nodes[1].Classes[0] == Remote }},
		"device on no node": {func(s *Topology, _ *[]SeenCPU) {
			s.Devices = []Device{{Address: "0000:00:01.0",
				Node: 2}}
		},
			"device 0000:00:01.0: names node 2", func(t Topology) bool { return t.Devices[0].Node == NoNode }},
		"one-sided siblings": {func(_ *Topology, c *[]SeenCPU) { (*c)[1].Siblings = MustParseSet[CPUID]("0-2") },
			"siblings of CPUs 0", func(t Topology) bool { return t.CPUs[0].Siblings.String() == "0" }},
		"unknown socket": {func(_ *Topology, c *[]SeenCPU) { (*c)[0].Socket = -1 },
			"the socket of CPUs 3", func(t Topology) bool { return t.CPUs[3].Socket == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			seen, cpus := plain()
			c.spoil(&seen, &cpus)
			topo, err := Assemble(seen, cpus)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(topo.Gaps, "\n"), c.gap) {
				t.Errorf("gaps %q; want %q", topo.Gaps, c.gap)
			}
			if !c.check(topo) {
				t.Errorf("settled as %+v", topo)
			}
		})
	}
}

func TestAssembleNumbersCoresDiesAndCaches(t *testing.T) {
	var cpus []SeenCPU
	for id := range CPUID(8) { // two sockets of two dies of one core of two threads; core and die repeat
		cpus = append(cpus,
			SeenCPU{ID: id, Socket: int(id) / 4, Die: int(id) / 2 % 2, Core: 0, L3: Range(id/4*4, id/4*4+3)})
	}
	topo, err := Assemble(Topology{Nodes: []Node{{ID: 0, CPUs: Range[CPUID](0, 7), Distances: map[NodeID]int{0: 10}}}},
		cpus)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range topo.CPUs {
		if c.Siblings.Len() != 2 {
			t.Errorf("CPU %d has the siblings %s, want 2 CPUs", i, c.Siblings)
		}
		want := CPU{
			ID:     CPUID(i),
			Core:   CoreID(i / 2 * 2),
			Die:    DieID(i / 2 * 2),
			Socket: SocketID(i / 4),
			L3:     L3ID(i / 4 * 4),
		}
		if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(CPU{}, "Node", "Siblings")); diff != "" {
			t.Errorf("CPU %d (-want +got):\n%s", i, diff)
		}
	}
	if len(topo.Gaps) != 0 {
		t.Errorf("gaps %q", topo.Gaps)
	}
}

func TestAssembleRefuses(t *testing.T) {
	one := []SeenCPU{{ID: 0}}
	for name, c := range map[string]struct {
		seen Topology
		cpus []SeenCPU
	}{
		"nothing":        {},
		"no node":        {cpus: one},
		"no CPU":         {seen: Topology{Nodes: []Node{{ID: 0}}}},
		"CPU elsewhere":  {seen: Topology{Nodes: []Node{{ID: 0, CPUs: SetOf[CPUID](1)}}}, cpus: one},
		"too many CPUs":  {cpus: make([]SeenCPU, maxCPUs+1)},
		"too many nodes": {seen: Topology{Nodes: make([]Node, maxNodes+1)}, cpus: one},
	} {
		if topo, err := Assemble(c.seen, c.cpus); err == nil {
			t.Errorf("%s: %+v; want an error", name, topo)
		}
	}
}

// The result holds the invariants for every report of a source.
func TestAssembleAlwaysValid(t *testing.T) {
	set := rapid.Custom(func(t *rapid.T) CPUSet {
		return SetOf(
			rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 12), func(i int) CPUID { return CPUID(i) }), 0, 6).
				Draw(t, "ids")...)
	})
	rapid.Check(t, func(t *rapid.T) {
		var seen Topology
		for range rapid.IntRange(0, 4).Draw(t, "nodes") {
			n := Node{
				ID:        NodeID(rapid.IntRange(-1, 5).Draw(t, "node")),
				CPUs:      set.Draw(t, "cpus"),
				Distances: map[NodeID]int{},
			}
			n.Memory, n.Free = Bytes(rapid.IntRange(0, 9).Draw(t, "memory")), Bytes(
				rapid.IntRange(0, 9).Draw(t, "free"))
			n.Distances[NodeID(rapid.IntRange(-1, 5).Draw(t, "to"))] = rapid.IntRange(-1, 300).Draw(t, "distance")
			n.HugePages = []HugePagePool{
				{2 * MiB, uint64(rapid.IntRange(0, 3).Draw(t, "total")),
					uint64(rapid.IntRange(0, 3).Draw(t, "unused"))},
			}
			seen.Nodes = append(seen.Nodes, n)
		}
		seen.Housekeeping, seen.Offline = set.Draw(t, "housekeeping"), set.Draw(t, "offline")
		number := rapid.IntRange(-1, 3)
		var cpus []SeenCPU
		for range rapid.IntRange(0, 10).Draw(t, "count") {
			cpus = append(
				cpus,
				SeenCPU{ID: CPUID(rapid.IntRange(-1, 12).Draw(t, "cpu")), Socket: number.Draw(t, "socket"),
					Die: number.Draw(t,
						"die"), Core: number.Draw(t, "core"), Siblings: set.Draw(t, "siblings"), L3: set.Draw(t, "l3")},
			)
		}
		topo, err := Assemble(seen, cpus)
		if err != nil {
			if len(topo.Nodes) > 0 {
				t.Fatalf("an invalid topology came out: %v", err)
			}
			return
		}
		for _, c := range topo.CPUs {
			for s := range c.Siblings.All() {
				other, ok := topo.CPU(s)
				if !ok || !other.Siblings.Equal(c.Siblings) || other.Core != c.Core {
					t.Fatalf("CPU %d and its sibling %d disagree", c.ID, s)
				}
			}
		}
		if !topo.Housekeeping.SubsetOf(topo.CPUSet()) || topo.Offline.Intersects(topo.CPUSet()) {
			t.Fatalf("housekeeping %s, offline %s, online %s", topo.Housekeeping, topo.Offline, topo.CPUSet())
		}
	})
}
