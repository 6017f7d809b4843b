package cost

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// host creates nodes with one CPU and memory each, and the given distances.
func host(slit [][]int) *topology.Topology {
	t := &topology.Topology{}
	for i, row := range slit {
		id := topology.NodeID(2 * i) // sparse
		n := topology.Node{
			ID:        id,
			Memory:    topology.GiB,
			CPUs:      topology.SetOf(topology.CPUID(i)),
			Distances: map[topology.NodeID]int{},
		}
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

func TestList_LoadGrowsAndOvercommitWaits(t *testing.T) {
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

func TestUse_StrandingGrowth(t *testing.T) {
	for _, c := range []struct {
		before, after Use
		stranding     float64
	}{
		{Use{0, 0}, Use{0.5, 0.5}, 0},
		{Use{0, 0}, Use{1, 0.25}, 0.75},
		{Use{0.5, 0}, Use{0.5, 0.5}, -0.5},
		{Use{0.5, 0.5}, Use{3, 0.5}, 0.5},
	} {
		if got := StrandingGrowth(c.before, c.after); !near(got, c.stranding) {
			t.Errorf("%+v to %+v: stranding grows by %v, want %v", c.before, c.after, got, c.stranding)
		}
	}
}

func TestMicro_Of(t *testing.T) {
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

func TestList_WeightsEachTerm(t *testing.T) {
	w := policy.Weights{Latency: 1, Bandwidth: 2, Load: 3, Stranding: 4, WideRoom: 5, Devices: 6, Cache: 7, Growth: 8}
	l := NewList(policy.Policy{Weights: &w})
	var sum Terms
	for i := range NumTerms {
		if l.Weight(i) != float64(i+1) || i.String() == "" || i.Unit() == "" {
			t.Errorf("term %d %q: weight %v", i, i, l.Weight(i))
		}
		sum[i] = l.Price(i, 1)
	}
	if got := sum.Sum(); got != 36*One {
		t.Errorf("sum %v, want 36", got.Float())
	}
	if got := sum.Add(sum).Sum(); got != 72*One {
		t.Errorf("sum of twice the terms %v, want 72", got.Float())
	}
	if got := l.Price(Load, 0.25).Float(); got != 0.75 {
		t.Errorf("price of a load of 0.25 with weight 3: %v, want 0.75", got)
	}
}

func TestList_CPULoad(t *testing.T) {
	spread, pack := NewList(policy.Policy{}), NewList(policy.Policy{Prefer: policy.PreferPack})
	for _, c := range []struct{ use, spread, pack float64 }{
		{0, 0, 1}, {0.25, 0.25, 0.75}, {1, 1, 0}, {1.5, 2.25, 2.25}, {2, 4, 4},
	} {
		if got := spread.CPULoad(c.use); got != c.spread {
			t.Errorf("spread: load of use %v is %v, want %v", c.use, got, c.spread)
		}
		if got := pack.CPULoad(c.use); got != c.pack {
			t.Errorf("pack: load of use %v is %v, want %v", c.use, got, c.pack)
		}
	}
}

func TestMove_Prices(t *testing.T) {
	for _, c := range []struct {
		name string
		got  Micro
		want float64
	}{
		{"copying all", Copying(1), 0.5},
		{"copying a quarter", Copying(0.25), 0.125},
	} {
		if got := c.got.Float(); !near(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := Contention(0.5); got != 0.25 {
		t.Errorf("contention of half the bandwidth: %v, want 0.25", got)
	}
}

func TestIntensity(t *testing.T) {
	for _, c := range []struct {
		name             string
		mbps, cpus, want float64
	}{
		{"traffic not known", 0, 2, 1},
		{"CPU time not known", 100, 0, 1},
		{"a tenth of what makes a CPU memory-bound", 100, 2, 0.1},
		{"memory-bound", 1000, 2, 1},
		{"more than memory-bound", 5000, 2, 1},
	} {
		if got := Intensity(c.mbps, c.cpus); !near(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
