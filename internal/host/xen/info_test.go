package xen

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

const host = "8cpu-2n-xen"

func parse(t *testing.T, text string) topology.Topology {
	t.Helper()
	topo, err := ParseInfo(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := topo.Validate(); err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestParseInfoKeepsGoing(t *testing.T) {
	text := string(topologytest.File(t, host, "xl-info.txt"))
	for old, c := range map[string]struct {
		spoiled, gap string
		check        func(topology.Topology) bool
	}{
		"  3:       1        0        0": {"  3:       -        0        0", `"cpu:"`,
			func(t topology.Topology) bool { return len(t.CPUs) == 7 && t.CPUs[2].Siblings.Len() == 1 }},
		"   2:     32768      32000      28,28,10\n": {"", "",
			func(t topology.Topology) bool { return len(t.Nodes) == 2 }},
		"   1:     65536      60312      " +
			"21,10,4294967295\n": {"", "node 1 has CPUs but no line",
			func(t topology.Topology) bool { return t.Nodes[1].Memory == 0 && t.Nodes[1].CPUs.Len() == 4 }},
		"41200": {"99999", "node 0: 97.7 GiB free of 65 GiB",
			func(t topology.Topology) bool { return t.Nodes[0].Free == t.Nodes[0].Memory }},
		"0000:3b:00.0      1": {"0000:3b:00.0      9", "device 0000:3b:00.0: names node 9",
			func(t topology.Topology) bool { return t.Devices[1].Node == topology.NoNode }},
		"0000:00:1f.2      0\n0000:3b:00.0      1\n": {"No device topology data available\n", "",
			func(t topology.Topology) bool { return len(t.Devices) == 0 }},
	} {
		spoiled := strings.Replace(text, old, c.spoiled, 1)
		if spoiled == text {
			t.Fatalf("%q is not in the fixture", old)
		}
		topo := parse(t, spoiled)
		if !strings.Contains(strings.Join(topo.Gaps, "\n"), c.gap) {
			t.Errorf("%q: gaps %q; want %q", c.spoiled, topo.Gaps, c.gap)
		}
		if !c.check(topo) {
			t.Errorf("%q: read as\n%s", c.spoiled, topologytest.Describe(topo))
		}
	}
}

func TestParseInfoRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"": "xl info -n", "nr_cpus : 8\n": "xl info -n", "cpu:    core    socket     node\n  0: 0 0 0\n": "xl info -n",
		strings.Repeat("\n", maxInfo+1): "more than",
	} {
		if _, err := ParseInfo(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want an error with %q", text, err, want)
		}
	}
}

func FuzzParseInfo(f *testing.F) {
	f.Add(topologytest.File(f, host, "xl-info.txt"))
	f.Add([]byte("cpu: core socket node\n0: 0 0 9\nnode: memsize memfree distances\n9: 1 2 3,4,,x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := ParseInfo(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := topo.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
