package topology

import (
	"fmt"
	"strings"
	"testing"
)

// machine is a real machine: distances or latencies, one row a line, rows of
// nodes without CPUs as "-", and the classes an operator would give, one
// letter a pair.
type machine struct {
	name    string
	slit    string
	latency string // rows of nanoseconds; decides where given
	want    string
}

const (
	naplesSLIT = `10 16 16 16 28 28 22 28
16 10 16 16 28 28 28 22
16 16 10 16 22 28 28 28
16 16 16 10 28 22 28 28
28 28 22 28 10 16 16 16
28 28 28 22 16 10 16 16
22 28 28 28 16 16 10 16
28 22 28 28 16 16 16 10`
	fourPlusFour = "l n n n r r r r\nn l n n r r r r\nn n l n r r r r\nn n n l r r r r\nr r r r l n n n\nr r r r n " +
		"l n n\nr r r r n n l n\nr r r r n n n l"
	twoPlusTwo = "l n r r\nn l r r\nr r l n\nr r n l"
	threePlus3 = "l n n r r r\nn l n r r r\nn n l r r r\nr r r l n n\nr r r n l n\nr r r n n l"
)

var machines = []machine{
	{"Cascade Lake SNC2", "10 11 21 21\n11 10 21 21\n21 21 10 11\n21 21 11 10", "", twoPlusTwo},
	{"Cascade Lake SNC2 measured", "",
		"77.3 81.6 129.8 136.1\n82.1 78.1 134.1 137.6\n129.8 135.8 73.5 81.7\n134.4 137.7 81.7 78.5", twoPlusTwo},
	{"Cascade Lake", "10 21\n21 10", "", "l r\nr l"},
	{"Cascade Lake measured", "10 21\n21 10", "77.9 143.2\n144.4 77.9", "l r\nr l"},
	{"Genoa NPS2 and CXL", "10 12 32 32 50\n12 10 32 32 50\n32 32 10 12 60\n32 32 12 10 60\n-", "",
		"l n r r r\nn l r r r\nr r l n r\nr r n l r\nr r r r l"},
	{"Genoa NPS2 and CXL measured", "",
		"107.5 117.1 200.7 200.7 279.4\n115.8 106.8 199.9 199.9 278.8\n200.0 200.1 106.8 115.8 363.8\n199.0 199.0 " +
			"115.6 105.9 363.5\n-",
		"l n r r r\nn l r r r\nr r l n r\nr r n l r\nr r r r l"},
	{"Granite Rapids SNC3", `10 15 17 21 28 26
15 10 15 23 26 23
17 15 10 26 23 21
21 28 26 10 15 17
23 26 23 15 10 15
26 23 21 17 15 10`, "", threePlus3},
	{"Granite Rapids SNC3 measured", "", `138.7 168.0 208.5 394.1 475.2 445.1
160.3 134.4 170.4 415.2 448.2 479.7
156.2 123.6 106.5 507.8 513.2 452.5
396.0 476.0 445.6 102.0 129.4 157.5
419.7 452.6 421.2 122.1 102.4 130.2
445.4 449.5 392.4 148.3 122.3 103.8`, threePlus3},
	{"Haswell", "10 21\n21 10", "", "l r\nr l"},
	{"Haswell measured", "10 21\n21 10", "92.3 133.7\n133.8 93.5", "l r\nr l"},
	{"Kunpeng 920", "10 16 32 33\n16 10 25 32\n32 25 10 16\n33 32 16 10", "", twoPlusTwo},
	{"Sapphire Rapids and CXL measured", "", "130.2 231.2 265.7\n231.2 130.2 368.7\n-", "l r r\nr l r\nr r l"},
	{"Milan NPS4",
		strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(naplesSLIT, "22", "32"), "28", "32"), "16", "12"), "",
		fourPlusFour},
	{"Milan NPS4, one socket, measured", "", "104 113 119 118\n113 105 118 119\n119 118 107 113\n118 119 113 106",
		"l n n n\nn l n n\nn n l n\nn n n l"},
	{"Naples", naplesSLIT, "", fourPlusFour},
	{"Naples measured", "", strings.NewReplacer("10", "85", "16", "140", "22", "240", "28", "240").Replace(naplesSLIT),
		fourPlusFour},
	{"Hygon 5280", "10 16 28 22\n16 10 22 28\n28 22 10 16\n22 28 16 10", "", twoPlusTwo},
	{"Hygon 7280", "10 22\n22 10", "", "l r\nr l"},
	{"four sockets, fully connected", "10 20 20 20\n20 10 20 20\n20 20 10 20\n20 20 20 10", "",
		"l r r r\nr l r r\nr r l r\nr r r l"},
	{"POWER9", "10 40\n40 10", "", "l r\nr l"},
	{"one socket with SNC2", "10 11\n11 10", "", "l n\nn l"},
	{"HBM and DRAM", "10 21 13 23\n21 10 23 13\n-\n-", "", "l r n r\nr l r n\nr r l r\nr r r l"},
	{"one node and CXL", "10 20\n-", "", "l r\nr l"},
	{"one node", "10", "", "l"},
	{"lab square", "10 16 16 28\n16 10 28 16\n16 28 10 16\n28 16 16 10", "", "l n n r\nn l r n\nn r l n\nr n n l"},
	{"no distances", "-2\n-2", "", "l r\nr l"},
}

func TestClassifyRealMachines(t *testing.T) {
	for _, m := range append(machines, phytium(), opteron(), altix()) {
		t.Run(m.name, func(t *testing.T) {
			topo := m.topology(t)
			if got := classLetters(&topo); got != m.want {
				t.Errorf("classes\n%s\nwant\n%s", got, m.want)
			}
		})
	}
}

// phytium is 2 x FT-2500: 10 to 50 in a socket, 100 across.
func phytium() machine {
	socket := strings.Split(`10 20 40 30 20 30 50 40
20 10 30 40 50 20 40 50
40 30 10 20 40 50 20 30
30 40 20 10 30 20 40 50
20 50 40 30 10 50 30 20
30 20 50 20 50 10 50 40
50 40 20 40 30 50 10 30
40 50 30 50 20 40 30 10`, "\n")
	var slit, want []string
	for i := range 16 {
		across, far := strings.Repeat("100 ", 8), strings.Repeat("r ", 8)
		near := strings.Fields(strings.Repeat("n ", 8))
		near[i%8] = "l"
		row, class := socket[i%8]+" "+across, strings.Join(near, " ")+" "+far
		if i >= 8 {
			row, class = across+socket[i%8], far+strings.Join(near, " ")
		}
		slit, want = append(slit, row), append(want, strings.TrimSpace(class))
	}
	return machine{"Phytium", strings.Join(slit, "\n"), "", strings.Join(want, "\n")}
}

// opteron is 4 x 6276: links of one hop (16) and pairs of two (22).
func opteron() machine {
	slit := `10 16 16 22 16 22 16 22
16 10 22 16 16 22 22 16
16 22 10 16 16 16 16 16
22 16 16 10 16 16 22 22
16 16 16 16 10 16 16 22
22 22 16 16 16 10 22 16
16 22 16 22 16 22 10 16
22 16 16 22 22 16 16 10`
	return machine{"Opteron", slit, "", strings.NewReplacer("10", "l", "16", "n", "22", "r").Replace(slit)}
}

// altix has 64 nodes at 22, 26, 30 and 34: the finest step is the neighbour.
func altix() machine {
	var slit, want strings.Builder
	for i := range 64 {
		for j := range 64 {
			d, c := 34, "r"
			switch x := i ^ j; {
			case x == 0:
				d, c = 10, "l"
			case x < 2:
				d, c = 22, "n"
			case x < 8:
				d = 26
			case x < 32:
				d = 30
			}
			fmt.Fprintf(&slit, "%d ", d)
			fmt.Fprintf(&want, "%s ", c)
		}
		slit.WriteString("\n")
		want.WriteString("\n")
	}
	trim := func(s string) string { return strings.TrimSpace(strings.ReplaceAll(s, " \n", "\n")) }
	return machine{"Altix", trim(slit.String()), "", trim(want.String())}
}

func (m machine) topology(t *testing.T) Topology {
	t.Helper()
	var topo Topology
	text := m.slit
	if text == "" {
		text = m.latency
	}
	rows := strings.Split(text, "\n")
	for i, row := range rows {
		n := Node{ID: NodeID(i), Memory: GiB, Distances: map[NodeID]int{}}
		if row != "-" {
			n.CPUs = SetOf(CPUID(i))
		}
		for j, f := range strings.Fields(row) {
			var d int
			if _, err := fmt.Sscanf(f, "%d", &d); err == nil && m.slit != "" && d > 0 {
				n.Distances[NodeID(j)] = d
			}
		}
		if row == "-" && m.slit != "" { // the real contents of such rows
			for j := range rows {
				n.Distances[NodeID(j)] = slitUnreachable
			}
			n.Distances[n.ID] = 10
		}
		topo.Nodes = append(topo.Nodes, n)
	}
	if m.latency != "" {
		topo.Measured = measuredRows(m.latency)
	}
	topo.Classify()
	return topo
}

func measuredRows(text string) *Measured {
	var m Measured
	rows := strings.Split(text, "\n")
	for i, row := range rows {
		m.Nodes = append(m.Nodes, NodeID(i))
		figures := make([]float64, len(rows))
		for j, f := range strings.Fields(row) {
			if f == "-" { // not measured
				continue
			}
			if _, err := fmt.Sscanf(f, "%f", &figures[j]); err != nil {
				panic(err) // a typing error in this file
			}
		}
		m.LatencyNanos = append(m.LatencyNanos, figures)
	}
	return &m
}

func classLetters(t *Topology) string {
	var rows []string
	for _, a := range t.Nodes {
		var row []string
		for _, b := range t.Nodes {
			row = append(row, string(a.Classes[b.ID])[:1])
		}
		rows = append(rows, strings.Join(row, " "))
	}
	return strings.Join(rows, "\n")
}

func TestMeasuredTakesPrecedence(t *testing.T) {
	topo := machine{slit: "10 20 20\n20 10 20\n20 20 10", latency: "80 85 160\n85 80 160\n160 160 80"}.topology(t)
	if got, want := classLetters(&topo), "l n r\nn l r\nr r l"; got != want {
		t.Errorf("classes\n%s\nwant\n%s", got, want)
	}
	topo.Measured.LatencyNanos[0][1] = 0 // unknown: the matrix no longer covers all pairs
	topo.Classify()
	if got, want := classLetters(&topo), "l r r\nr l r\nr r l"; got != want {
		t.Errorf("incomplete matrix: classes\n%s\nwant those of SLIT\n%s", got, want)
	}
}
