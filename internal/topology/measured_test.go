package topology

import (
	"strings"
	"testing"
)

func TestParseMeasured(t *testing.T) {
	for _, text := range []string{
		"nodes: [0, 2]\nlatency_ns: [[85, 140], [138.5, 86]]\nbandwidth_mbps: [[59000, 0], [50500, " +
			"59000]]\nsource: mlc",
		`{"nodes":[0,2],"latency_ns":[[85,140],[138.5,86]],"bandwidth_mbps":[[59000,0],[50500,59000]],"source":"mlc"}`,
	} {
		m, err := ParseMeasured(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		topo := Topology{Measured: m}
		if v, ok := topo.Latency(2, 0); v != 138.5 || !ok {
			t.Errorf("latency 2 to 0: %v, %v", v, ok)
		}
		if v, ok := topo.Bandwidth(0, 0); v != 59000 || !ok {
			t.Errorf("bandwidth 0 to 0: %v, %v", v, ok)
		}
		if _, ok := topo.Bandwidth(0, 2); ok {
			t.Error("0 means unknown, but was returned")
		}
		if _, ok := topo.Latency(1, 0); ok {
			t.Error("node 1 is not in the matrix, but has a latency")
		}
		if m.Source != "mlc" {
			t.Errorf("source %q", m.Source)
		}
	}
}

func TestParseMeasuredNamesTheField(t *testing.T) {
	for text, want := range map[string]string{
		"":          "measured matrix: nodes is empty; allowed: the node numbers",
		"nodes: []": "measured matrix:1:8: nodes is empty; allowed: ",
		"nodes: [0, 0]\nlatency_ns: [[1,1],[1,1]]": ":1:12: nodes[1] is 0; allowed: distinct",
		"nodes: [-1]\nlatency_ns: [[1]]":           ":1:9: nodes[0] is -1; allowed: ",
		"nodes: [0]":                               "latency_ns, bandwidth_mbps: both missing",
		"nodes: [0, 1]\nlatency_ns: [[1, 2]]": ":2:13: latency_ns is 1 row; allowed: one for each of 2 " +
			"nodes",
		"nodes: [0, 1]\nlatency_ns: [[1, 2], [1]]":       ":2:22: latency_ns[1] is 1 figure; allowed: one for each",
		"nodes: [0]\nbandwidth_mbps: [[-5]]":             ":2:19: bandwidth_mbps[0][0] is -5; allowed: ",
		"nodes: [0]\nlatency: [[5]]":                     ":2:1: latency: no such field; did you mean latency_ns?",
		"nodes: [0]\nspeed: [[5]]":                       ":2:1: speed: no such field; allowed: nodes, latency_ns",
		"nodes: [0]\nlatency_ns: [[fast]]":               `:2:15: latency_ns[0][0] is "fast"; allowed: a number`,
		"nodes: [0, 1]\nlatency_ns: [[1, 2], [1, .inf]]": ":2:26: latency_ns[1][1] is .inf; allowed: a number",
		"{":     "measured matrix",
		"- 1\n": "measured matrix:1:1: the document is a list",
	} {
		m, err := ParseMeasured(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, m, err, want)
		}
	}
}

func FuzzParseMeasured(f *testing.F) {
	f.Add("nodes: [0, 2]\nlatency_ns: [[85, 140], [138, 86]]")
	f.Add(`{"nodes":[0],"bandwidth_mbps":[[1e3]]}`)
	f.Add("nodes: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMeasured(strings.NewReader(text))
		if err != nil {
			return
		}
		topo := Topology{Measured: m}
		for _, n := range m.Nodes {
			topo.Nodes = append(topo.Nodes, Node{ID: n, Memory: GiB, CPUs: SetOf(CPUID(n))})
			topo.Latency(n, n)
		}
		topo.Classify()
	})
}
