package inventory_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// A quantile of the counts is the least bound that is not under the exact quantile.
func TestHandoverTimesQuantile(t *testing.T) {
	bounds := inventory.HandoverBounds()
	if !slices.IsSorted(bounds) {
		t.Fatalf("bounds %v", bounds)
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 40))
		var h inventory.HandoverTimes
		var all []time.Duration
		var sum time.Duration
		for range 1 + r.IntN(50) {
			d := time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))
			all, sum = append(all, d), sum+d
			h.Add(d)
		}
		slices.Sort(all)
		if h.Count() != uint64(len(all)) || h.Sum != sum {
			t.Fatalf("seed %d: %d times of %v, want %d of %v", seed, h.Count(), h.Sum, len(all), sum)
		}
		for _, q := range []float64{0.5, 0.99, 1} {
			at := 0
			for float64(at+1) < q*float64(len(all)) {
				at++
			}
			want := slices.IndexFunc(bounds, func(b time.Duration) bool { return b >= all[at] })
			got, ok := h.Quantile(q)
			if ok != (want >= 0) || ok && got != bounds[want] {
				t.Fatalf("seed %d: quantile %v of %v is %v, %v", seed, q, all, got, ok)
			}
		}
	}
}

func TestHandoverTimesAtTheEnds(t *testing.T) {
	var h inventory.HandoverTimes
	if _, ok := h.Quantile(0.5); ok || h.Count() != 0 {
		t.Error("no times have a quantile")
	}
	h.Add(-time.Second)
	if got, ok := h.Quantile(1); !ok || got != time.Millisecond || h.Sum != 0 {
		t.Errorf("a negative time: %v, %v, sum %v", got, ok, h.Sum)
	}
	h.Add(time.Minute)
	if got, ok := h.Quantile(1); ok {
		t.Errorf("a minute is under %v", got)
	}
	c := h.Clone()
	c.Add(0)
	if h.Count() != 2 {
		t.Error("a copy shares its counts")
	}
	hostile := inventory.HandoverTimes{Counts: make([]uint64, 100)}
	hostile.Counts[99] = 1
	if _, ok := hostile.Quantile(0.5); ok {
		t.Error("a count beyond the bounds has a bound")
	}
}
