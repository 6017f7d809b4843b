package topology

import (
	"strings"
	"testing"
)

func TestSyntheticSquare(t *testing.T) {
	topo := square(t)
	if err := topo.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(topo.Gaps) != 0 {
		t.Errorf("gaps %q", topo.Gaps)
	}
	if got, want := classLetters(&topo), "l n n r\nn l r n\nn r l n\nr n n l"; got != want {
		t.Errorf("classes\n%s\nwant\n%s", got, want)
	}
	n := topo.Nodes[1]
	if n.CPUs.String() != "2-3,10-11" || n.Memory != GiB || n.Free != GiB ||
		n.HugePages[0] != (HugePagePool{2 * MiB, 8, 8}) {
		t.Errorf("node 1: %+v", n)
	}
	c := topo.CPUs[10]
	if c.Core != 2 || c.Siblings.String() != "2,10" || c.Socket != 1 || c.L3 != 2 || c.Node != 1 {
		t.Errorf("CPU 10: %+v", c)
	}
}

func TestSyntheticWords(t *testing.T) {
	topo, err := Synthetic(
		"nodes:0,2-3,9,11 sockets:2 cores:4 l3:2 memory:8G,0,4G,4G,16G memory-only:1 distances:10,12,32 " +
			"housekeeping:0-1",
	)
	if err != nil {
		t.Fatal(err)
	}
	if got := topo.NodeSet().String(); got != "0,2-3,9,11" {
		t.Errorf("nodes %s", got)
	}
	if got := topo.Nodes[4]; !got.CPUs.IsEmpty() || got.Memory != 16*GiB || got.Distances[0] != 255 {
		t.Errorf("memory-only node: %+v", got)
	}
	if topo.CPUs[2].L3 != 2 || topo.CPUs[3].L3 != 2 || topo.CPUs[1].L3 != 0 {
		t.Errorf("L3 domains: %+v", topo.CPUs[:4])
	}
	if topo.Nodes[0].Distances[2] != 12 || topo.Nodes[0].Distances[9] != 32 || topo.Nodes[0].Distances[11] != 32 {
		t.Errorf("distances of node 0: %v", topo.Nodes[0].Distances)
	}
	if topo.Housekeeping.String() != "0-1" {
		t.Errorf("housekeeping %s", topo.Housekeeping)
	}
}

func TestSyntheticNamesTheWord(t *testing.T) {
	for text, want := range map[string]string{
		"": "nodes: missing", "nodes:0": "nodes: 0", "nodes:x": "nodes:", "nodes:2 rooms:3": `unknown word "rooms:3"`,
		"nodes:2 memory:1G,2G,3G": "memory: 3 amounts", "nodes:2 memory:big": "memory:", "nodes:2 " +
			"memory-only:2": "memory-only: 2 of 2",
		"nodes:2 distances:10": "distances:", "nodes:2 sockets:3": "sockets: 3",
		"nodes:1024 cores:60000": "CPUs; allowed",
		"nodes:2 cores:0":        "cores", "nodes:2 huge:2M": "huge:", "nodes:2000": "allowed: 1 to 1024",
	} {
		if topo, err := Synthetic(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d nodes, %v; want an error with %q", text, len(topo.Nodes), err, want)
		}
	}
}

func BenchmarkClassify64Nodes(b *testing.B) {
	topo, err := Synthetic("nodes:64 sockets:16 cores:16 distances:10,12,32")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		topo.Classify()
	}
}
