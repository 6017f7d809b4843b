package history

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// sampleAt is of one node and one guest.
func sampleAt(at time.Time, window time.Duration, cpu float64) inventory.Sample {
	return inventory.Sample{Taken: at, Window: window,
		Nodes: []inventory.NodeSample{
			{
				NodeLoad: inventory.NodeLoad{Node: 3, CPU: 2 * cpu, Wait: cpu},
				Memory:   topology.GiB,
				Free:     topology.GiB / 4,
			},
		},
		Guests: []inventory.GuestSample{{Name: "web", Load: inventory.GuestLoad{Window: window, CPU: cpu},
			MemoryByNode: topology.MemoryByNode{3: topology.GiB}}}}
}

func remote(share float64, source inventory.AccessSource) *inventory.Remote {
	return &inventory.Remote{Share: share, Source: source}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-4*max(1, math.Abs(b)) }

func TestMeansWeighByWindow(t *testing.T) {
	h := New(Options{})
	h.Add(sampleAt(start, 0, 99)) // no window: no rates
	if _, ok := h.Load("web", time.Minute); ok {
		t.Error("a sample without a window counts")
	}
	h.Add(sampleAt(start.Add(1*time.Second), 1*time.Second, 8))
	h.Add(sampleAt(start.Add(4*time.Second), 3*time.Second, 4))
	for over, want := range map[time.Duration]float64{
		10 * time.Second:        5,
		3500 * time.Millisecond: (3*4 + 0.5*8) / 3.5, // half of the first sample is in it
		2 * time.Second:         4,
	} {
		l, ok := h.Load("web", over)
		if !ok || !near(l.CPU, want) {
			t.Errorf("over %v: %+v, want %v CPUs", over, l, want)
		}
		if n := h.NodeLoads(over); len(n) != 1 || n[0].Node != 3 || !near(n[0].CPU, 2*want) || !near(n[0].Wait, want) {
			t.Errorf("over %v: nodes %+v", over, n)
		}
	}
	if l, _ := h.Load("web", 10*time.Second); l.Window != 4*time.Second {
		t.Errorf("4 s were measured, not %v", l.Window)
	}
	if _, ok := h.Load("unknown", time.Minute); ok {
		t.Error("an unknown guest has a load")
	}
}

// Once a guest begins to work, its accesses from then on determine the share, not
// the few accesses before.
func TestLoad_SharesAreWeightedByCPUs(t *testing.T) {
	h := New(Options{})
	for i, share := range []float64{0, 0, 0, 0, 0.99} {
		s := sampleAt(start.Add(time.Duration(i)*time.Second), time.Second, 0)
		s.Guests[0].Load.Remote = remote(share, inventory.AccessCounter)
		if share > 0 {
			s.Guests[0].Load.CPU = 1
		}
		h.Add(s)
	}
	if l, _ := h.Load("web", 10*time.Second); l.Remote == nil || l.Remote.Share < 0.98 {
		t.Errorf("%+v, want almost 0.99", l.Remote)
	}
}

// Joined samples have the same weight as separate ones.
func TestLoad_SharesOfJoinedSamplesAreWeightedByCPUs(t *testing.T) {
	for name, o := range map[string]Options{"separate samples": {}, "joined samples": {Resolution: 4 * time.Second},
		"old samples as means": {Fine: time.Second}} {
		h := New(o)
		for i, cpu := range []float64{1, 0, 0, 0, 0, 0, 0, 0} {
			s := sampleAt(start.Add(time.Duration(1+i)*time.Second), time.Second, cpu)
			s.Guests[0].Load.Remote = remote(1-cpu, inventory.AccessCounter)
			h.Add(s)
		}
		if l, _ := h.Load("web", time.Minute); l.Remote == nil || l.Remote.Share > 0.01 {
			t.Errorf("%s: %+v, want almost 0: nearly all its accesses were local", name, l.Remote)
		}
	}
}

func TestTheLatestSourceCounts(t *testing.T) {
	h := New(Options{})
	for i, r := range []*inventory.Remote{
		remote(0.9, inventory.AccessEstimate), remote(0.2, inventory.AccessPMU), nil, remote(0.4,
			inventory.AccessPMU), nil,
	} {
		s := sampleAt(start.Add(time.Duration(i)*time.Second), time.Second, 1)
		s.Guests[0].Load.Remote = r
		h.Add(s)
	}
	l, _ := h.Load("web", time.Minute)
	if l.Remote == nil || l.Remote.Source != inventory.AccessPMU || !near(l.Remote.Share, 0.3) {
		t.Errorf("%+v, want 0.3 of pmu", l.Remote)
	}
	// The same where the samples were joined into means.
	h.Add(sampleAt(start.Add(30*time.Minute), time.Second, 1))
	s := h.Guest("web")
	if s.Sources[0] != inventory.AccessPMU || s.Remote[0] > 0.41 || !near(float64(s.Remote[0]+s.Local[0]), 1) {
		t.Errorf("%v of %v in the first mean", s.Remote, s.Sources)
	}
}

func TestSeries_OldSamplesAreMeans(t *testing.T) {
	h := New(Options{})
	for i := range 7200 {
		h.Add(sampleAt(start.Add(time.Duration(i)*time.Second), time.Second, float64(i)))
	}
	s := h.Guest("web")
	if n := len(s.Times); n < 300+330 || n > 300+331 {
		t.Errorf("%d points for an hour", n)
	}
	if s.Times[len(s.Times)-300].Sub(start) != 6900*time.Second || s.Window[len(s.Times)-300] != 1 {
		t.Error("the last 5 minutes are not separate samples")
	}
	if s.Window[5] != 10 || !near(float64(s.CPU[5]), s.Times[5].Sub(start).Seconds()-4.5) {
		t.Errorf("a mean of %v s ending %v is %v", s.Window[5], s.Times[5], s.CPU[5])
	}
	if slope, ok := s.Trend(s.CPU); !ok || !near(slope, 3600) {
		t.Errorf("a trend of one CPU a second is %v an hour", slope)
	}
	if l, _ := h.Load("web", time.Hour); !near(l.CPU, 7199-1799.5) || l.Window != time.Hour {
		t.Errorf("mean of the hour: %+v", l)
	}
	if n := h.Node(3); len(n.Times) != len(s.Times) || float64(n.Memory[3][0]) != 0.75*float64(topology.GiB) ||
		n.Remote != nil {
		t.Errorf("node: %d points, memory %v", len(n.Times), n.Memory[3][0])
	}
}

func TestShortSamplesAreJoined(t *testing.T) {
	h := New(Options{})
	for i := range 10_000 {
		h.Add(sampleAt(start.Add(time.Duration(i)*10*time.Millisecond), 10*time.Millisecond, float64(i%2)))
	}
	s := h.Guest("web")
	if n := len(s.Times); n < 95 || n > 115 {
		t.Errorf("%d points for 100 s", n)
	}
	if l, _ := h.Load("web", 10*time.Second); math.Abs(l.CPU-0.5) > 0.01 {
		t.Errorf("mean %v", l.CPU)
	}
}

func TestASuspendedDaemonLeavesAGap(t *testing.T) {
	h := New(Options{})
	h.Add(sampleAt(start, time.Second, 1))
	h.Add(sampleAt(start.Add(20*time.Minute), time.Second, 3)) // no sample in between
	if l, _ := h.Load("web", 10*time.Second); l.CPU != 3 || l.Window != time.Second {
		t.Errorf("after the gap: %+v", l)
	}
	if l, _ := h.Load("web", time.Hour); l.CPU != 2 || l.Window != 2*time.Second {
		t.Errorf("across the gap: %+v", l)
	}
	h.Add(sampleAt(start.Add(3*time.Hour), time.Second, 5))
	if s := h.Guest("web"); len(s.Times) != 1 {
		t.Errorf("older than an hour is stored: %v", s.Times)
	}
}

func TestAClockSetBackKeepsAges(t *testing.T) {
	h := New(Options{})
	for i := range 600 {
		h.Add(sampleAt(start.Add(time.Duration(i)*time.Second), time.Second, 2))
	}
	back := start.Add(-24 * time.Hour)
	h.Add(sampleAt(back, time.Second, 12))
	if l, _ := h.Load("web", 10*time.Second); !near(l.CPU, 3) || l.Window != 10*time.Second {
		t.Errorf("%+v, want the mean of nine at 2 and one at 12", l)
	}
	s := h.Guest("web")
	if !slices.IsSortedFunc(s.Times, time.Time.Compare) || s.Times[0].Before(back.Add(-601*time.Second)) {
		t.Errorf("times are from %v to %v", s.Times[0], s.Times[len(s.Times)-1])
	}
	h.Add(sampleAt(back, time.Second, 12)) // an identical time is also accepted
	if l, _ := h.Load("web", 2*time.Second); l.CPU != 12 || l.Window != 2*time.Second {
		t.Errorf("%+v", l)
	}
}

func TestMemoryFollowsTheGuest(t *testing.T) {
	h := New(Options{})
	for i, on := range []topology.MemoryByNode{{3: 8}, {3: 6, 70: 2}, {70: 8}, nil} {
		s := sampleAt(start.Add(time.Duration(i)*2*time.Second), 2*time.Second, 1)
		s.Guests[0].MemoryByNode = on
		h.Add(s)
	}
	data, err := json.Marshal(h.Guest("web"))
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Remote []*float64
		Memory map[string][]float64 `json:"memory_by_node"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if !slices.Equal(read.Memory["3"], []float64{8, 6, 0, 0}) ||
		!slices.Equal(read.Memory["70"], []float64{0, 2, 8, 0}) {
		t.Errorf("memory %v", read.Memory)
	}
	if len(read.Remote) != 4 || read.Remote[0] != nil {
		t.Errorf("remote %v: not measured is null", read.Remote)
	}
}

func TestTrend_NeedsAMinute(t *testing.T) {
	h := New(Options{})
	for i := range 30 {
		h.Add(sampleAt(start.Add(time.Duration(i)*time.Second), time.Second, 1))
	}
	s := h.Guest("web")
	if _, ok := s.Trend(s.CPU); ok {
		t.Error("half a minute has a trend")
	}
	if _, ok := s.Trend(s.Remote); ok {
		t.Error("an unmeasured column has a trend")
	}
}

// The reference implementation stores every sample.
func TestLoadsAreThoseOfAllSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(Options{Resolution: time.Nanosecond})
		var all []inventory.Sample
		now := start
		for range rapid.IntRange(1, 60).Draw(t, "samples") {
			window := time.Duration(rapid.IntRange(1, 4000).Draw(t, "window")) * time.Millisecond
			now = now.Add(window + time.Duration(rapid.IntRange(0, 2).Draw(t, "gap"))*time.Second)
			s := sampleAt(now, window, rapid.Float64Range(0, 64).Draw(t, "cpu"))
			if rapid.Bool().Draw(t, "gone") {
				s.Guests = nil
			}
			h.Add(s)
			all = append(all, s)
		}
		over := time.Duration(rapid.IntRange(1, 250_000).Draw(t, "over")) * time.Millisecond
		var total, weight float64
		for _, s := range all {
			reach := s.Taken.Sub(now.Add(-over)).Seconds()
			if w := min(s.Window.Seconds(), reach); w > 0 && len(s.Guests) > 0 {
				total, weight = total+w*s.Guests[0].Load.CPU, weight+w
			}
		}
		l, ok := h.Load("web", over)
		if ok != (weight > 0) || ok && (!near(l.CPU, total/weight) || !near(l.Window.Seconds(), weight)) {
			t.Fatalf("%+v %v, want %v CPUs over %v s", l, ok, total/weight, weight)
		}
	})
}

// For every sequence of samples the limit holds, and the count of bytes is
// correct.
func TestTheBoundHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20_000).Draw(t, "limit")
		h := New(Options{Bytes: limit, Fine: 20 * time.Second})
		now := start
		for range rapid.IntRange(1, 80).Draw(t, "samples") {
			step := time.Duration(rapid.IntRange(-5000, 8000).Draw(t, "step")) * time.Millisecond
			now = now.Add(step)
			s := sampleAt(now, max(step, time.Millisecond), 1)
			s.Guests = nil
			for range rapid.IntRange(0, 5).Draw(t, "guests") {
				s.Guests = append(s.Guests, inventory.GuestSample{Name: rapid.StringMatching("[a-f]").Draw(t, "name"),
					Load:         inventory.GuestLoad{Window: s.Window, CPU: 1},
					MemoryByNode: topology.MemoryByNode{topology.NodeID(rapid.IntRange(0, 9).Draw(t, "node")): 5}})
			}
			h.Add(s)
			if h.bytes > limit && len(h.fine)+len(h.coarse) > 1 {
				t.Fatalf("%d bytes in %d frames, %d are allowed", h.bytes, len(h.fine)+len(h.coarse), limit)
			}
		}
		bytes, before := 0, int64(math.MinInt64)
		users := map[*shape]int{}
		h.all(func(f *frame) {
			if bytes += f.bytes(); users[f.shape] == 0 {
				bytes += f.shape.bytes()
			}
			users[f.shape]++
			if f.end < before {
				t.Fatal("times decrease")
			}
			before = f.end
		})
		for s, n := range users {
			if s.users != n {
				t.Fatalf("a shape of %d frames counts %d", n, s.users)
			}
		}
		if bytes != h.bytes {
			t.Fatalf("%d bytes are counted, there are %d", h.bytes, bytes)
		}
	})
}

// busyHost is 200 guests with memory on each of 8 nodes.
func busyHost(at time.Time, window time.Duration, churn int) inventory.Sample {
	s := inventory.Sample{Taken: at, Window: window}
	memory := topology.MemoryByNode{}
	for n := range topology.NodeID(8) {
		s.Nodes = append(s.Nodes,
			inventory.NodeSample{NodeLoad: inventory.NodeLoad{Node: n, CPU: 1}, Memory: topology.GiB})
		memory[n] = topology.GiB
	}
	for i := range 200 {
		name := fmt.Sprintf("guest-%03d", i)
		if churn > 0 && i%4 == 0 {
			name = fmt.Sprintf("guest-%03d-%d", i, churn)
		}
		s.Guests = append(s.Guests, inventory.GuestSample{Name: name, MemoryByNode: memory,
			Load: inventory.GuestLoad{Window: window, CPU: 1, MemoryMBps: 5, Remote: remote(0.5, inventory.AccessPMU)}})
	}
	return s
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestAnHourOf200GuestsTakesUnder8MiB(t *testing.T) {
	for name, c := range map[string]struct {
		window time.Duration
		churn  bool
		least  time.Duration // of history in any case
	}{
		"each second":        {time.Second, false, 59 * time.Minute},
		"four times in one":  {250 * time.Millisecond, false, 59 * time.Minute},
		"guests come and go": {2 * time.Second, true, 30 * time.Minute},
	} {
		if testing.Short() && c.window < time.Second {
			continue // most of the samples
		}
		before := heap()
		h := New(Options{})
		for i := range int(65 * time.Minute / c.window) {
			churn := 0
			if c.churn {
				churn = 1 + i/5
			}
			h.Add(busyHost(start.Add(time.Duration(i)*c.window), c.window, churn))
		}
		took := heap() - before
		s := h.Guest("guest-001")
		span := s.Times[len(s.Times)-1].Sub(s.Times[0])
		t.Logf("%s: %.2f MiB on the heap, %.2f MiB by its own count, %v", name, float64(took)/(1<<20),
			float64(h.bytes)/(1<<20), span)
		if took > 8<<20 || span < c.least {
			t.Errorf("%s: %d bytes for %v", name, took, span)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	h := New(Options{})
	samples := make([]inventory.Sample, 1000)
	for i := range samples {
		samples[i] = busyHost(start, time.Second, 0)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s := &samples[i%len(samples)]
		s.Taken = start.Add(time.Duration(i) * time.Second)
		h.Add(*s)
		i++
	}
}

func BenchmarkLoadsOf200Guests(b *testing.B) {
	h := New(Options{})
	for i := range 600 {
		h.Add(busyHost(start.Add(time.Duration(i)*time.Second), time.Second, 0))
	}
	for b.Loop() {
		for i := range 200 {
			if _, ok := h.Load(fmt.Sprintf("guest-%03d", i), 10*time.Second); !ok {
				b.Fatal(i)
			}
		}
	}
}
