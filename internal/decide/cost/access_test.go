package cost

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numavisor/numavisor/internal/topology"
)

// latencies returns the matrix of latency ratios, rows by CPU, columns by memory.
func latencies(a *Access) [][]float64 { return matrix(a, a.Latency) }

func matrix(a *Access, at func(i, j int) float64) [][]float64 {
	rows := make([][]float64, a.size)
	for i := range a.size {
		for j := range a.size {
			rows[i] = append(rows[i], at(i, j))
		}
	}
	return rows
}

func wantMatrix(t *testing.T, name string, want, got [][]float64) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// without removes CPUs ("c") or memory ("m") from nodes, by position.
func without(topo *topology.Topology, kinds string) *topology.Topology {
	for i, kind := range kinds {
		switch kind {
		case 'c':
			topo.Nodes[i].CPUs = topology.CPUSet{}
		case 'm':
			topo.Nodes[i].Memory = 0
		}
	}
	return topo
}

// Distances of 0 are not given; 255 is no path. Ratios are damped.
func TestAccess_LatencyFromSLIT(t *testing.T) {
	r := damped
	for _, c := range []struct {
		name string
		topo *topology.Topology
		want [][]float64
	}{
		{"asymmetric", host([][]int{{10, 21}, {32, 10}}), [][]float64{{1, r(2.1)}, {r(3.2), 1}}},
		{"no path", host([][]int{{10, 255}, {16, 10}}), [][]float64{{1, 0}, {r(1.6), 1}}},
		{
			"a distance that is not given is the greatest " +
				"known", host([][]int{{10, 21, 0}, {32, 10, 16}, {12, 12, 10}}),
			[][]float64{{1, r(2.1), r(3.2)}, {r(3.2), 1, r(1.6)}, {r(1.2), r(1.2), 1}},
		},
		{"its own distance is not given", host([][]int{{0, 21}, {21, 10}}), [][]float64{{1, r(2.1)}, {r(2.1), 1}}},
		{"only own distances are given", host([][]int{{10, 0}, {0, 10}}), [][]float64{{1, r(2)}, {r(2), 1}}},
		{"no distance is given", host([][]int{{0, 0}, {0, 0}}), [][]float64{{1, r(2)}, {r(2), 1}}},
		{"nearer than local counts as local", host([][]int{{10, 5}, {5, 10}}), [][]float64{{1, 1}, {1, 1}}},
		{
			// The greatest distance, 60, must not replace the opposite direction.
			"memory-only node takes the way back", without(host([][]int{{10, 60, 50}, {60, 10, 40}, {255, 255, 10}}),
				"  c"),
			[][]float64{{1, r(6), r(5)}, {r(6), 1, r(4)}, {r(5), r(4), 1}},
		},
		{
			"memory-only nodes reach each other neither way", without(host([][]int{{10, 50, 60}, {255, 10, 255},
				{255, 255, 10}}), " cc"),
			[][]float64{{1, r(5), r(6)}, {r(5), 1, r(6)}, {r(6), r(6), 1}},
		},
	} {
		a := NewAccess(c.topo)
		wantMatrix(t, c.name, c.want, latencies(a))
		if a.Measured() {
			t.Errorf("%s: Measured is true", c.name)
		}
		if a.Bandwidth(0, 1) != 1 {
			t.Errorf("%s: bandwidth ratio %v without a measurement, want 1", c.name, a.Bandwidth(0, 1))
		}
	}
}

func TestAccess_Reachable(t *testing.T) {
	a := NewAccess(host([][]int{{10, 21, 255}, {32, 10, 0}, {255, 16, 10}}))
	for _, c := range []struct {
		i, j int
		want bool
	}{{0, 1, true}, {0, 2, false}, {1, 2, true}, {2, 0, false}} {
		if got := a.Reachable(c.i, c.j); got != c.want {
			t.Errorf("node %d reaches node %d: %v, want %v", c.i, c.j, got, c.want)
		}
	}
}

func measured(topo *topology.Topology, latency, bandwidth [][]float64) *topology.Topology {
	topo.Measured = &topology.Measured{LatencyNanos: latency, BandwidthMBps: bandwidth}
	for _, n := range topo.Nodes {
		topo.Measured.Nodes = append(topo.Measured.Nodes, n.ID)
	}
	return topo
}

func twoNodes() *topology.Topology   { return host([][]int{{10, 21}, {21, 10}}) }
func threeNodes() *topology.Topology { return host([][]int{{10, 21, 31}, {21, 10, 31}, {31, 31, 10}}) }

func TestAccess_MeasuredLatency(t *testing.T) {
	for _, c := range []struct {
		name    string
		topo    *topology.Topology
		latency [][]float64
		want    [][]float64 // nil: SLIT is used
	}{
		{"figures within 5 % are one level", twoNodes(), [][]float64{{80, 240}, {238, 82}}, [][]float64{{1, 238.0 / 80},
			{238.0 / 80, 1}}},
		{"figures 5 % apart are one level", twoNodes(), [][]float64{{100, 105}, {105, 100}},
			[][]float64{{1, 1}, {1, 1}}},
		{"figures 6 % apart are two", twoNodes(), [][]float64{{100, 106}, {106, 100}},
			[][]float64{{1, 1.06}, {1.06, 1}}},
		{"the greatest ratio is bounded", twoNodes(), [][]float64{{10, 1000}, {1000, 10}},
			[][]float64{{1, 25.4}, {25.4, 1}}},
		{"a figure is missing", twoNodes(), [][]float64{{80, 0}, {240, 80}}, nil},
		{
			"memory-only node takes the way back", without(threeNodes(), "  c"),
			[][]float64{{80, 160, 400}, {160, 80, 320}, {0, 0, 0}},
			[][]float64{{1, 2, 5}, {2, 1, 4}, {5, 4, 5}}, // its own memory: as the worst known
		},
		{
			"CPU-only node needs no column", without(threeNodes(), "  m"),
			[][]float64{{80, 160, 0}, {160, 80, 0}, {240, 400, 0}},
			[][]float64{{1, 2, 3}, {2, 1, 5}, {3, 5, 5}},
		},
		{"no node has CPUs", without(twoNodes(), "cc"), [][]float64{{0, 0}, {0, 0}}, [][]float64{{1, 1}, {1, 1}}},
	} {
		a := NewAccess(measured(c.topo, c.latency, nil))
		want := c.want
		if want == nil {
			c.topo.Measured = nil
			want = latencies(NewAccess(c.topo))
		}
		if a.Measured() != (c.want != nil) {
			t.Errorf("%s: Measured is %v", c.name, a.Measured())
		}
		wantMatrix(t, c.name, want, latencies(a))
	}
}

func TestAccess_MeasuredBandwidth(t *testing.T) {
	latency := [][]float64{{80, 160}, {160, 80}}
	a := NewAccess(measured(twoNodes(), latency, [][]float64{{100, 50}, {51, 99}}))
	wantMatrix(t, "best over own", [][]float64{{1, 99.0 / 50}, {99.0 / 50, 1}}, matrix(a, a.Bandwidth))
	a = NewAccess(measured(twoNodes(), latency, [][]float64{{100, 0}, {50, 100}}))
	wantMatrix(t, "a figure is missing", [][]float64{{1, 1}, {1, 1}}, matrix(a, a.Bandwidth))
}

// A guest sees the distance from a cell on node i to memory of node j, where 10 is its own memory.
func TestAccess_GuestDistance(t *testing.T) {
	slit := func() *topology.Topology { return host([][]int{{10, 10, 28}, {16, 10, 255}, {0, 20, 10}}) }
	latency := [][]float64{{80, 100, 240}, {100, 200, 160}, {160, 160, 80}}
	for _, c := range []struct {
		name       string
		topo       *topology.Topology
		pi, qi, qj int
		want       int
	}{
		{"as near as its own: the least that libvirt takes", slit(), 0, 0, 1, 11},
		{"SLIT", slit(), 0, 0, 2, 28},
		{"one way of an asymmetric pair", slit(), 1, 1, 0, 16},
		{"no path: the most that libvirt takes", slit(), 1, 1, 2, 254},
		{"not given", slit(), 2, 2, 0, 20},
		{"its own is not given", slit(), 2, 0, 1, 20},
		{"own memory on another node", slit(), 2, 1, 2, 11},
		{"measured", measured(slit(), latency, nil), 0, 0, 2, 30},
		{"measured over slow own memory", measured(slit(), latency, nil), 0, 1, 2, 24},
		{"measured, rounded", measured(slit(), latency, nil), 0, 0, 1, 13},
	} {
		if got := NewAccess(c.topo).GuestDistance(c.pi, c.qi, c.qj); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
