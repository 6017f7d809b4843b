package lab

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestBuiltInShapesAreValid(t *testing.T) {
	shapes, err := Shapes()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		if s.About == "" {
			t.Errorf("shape %s does not name the machine that it imitates", s.Name)
		}
		for i := range s.Nodes {
			if s.Nodes[i].CPUs > 0 && s.Nodes[i].Memory > 0 && s.ExtraNanos(i, i) > 40 {
				t.Errorf("shape %s: local memory of node %d is felt as %d ns slower than the best", s.Name, i,
					s.ExtraNanos(i, i))
			}
		}
	}
	if len(shapes) < 8 {
		t.Errorf("only %d shapes", len(shapes))
	}
}

func TestParseShapeNamesFieldAndValue(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"nodes: []", "nodes: 0 given"},
		{"nodes: [{cpus: 2, memory: 1G}, {cpus: 3, memory: 1G}]\nthreads: 2", "nodes[1].cpus: 3"},
		{"nodes: [{cpus: 2, memory: 100M}]", "nodes[0].memory: 100 MiB"},
		{"nodes: [{cpus: 2, memory: 1G}, {}]", "nodes[1]: has neither"},
		{"nodes: [{cpus: 300, memory: 1G}]", "300 CPUs"},
		{"nodes: [{cpus: 2, memory: 1G}, {cpus: 2, memory: 1G}]\ndistances: [[10, 5], [20, 10]]", "distances[0][1]: 5"},
		{"nodes: [{cpus: 2, memory: 1G}]\ndistances: [[10], [10]]", "2 rows for 1 nodes"},
		{"nodes: [{cpus: 2, memory: 1G}]\nlatency_ns: [[-1]]", "latency_ns[0][0]: -1"},
		{"nodes: [{cpus: 2, memory: 1G}]\ndelay_scale: 1e9", "delay_scale"},
		{"nodes: [{cpus: 2, memory: 1G}]\nslowdown: 101", "slowdown: 101"},
		{"nodes: [{cpus: 2, memory: 1G, misses_per_ms: -1}]", "nodes[0].misses_per_ms"},
		{"nodes: [{cpus: 2, memory: 1G}]\nnoddes: 3", "2:1: noddes: no such field; did you mean nodes?"},
		{"nodes: [{cpus: 2, memory: 1G}, {cpus: 4, memory: 1G}]\nl3_per_node: 2", "l3_per_node: 2"},
	} {
		_, err := ParseShape(strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.text, err, c.want)
		}
	}
}

// A shape's felt costs are its latencies less the least local one; the latency of
// a node without CPUs to itself does not count.
func TestExtraNanosFollowsLatency(t *testing.T) {
	for _, c := range []struct {
		shape    string
		from, to int
		want     int64
	}{
		{"square4", 1, 1, 0}, {"square4", 1, 0, 55}, {"square4", 1, 2, 155},
		{"genoa-cxl", 3, 3, 0}, {"genoa-cxl", 0, 0, 2}, {"genoa-cxl", 0, 2, 95}, {"genoa-cxl", 2, 4, 258},
		{"uneven", 0, 1, 85}, {"uneven", 1, 0, 94}, // from SLIT
	} {
		s, err := FindShape(c.shape)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.ExtraNanos(c.from, c.to); got != c.want {
			t.Errorf("%s, node %d to %d: %d ns, want %d", c.shape, c.from, c.to, got, c.want)
		}
	}
}

func TestFindShape_NamesTheCommandThatListsShapes(t *testing.T) {
	if _, err := FindShape("no-such"); err == nil || !strings.Contains(err.Error(), "lab shapes") {
		t.Errorf("got %v", err)
	}
}

// QEMU 7.2 and 10.0 were measured (TestLabScopeCountsWhatIsKnown); from 8.2 on
// the numbers are physical addresses, with the hole below 4 GiB left out.
func TestAddressRangesOfEachQEMU(t *testing.T) {
	s := Shape{Nodes: []Node{{CPUs: 2, Memory: 2 * topology.GiB}, {CPUs: 2, Memory: 2 * topology.GiB}, {CPUs: 1},
		{Memory: topology.GiB}}}
	for _, c := range []struct {
		version qemuVersion
		want    []addressRange
	}{
		{qemuVersion{7, 2}, []addressRange{{0, 2 * topology.GiB, 0}, {4 * topology.GiB, 2 * topology.GiB, 1},
			{8 * topology.GiB, topology.GiB, 3}}},
		{qemuVersion{8, 1}, []addressRange{{0, 2 * topology.GiB, 0}, {4 * topology.GiB, 2 * topology.GiB, 1},
			{8 * topology.GiB, topology.GiB, 3}}},
		{qemuVersion{8, 2}, []addressRange{{0, 2 * topology.GiB, 0}, {2 * topology.GiB, topology.GiB, 1},
			{4 * topology.GiB, topology.GiB, 1}, {5 * topology.GiB, topology.GiB, 3}}},
		{qemuVersion{10, 0}, []addressRange{{0, 2 * topology.GiB, 0}, {2 * topology.GiB, topology.GiB, 1},
			{4 * topology.GiB, topology.GiB, 1}, {5 * topology.GiB, topology.GiB, 3}}},
	} {
		got := addressRanges(s, c.version)
		if len(got) != len(c.want) {
			t.Fatalf("QEMU %v: %v, want %v", c.version, got, c.want)
		}
		var sum topology.Bytes
		for i := range got {
			sum += got[i].size
			if got[i] != c.want[i] {
				t.Errorf("QEMU %v: range %d is %v, want %v", c.version, i, got[i], c.want[i])
			}
		}
		if sum != s.Memory() {
			t.Errorf("QEMU %v: the ranges hold %v of %v", c.version, sum, s.Memory())
		}
	}
}

func TestScopeConfig_HasBudgetsAndMarks(t *testing.T) {
	s, err := ParseShape(strings.NewReader("nodes: [{cpus: 1, memory: 1G, misses_per_ms: 250}, {cpus: 1, memory: 1G}]\n" +
		"marked: true\nprefetch: true"))
	if err != nil {
		t.Fatal(err)
	}
	text := scopeConfig(s, "x", qemuVersion{10, 0})
	if !strings.Contains(text, "\nprefetch\nmarked\n") || !strings.Contains(text, "\nbudget 0 4000\n") ||
		strings.Contains(text, "budget 1") {
		t.Errorf("the plugin's configuration reads\n%s", text)
	}
}

func FuzzParseShape(f *testing.F) {
	for _, text := range []string{"nodes: [{cpus: 2, memory: 1G}]", "{\"nodes\":[{\"cpus\":1}]}", "nodes: [{cpus: " +
		"2, memory: 1G}]\ndistances: [[10]]\nlatency_ns: [[]]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseShape(strings.NewReader(text))
		if err != nil {
			return
		}
		for i := range s.Nodes { // what is valid can be rendered
			for j := range s.Nodes {
				s.ExtraNanos(i, j)
			}
		}
		scopeConfig(s, "x", qemuVersion{7, 2})
		processors(s)
		nodes(s, machine{})
	})
}
