package order_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/topology"
)

func drawCopies(t *rapid.T) []order.Copy {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) order.Copy {
		return order.Copy{
			Bytes: topology.Bytes(rapid.IntRange(0, 4).Draw(t, "bytes")),
			Loses: float64(rapid.IntRange(0, 8).Draw(t, "loses")) / 4,
		}
	}), 1, 4).Draw(t, "copies")
}

// lost is the work lost until all copies are complete. slices names the copy of
// each byte in turn; a byte takes one second.
func lost(copies []order.Copy, slices []int) float64 {
	left := make([]topology.Bytes, len(copies))
	for i, c := range copies {
		left[i] = c.Bytes
	}
	sum := 0.0
	for _, now := range slices {
		for i, c := range copies {
			if left[i] > 0 {
				sum += c.Loses
			}
		}
		left[now]--
	}
	return sum
}

// least is the least work lost by any interleaving of the copies, byte by byte.
func least(copies []order.Copy) float64 {
	known := map[[4]topology.Bytes]float64{}
	var from func(left [4]topology.Bytes) float64
	from = func(left [4]topology.Bytes) float64 {
		if best, ok := known[left]; ok {
			return best
		}
		second, best := 0.0, math.Inf(1)
		for i, c := range copies {
			if left[i] > 0 {
				second += c.Loses
			}
		}
		for i := range copies {
			if left[i] > 0 {
				next := left
				next[i]--
				best = min(best, second+from(next))
			}
		}
		if math.IsInf(best, 1) {
			best = 0
		}
		known[left] = best
		return best
	}
	var left [4]topology.Bytes
	for i, c := range copies {
		left[i] = c.Bytes
	}
	return from(left)
}

// No order, and no way to copy in turns, loses less than the order.
func TestOf_LosesLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies := drawCopies(t)
		order := order.Of(copies)
		if sorted := slices.Sorted(slices.Values(order)); len(order) != len(copies) ||
			!slices.Equal(sorted, []int{0, 1, 2, 3}[:len(copies)]) {
			t.Fatalf("%v is no order of %d copies", order, len(copies))
		}
		var all []int
		for _, i := range order {
			all = append(all, slices.Repeat([]int{i}, int(copies[i].Bytes))...)
		}
		if got, want := lost(copies, all), least(copies); got > want+1e-9 {
			t.Errorf("%+v in order %v: %v lost, %v is possible", copies, order, got, want)
		}
	})
}

func TestOf_ByLossOverTime(t *testing.T) {
	const gib = topology.GiB
	for _, c := range []struct {
		name   string
		copies []order.Copy
		want   []int
	}{
		{"what copies nothing comes first, even if its loss is unknown",
			[]order.Copy{{Bytes: gib, Loses: 4}, {}}, []int{1, 0}},
		{"equal sizes: the one that loses most", []order.Copy{{Bytes: gib, Loses: 1}, {Bytes: gib, Loses: 2}},
			[]int{1, 0}},
		{"equal losses: the smallest", []order.Copy{{Bytes: 2 * gib, Loses: 1}, {Bytes: gib, Loses: 1}},
			[]int{1, 0}},
		{"a big one that loses much", []order.Copy{{Bytes: gib, Loses: 1}, {Bytes: 8 * gib, Loses: 9}},
			[]int{1, 0}},
		{"unknown losses come last", []order.Copy{{Bytes: gib}, {Bytes: 8 * gib, Loses: 0.1}}, []int{1, 0}},
		{"all unknown: the smallest", []order.Copy{{Bytes: 3}, {Bytes: 2}, {Bytes: 2}}, []int{1, 2, 0}},
	} {
		if got := order.Of(c.copies); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// slowness is the sum of the mean latency after each copied byte, if the vCPUs
// switch once a number of bytes is copied.
func slowness(c order.Copy, at topology.Bytes) float64 {
	sum, total := 0.0, float64(c.There+c.Bytes)
	for copied := range c.Bytes {
		arrived := float64(c.There+copied) / total
		if copied < at {
			sum += (1-arrived)*c.Latency.HereToOld + arrived*c.Latency.HereToNew
		} else {
			sum += (1-arrived)*c.Latency.TargetToOld + arrived*c.Latency.TargetToNew
		}
	}
	return sum
}

// No other moment to switch gives faster accesses during the copy: the bytes
// just before and after the moment differ only by rounding.
func TestSwitchAt_IsTheBestMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		latency := func(what string) float64 { return float64(rapid.IntRange(10, 40).Draw(t, what)) }
		c := order.Copy{
			Bytes: topology.Bytes(rapid.IntRange(1, 200).Draw(t, "bytes")),
			There: topology.Bytes(rapid.IntRange(0, 200).Draw(t, "there")),
		}
		c.Latency = order.Latency{HereToOld: latency("here to old"), HereToNew: latency("here to new"),
			TargetToOld: latency("target to old")}
		c.Latency.TargetToNew = float64(rapid.IntRange(10, int(c.Latency.HereToNew)).Draw(t, "target to new"))
		at := c.SwitchAt()
		if at > c.Bytes {
			t.Fatalf("switches after %d of %d bytes", at, c.Bytes)
		}
		rounding := 30 / float64(c.There+c.Bytes) * 60 // of one byte's share of the greatest difference
		got := slowness(c, at)
		for other := range c.Bytes + 1 {
			if best := slowness(c, other); best < got-rounding {
				t.Fatalf("%+v switches after %d bytes: %v, after %d: %v", c, at, got, other, best)
			}
		}
	})
}

func TestSwitchAt(t *testing.T) {
	even := order.Latency{HereToOld: 10, HereToNew: 20, TargetToOld: 20, TargetToNew: 10}
	for name, c := range map[string]struct {
		copy order.Copy
		want topology.Bytes
	}{
		"half of the memory":                    {order.Copy{Bytes: 100, Latency: even}, 50},
		"less to copy if some is there":         {order.Copy{Bytes: 80, There: 20, Latency: even}, 30},
		"at once if half is there":              {order.Copy{Bytes: 50, There: 50, Latency: even}, 0},
		"at once if they are far away as it is": {order.Copy{Bytes: 100, Latency: order.Latency{20, 20, 20, 10}}, 0},
		"later if the way is longer":            {order.Copy{Bytes: 100, Latency: order.Latency{10, 20, 40, 10}}, 75},
		"at the end if nothing is nearer there": {order.Copy{Bytes: 100, Latency: order.Latency{10, 10, 20, 10}}, 100},
	} {
		if got := c.copy.SwitchAt(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
