package move_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// slow is a kernel that copies 2 GiB a second. The more it copies, the longer the
// vCPUs wait: 5 % of their time at the rate bears.
type slow struct {
	apply.Kernel
	began  time.Time
	copied topology.Bytes
	bears  topology.Bytes
}

const copyRate = 2 * gib

func (s *slow) Move(
	ctx context.Context, pid int, step plan.Step, progress func(done, total topology.Bytes),
) (plan.Moved, error) {
	moved, err := s.Kernel.Move(ctx, pid, step, progress)
	time.Sleep(time.Duration(float64(moved.Moved) / float64(copyRate) * float64(time.Second)))
	s.copied += moved.Moved
	return moved, err
}

// ThreadTimes: a vCPU is runnable all the time.
func (s *slow) ThreadTimes(int) (ran, waited time.Duration, err error) {
	waited = time.Duration(0.05 * float64(s.copied) / float64(s.bears) * float64(time.Second))
	return time.Since(s.began) - waited, waited, nil
}

// paced moves 8 GiB on a slow kernel and returns how long copying took.
func paced(t *testing.T, bears topology.Bytes, change func(*move.Host, *move.Request)) (took time.Duration) {
	t.Helper()
	folder := folderOf(t)
	synctest.Test(t, func(t *testing.T) {
		w := home(t, "nodes:4 cores:4 memory:16G square distances:10,16,28", folder, 8*gib,
			map[string]topology.NodeID{"a": 0})
		s := &slow{Kernel: w.Host, began: time.Now().Add(-time.Hour), bears: bears}
		w.Joined.Kernel, w.Joined.Meter, w.Joined.Clock = s, s, time.Now
		r := move.Request{ID: "m1", Move: planned(t, w, plan.MoveGuest, map[string]string{"a": "1"}), Journal: &book{}}
		change(w.Joined, &r)
		moved, err := w.Joined.Move(context.Background(), r)
		if err != nil || !moved.Complete() {
			t.Fatalf("%v: %v", err, moved.Shortfalls())
		}
		took = moved.Took
	})
	return took
}

// A guest that copying slows down much is copied slowly, so that it waits at most
// 5 % longer on average; other guests at nearly full speed.
func TestMove_IsPacedByItsEffectOnTheGuest(t *testing.T) {
	none := func(*move.Host, *move.Request) {}
	full := paced(t, 64*gib, func(_ *move.Host, r *move.Request) { r.FullSpeed = true })
	if want := 8 * gib / copyRate * topology.Bytes(time.Second); full < time.Duration(want) ||
		full > time.Duration(want)+time.Second/10 {
		t.Errorf("at full speed it took %v", full)
	}
	if took := paced(t, 64*gib, none); took > 4*full {
		t.Errorf("a guest that copying hardly slows down: %v, at full speed %v", took, full)
	}
	for _, bears := range []topology.Bytes{100 * mib, 500 * mib} {
		took := paced(t, bears, none)
		if rate := float64(8*gib) / took.Seconds(); rate > float64(bears) || rate < float64(bears)/3 {
			t.Errorf("a guest that tolerates %v a second is copied at %v", bears, topology.Bytes(rate))
		}
	}
}

// The policy's cap and its part of the measured bandwidth apply to every guest.
func TestMove_ObeysItsCaps(t *testing.T) {
	bandwidth := func(mbps float64) *topology.Measured {
		m := &topology.Measured{Nodes: []topology.NodeID{0, 1, 2, 3}}
		for i := range 4 {
			row := make([]float64, 4)
			for k := range row {
				row[k] = mbps
			}
			row[i] *= 1 + float64(i) // node 0 is the slowest
			m.BandwidthMBps = append(m.BandwidthMBps, row)
		}
		return m
	}
	for name, c := range map[string]struct {
		change func(h *move.Host)
		most   float64 // bytes a second
	}{
		"a cap": {func(h *move.Host) { h.Policy.Balance.Pace = 200 * mib }, float64(200 * mib)},
		"a cap without a meter": {func(h *move.Host) { h.Policy.Balance.Pace, h.Meter = 200*mib, nil },
			float64(200 * mib)},
		"a part of bandwidth": {func(h *move.Host) { h.Sources.Measured = bandwidth(1200) }, 300e6},
		"the bandwidth that others leave": {func(h *move.Host) {
			h.Sources.Measured = bandwidth(1200)
			h.Traffic = only(0,
				1000)
		}, 200e6},
		"others use little bandwidth": {func(h *move.Host) {
			h.Sources.Measured = bandwidth(1200)
			h.Traffic = only(3,
				1200)
		}, 300e6},
	} {
		took := paced(t, 64*gib, func(h *move.Host, _ *move.Request) { c.change(h) })
		if rate := float64(8*gib) / took.Seconds(); rate > c.most || rate < 0.8*c.most {
			t.Errorf("%s: copied at %.0f MB/s, may be %.0f", name, rate/1e6, c.most/1e6)
		}
	}
}

// only is traffic on one node.
func only(node topology.NodeID, mbps float64) func(topology.NodeID) float64 {
	return func(n topology.NodeID) float64 {
		if n == node {
			return mbps
		}
		return 0
	}
}

// A move that waits between slices stops at once.
func TestMoveStopsWhileItWaits(t *testing.T) {
	folder := folderOf(t)
	synctest.Test(t, func(t *testing.T) {
		w := home(t, square, folder, 2*gib, map[string]topology.NodeID{"a": 0})
		w.Joined.Policy.Balance.Pace, w.Joined.Clock = 16*mib, time.Now
		m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		began := time.Now()
		moved, err := w.Joined.Move(ctx, move.Request{ID: "m1", Move: m, Journal: &book{}})
		if took := time.Since(began); took != 10*time.Second || moved.Took != took || moved.End != "" {
			t.Errorf("%v, after %v: %+v", err, took, fmt.Sprint(moved.End))
		}
	})
}
