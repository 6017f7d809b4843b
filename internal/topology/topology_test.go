package topology

import (
	"slices"
	"strings"
	"testing"
)

func square(t *testing.T) Topology {
	t.Helper()
	topo, err := Synthetic("nodes:4 cores:2 threads:2 memory:1G distances:10,16,28 square huge:2M=8")
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestValidateNamesEveryViolation(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Topology)
		want  []string
	}{
		"nodes out of order": {func(t *Topology) { slices.Reverse(t.Nodes) }, []string{"node 2: ids", "node 0: ids"}},
		"CPU in two nodes": {func(t *Topology) { t.Nodes[1].CPUs = t.Nodes[1].CPUs.With(0) }, []string{"CPU 0: " +
			"claimed by node 0 and node 1"}},
		"unknown CPU": {func(t *Topology) { t.Nodes[1].CPUs = t.Nodes[1].CPUs.With(99) }, []string{"node " +
			"1: lists CPU 99"}},
		"CPU of another node": {func(t *Topology) { t.CPUs[0].Node = 3 }, []string{"CPU 0: names node 3"}},
		"CPU of no node":      {func(t *Topology) { t.CPUs[0].Node = 9 }, []string{"CPU 0: names node 9"}},
		"lonely siblings": {func(t *Topology) { t.CPUs[1].Siblings = SetOf[CPUID](0) },
			[]string{`CPU 1: its siblings "0"`}},
		"too many free pages": {func(t *Topology) { t.Nodes[2].HugePages[0].Free = 9 }, []string{"node 2: huge " +
			"pages of 2 MiB: 9 free of 8"}},
		"distance below 1": {func(t *Topology) { t.Nodes[0].Distances[1] = 0 }, []string{"node 0: distance to " +
			"node 1 is 0"}},
		"two at once": {func(t *Topology) { t.Nodes[0].Distances[1] = -4; t.CPUs[0].Node = 9 },
			[]string{"distance to node 1 is -4", "CPU 0: names node 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			topo := square(t)
			if err := topo.Validate(); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.spoil(&topo)
			err := topo.Validate()
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q", err, want)
				}
			}
		})
	}
}

func TestLookups(t *testing.T) {
	topo, err := Synthetic("nodes:0,3,7 cores:2 memory:1G,0,2G memory-only:1")
	if err != nil {
		t.Fatal(err)
	}
	if got := topo.NodeSet().String(); got != "0,3,7" {
		t.Errorf("NodeSet %s", got)
	}
	if got := topo.MemoryNodes().String(); got != "0,7" {
		t.Errorf("MemoryNodes %s", got)
	}
	if got := topo.CPUsOf(MustParseSet[NodeID]("3,7")).String(); got != "2-3" {
		t.Errorf("CPUsOf %s", got)
	}
	if got := topo.NodesOf(MustParseSet[CPUID]("1-2")).String(); got != "0,3" {
		t.Errorf("NodesOf %s", got)
	}
	threads, err := Synthetic("nodes:2 cores:2 threads:2 memory:1G")
	if err != nil {
		t.Fatal(err)
	}
	for cpus, want := range map[string]int{"": 0, "0-1": 2, "5": 1, "1,5": 1, "0-7": 4, "1,3,5,7": 2, "0,99": 1} {
		if got := threads.Cores(MustParseSet[CPUID](cpus)); got != want {
			t.Errorf("CPUs %s belong to %d cores, want %d", cpus, got, want)
		}
	}
	if _, ok := topo.Node(1); ok {
		t.Error("node 1 is found; ids are not positions")
	}
	if _, ok := topo.CPU(4); ok {
		t.Error("CPU 4 is found")
	}
	if d, ok := topo.Distance(3, 7); d != 20 || !ok {
		t.Errorf("Distance 3 to 7: %d, %v", d, ok)
	}
	if _, ok := topo.Distance(1, 0); ok {
		t.Error("a missing node has a distance")
	}
}
