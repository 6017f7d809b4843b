package throttle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// model is a guest whose vCPUs wait longer in proportion to the rate, on a host
// that copies no faster than most.
type model struct {
	bears  topology.Bytes // rate at which its additional wait equals the limit
	most   topology.Bytes
	before float64
	bound  float64
}

func drawModel(t *rapid.T) model {
	return model{
		bears:  topology.Bytes(rapid.IntRange(20, 20_000).Draw(t, "MiB/s that the guest bears")) * topology.MiB,
		most:   topology.Bytes(rapid.IntRange(10, 20_000).Draw(t, "MiB/s that the host copies")) * topology.MiB,
		before: rapid.Float64Range(0, 0.5).Draw(t, "wait before"),
		bound:  rapid.Float64Range(0.005, 0.3).Draw(t, "bound"),
	}
}

// copies copies a slice at a rate.
func (m model) copies(rate topology.Bytes) Slice {
	s := Slice{Bytes: Size(rate), Before: m.before}
	took := time.Duration(float64(s.Bytes) / float64(m.most) * float64(time.Second))
	s.Took = took + Pause(rate, s.Bytes, took)
	reached := float64(s.Bytes) / s.Took.Seconds()
	s.Wait = m.before + m.bound*reached/float64(m.bears)
	return s
}

// For a guest that tolerates at least the minimum rate, the average additional wait
// of its vCPUs stays below the limit. Copying is not slowed needlessly: it uses more
// than a third of the tolerated rate.
func TestNext_ConvergesBelowTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		b := Bounds{MostWait: m.bound}
		rate := First(b)
		for range 200 { // from the first rate to near the tolerated one
			rate = Next(b, rate, m.copies(rate))
		}
		var time, extra, bytes float64
		for range 300 {
			s := m.copies(rate)
			rate = Next(b, rate, s)
			time += s.Took.Seconds()
			extra += (s.Wait - s.Before) * s.Took.Seconds()
			bytes += float64(s.Bytes)
		}
		if mean := extra / time; mean > 1.0001*m.bound { // sums of fractions
			t.Errorf("vCPUs wait %.4f longer on average, the bound is %.4f", mean, m.bound)
		}
		if mean, want := bytes/time, float64(min(m.bears, m.most))/3; mean < want {
			t.Errorf("copies %v a second, the guest bears %v and the host gives %v", topology.Bytes(mean), m.bears,
				m.most)
		}
	})
}

// For any measurements: the rate is never so low that copying would not end, and
// never above the cap.
func TestNext_StaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bounds{
			MostWait: rapid.Float64Range(0, 1).Draw(t, "most wait"),
			Cap:      topology.Bytes(rapid.IntRange(0, 1<<34).Draw(t, "cap")),
		}
		rate := First(b)
		for range rapid.IntRange(0, 60).Draw(t, "slices") {
			if low := Least; b.Cap > 0 && b.Cap < low {
				low = b.Cap
				if rate != low {
					t.Fatalf("rate %v with a cap of %v", rate, b.Cap)
				}
			} else if rate < low {
				t.Fatalf("rate %v, below the least", rate)
			}
			if b.Cap > 0 && rate > b.Cap {
				t.Fatalf("rate %v above the cap of %v", rate, b.Cap)
			}
			size := Size(rate)
			if size < leastSlice || size > greatestSlice {
				t.Fatalf("a slice of %v", size)
			}
			took := time.Duration(rapid.IntRange(0, 1<<32).Draw(t, "took"))
			if pause := Pause(rate, size, took); pause < 0 ||
				float64(size)/(took+pause).Seconds() > 1.001*float64(rate) {
				t.Fatalf("%v in %v and a pause of %v is above %v a second", size, took, pause, rate)
			}
			rate = Next(
				b,
				rate,
				Slice{
					Bytes:  size,
					Took:   took,
					Wait:   rapid.Float64Range(0, 1).Draw(t, "wait"),
					Before: rapid.Float64Range(0, 1).Draw(t, "before"),
				},
			)
		}
	})
}

// A guest that slows at every rate is copied at the minimum. A guest that never
// slows is copied as fast as the host can.
func TestNext_AtTheExtremes(t *testing.T) {
	b := Bounds{MostWait: 0.05}
	rate := First(b)
	for range 50 {
		rate = Next(b, rate, Slice{Bytes: Size(rate), Took: time.Second, Wait: 0.9})
	}
	if rate != Least {
		t.Errorf("rate %v", rate)
	}
	for range 200 {
		s := Slice{Bytes: Size(rate), Took: time.Duration(float64(Size(rate)) / float64(rate) * float64(time.Second))}
		rate = Next(b, rate, s)
	}
	if rate < 8*topology.GiB {
		t.Errorf("undisturbed, it copies %v a second only", rate)
	}
}

func TestOf_BoundsOfAPolicy(t *testing.T) {
	const gib = topology.GiB
	for _, c := range []struct {
		name            string
		policy          policy.Balance
		bandwidth, used topology.Bytes
		want            Bounds
	}{
		{"defaults, bandwidth not known", policy.Balance{}, 0, 0, Bounds{MostWait: 0.05}},
		{"a quarter of the bandwidth", policy.Balance{}, 8 * gib, 0, Bounds{MostWait: 0.05, Cap: 2 * gib}},
		{"what others leave", policy.Balance{}, 8 * gib, 7 * gib, Bounds{MostWait: 0.05, Cap: gib}},
		{"others take all", policy.Balance{}, 8 * gib, 9 * gib, Bounds{MostWait: 0.05, Cap: Least}},
		{"a cap of the operator's", policy.Balance{Pace: gib, MaxGuestWait: 0.2}, 8 * gib, 0,
			Bounds{MostWait: 0.2, Cap: gib}},
		{"a cap above the part", policy.Balance{Pace: 4 * gib, MaxBandwidth: 0.125}, 8 * gib, 0,
			Bounds{MostWait: 0.05, Cap: gib}},
	} {
		if diff := cmp.Diff(c.want, Of(c.policy, c.bandwidth, c.used)); diff != "" {
			t.Errorf("%s: bounds (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestNext_OneSlice(t *testing.T) {
	const mib = topology.MiB
	second := func(bytes topology.Bytes, before, wait float64) Slice {
		return Slice{Bytes: bytes, Took: time.Second, Before: before, Wait: wait}
	}
	bounds := Bounds{MostWait: 0.125} // these fractions are exact in binary
	for _, c := range []struct {
		name   string
		bounds Bounds
		rate   topology.Bytes
		slice  Slice
		want   topology.Bytes
	}{
		{"wait at the bound: rise by a quarter", bounds, 400 * mib, second(400*mib, 0.25, 0.375), 500 * mib},
		{"wait beyond the bound: half", bounds, 400 * mib, second(400*mib, 0.25, 0.5), 200 * mib},
		{"a fast copy rises by a step", bounds, 1000 * mib, second(1000*mib, 0, 0), 1128 * mib},
		{"0.7 of the rate is not reached", bounds, 1000 * mib, second(700*mib, 0, 0), 1000 * mib},
		{"more than 0.7 of the rate is reached", bounds, 1000 * mib, second(701*mib, 0, 0), 1128 * mib},
		{"nothing copied", bounds, 400 * mib, second(0, 0, 0), 400 * mib},
		{"no time passed", bounds, 400 * mib, Slice{Bytes: 400 * mib}, 400 * mib},
		{"capped", Bounds{MostWait: 0.125, Cap: 450 * mib}, 400 * mib, second(400*mib, 0, 0), 450 * mib},
		{"never below the least", bounds, Least + mib, second(Least, 0, 0.9), Least},
	} {
		if got := Next(c.bounds, c.rate, c.slice); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSize_HalfASecondWithinBounds(t *testing.T) {
	const mib = topology.MiB
	for rate, want := range map[topology.Bytes]topology.Bytes{
		16 * mib: 64 * mib, 128 * mib: 64 * mib, 200 * mib: 100 * mib, 512 * mib: 256 * mib, 4096 * mib: 256 * mib,
	} {
		if got := Size(rate); got != want {
			t.Errorf("at %v a second: %v, want %v", rate, got, want)
		}
	}
}
