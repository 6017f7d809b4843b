package cost

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// host makes nodes with one CPU and memory each, and the given distances.
func host(slit [][]int) *topology.Topology {
	t := &topology.Topology{}
	for i, row := range slit {
		id := topology.NodeID(2 * i) // sparse
		n := topology.Node{ID: id, Memory: topology.GiB, CPUs: topology.SetOf(topology.CPUID(i)), Distances: map[topology.NodeID]int{}}
		for j, d := range row {
			if d > 0 {
				n.Distances[topology.NodeID(2*j)] = d
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

func damped(slitRatio float64) float64 { return math.Pow(slitRatio, 0.65) }

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestSLITIsDamped(t *testing.T) {
	a := NewAccess(host([][]int{{10, 21, 255}, {32, 10, 0}, {255, 16, 10}}))
	if a.Measured() {
		t.Error("nothing was measured")
	}
	for _, c := range []struct {
		i, j int
		want float64
	}{{0, 0, 1}, {0, 1, damped(2.1)}, {1, 0, damped(3.2)}, {0, 2, 0}, {1, 2, damped(3.2)}, {2, 1, damped(1.6)}} {
		if got := a.Latency(c.i, c.j); !near(got, c.want) {
			t.Errorf("latency %d to %d is %v, want %v", c.i, c.j, got, c.want)
		}
	}
	if a.Reachable(0, 2) || !a.Reachable(1, 2) {
		t.Error("255 is no path; a missing figure is the worst known")
	}
	if a.Bandwidth(0, 1) != 1 {
		t.Error("unmeasured bandwidth must not count")
	}
}

func TestMeasuredFigures(t *testing.T) {
	topo := host([][]int{{10, 21}, {21, 10}})
	topo.Measured = &topology.Measured{
		Nodes:         []topology.NodeID{0, 2},
		LatencyNanos:  [][]float64{{80, 240}, {238, 82}},
		BandwidthMBps: [][]float64{{100, 50}, {51, 99}},
	}
	a := NewAccess(topo)
	if !a.Measured() || a.Latency(0, 0) != 1 || a.Latency(1, 1) != 1 {
		t.Errorf("80 and 82 ns differ by noise only: %v and %v", a.Latency(0, 0), a.Latency(1, 1))
	}
	if a.Latency(0, 1) != a.Latency(1, 0) || !near(a.Latency(0, 1), 238.0/80) {
		t.Errorf("240 and 238 ns are one level: %v and %v", a.Latency(0, 1), a.Latency(1, 0))
	}
	if a.Bandwidth(0, 0) != 1 || a.Bandwidth(1, 1) != 1 || !near(a.Bandwidth(0, 1), 99.0/50) {
		t.Errorf("bandwidth %v %v", a.Bandwidth(1, 1), a.Bandwidth(0, 1))
	}
	topo.Measured.LatencyNanos[0][1] = 0
	if NewAccess(topo).Measured() {
		t.Error("a matrix with a hole must not be used")
	}
}

func TestMemoryOnlyNodes(t *testing.T) {
	topo := host([][]int{{10, 50}, {255, 10}})
	topo.Nodes[1].CPUs = topology.CPUSet{}
	a := NewAccess(topo)
	if !near(a.Latency(0, 1), damped(5)) || !near(a.Latency(1, 0), damped(5)) {
		t.Errorf("to CXL memory %v, from it %v (the way back)", a.Latency(0, 1), a.Latency(1, 0))
	}
}

func TestGuestDistances(t *testing.T) {
	topo := host([][]int{{10, 10, 28}, {16, 10, 255}, {28, 20, 10}})
	a := NewAccess(topo)
	for _, c := range []struct{ i, j, want int }{{0, 1, 11}, {1, 0, 16}, {0, 2, 28}, {1, 2, 254}} {
		if got := a.GuestDistance(c.i, c.i, c.j); got != c.want {
			t.Errorf("guest is told %d for %d to %d, want %d", got, c.i, c.j, c.want)
		}
	}
	topo.Measured = &topology.Measured{Nodes: []topology.NodeID{0, 2, 4}, LatencyNanos: [][]float64{{80, 100, 160}, {100, 80, 160}, {160, 160, 80}}}
	if got := NewAccess(topo).GuestDistance(0, 0, 2); got != 20 {
		t.Errorf("160 ns against 80 is told as %d", got)
	}
}

func TestLoadGrowsAndWaits(t *testing.T) {
	spread, pack := NewList(policy.Policy{}), NewList(policy.Policy{Prefer: policy.PreferPack})
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Float64Range(0, 4).Draw(t, "a")
		b := rapid.Float64Range(a, 4).Draw(t, "b")
		if spread.CPULoad(a) > spread.CPULoad(b) || spread.MemoryLoad(a) > spread.MemoryLoad(b) {
			t.Fatalf("spread pays less for %v than for %v", b, a)
		}
		if b <= 1 && (pack.CPULoad(a) < pack.CPULoad(b) || pack.MemoryLoad(a) < pack.MemoryLoad(b)) {
			t.Fatalf("pack pays more for %v than for %v", b, a)
		}
		if a > 1 && pack.CPULoad(a) != spread.CPULoad(a) {
			t.Fatal("overcommit costs the same either way")
		}
	})
}

func TestStrandingAndRest(t *testing.T) {
	for _, c := range []struct {
		before, after   Use
		stranding, rest float64
	}{
		{Use{0, 0}, Use{0.5, 0.5}, 0, 0.5},
		{Use{0, 0}, Use{1, 0.25}, 0.75, 0},
		{Use{0.5, 0}, Use{0.5, 0.5}, -0.5, 0},
		{Use{0.5, 0.5}, Use{3, 0.5}, 0.5, 0},
	} {
		if got := StrandingGrowth(c.before, c.after); !near(got, c.stranding) {
			t.Errorf("%+v to %+v: stranding grows by %v, want %v", c.before, c.after, got, c.stranding)
		}
		if got := RestOfEmpty(c.before, c.after); !near(got, c.rest) {
			t.Errorf("%+v to %+v: rest %v, want %v", c.before, c.after, got, c.rest)
		}
	}
}

func TestMicro(t *testing.T) {
	for figure, want := range map[float64]Micro{
		0: 0, 1: One, -0.5: -One / 2, 0.0000004: 0, 1e9: 1000 * One, -1e9: -1000 * One,
	} {
		if got := Of(figure); got != want {
			t.Errorf("Of(%v) = %d, want %d", figure, got, want)
		}
	}
	if Of(math.NaN()) != 1000*One || Of(math.Inf(1)) != 1000*One {
		t.Error("what is no number must be unbearable")
	}
}

func TestTerms(t *testing.T) {
	w := policy.Weights{Latency: 1, Bandwidth: 2, Load: 3, Stranding: 4, WideRoom: 5, Devices: 6, Cache: 7, Growth: 8}
	l := NewList(policy.Policy{Weights: &w})
	var sum Terms
	for i := range NumTerms {
		if l.Weight(i) != float64(i+1) || i.String() == "" || i.Unit() == "" {
			t.Errorf("term %d %q: weight %v", i, i, l.Weight(i))
		}
		sum[i] = l.Price(i, 1)
	}
	if sum.Sum() != 36*One || sum.Add(sum).Sum() != 72*One {
		t.Errorf("sum %v", sum.Sum())
	}
}
