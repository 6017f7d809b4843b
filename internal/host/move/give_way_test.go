package move_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// A move that gives way copies for some more seconds, leaves the rest, and ends: its vCPUs are at their target, and the
// rest is for a quiet time. Another move of the same VM brings it.
func TestMove_GivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		giveWay := make(chan struct{})
		w, _, _, moved, err := pulledMove(t, 64*mib, func(_ *world, r *move.Request) {
			r.Pull, r.Later, r.GiveWay = false, true, giveWay
			close(giveWay)
		})
		if err != nil || moved.End != journal.MoveDone || !moved.GaveWay || len(moved.Left) != 2 || moved.Bytes == 0 ||
			moved.Bytes > gib/2 {
			t.Fatalf("%v: %s, gave way %v, left of %v, %v copied", err, moved.End, moved.GaveWay, moved.Left, moved.Bytes)
		}
		top := w.Nodes()
		for name, node := range map[string]topology.NodeID{"a": 1, "b": 2} {
			g := w.MustGuest(t, name)
			if at := g.VCPUNodes(&top); !at.Equal(topology.SetOf(node)) {
				t.Errorf("the vCPUs of %s are on nodes %s, want %d", name, at, node)
			}
			if _, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: name}); err != nil {
				t.Fatal(err)
			}
			w.CheckInPlace(t, name)
		}
	})
}

// A move for which the kernel brings memory gives way at once: its vCPUs are at their target, and kernel balancing
// stays on for the move that follows.
func TestMove_GivesWayWhileTheKernelBringsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		giveWay := make(chan struct{})
		began := time.Now()
		w, p, b, moved, err := pulledMove(t, 64*mib, func(_ *world, r *move.Request) {
			r.Later, r.GiveWay = true, giveWay
			time.AfterFunc(5*time.Second, func() { close(giveWay) })
		})
		if err != nil || moved.End != journal.MoveDone || !moved.GaveWay || len(moved.Left) != 2 ||
			moved.Bytes > gib/8 || p.pulled == 0 || p.pulled > gib {
			t.Fatalf("%v: %s, gave way %v, left of %v, %v copied, %v brought", err, moved.End, moved.GaveWay, moved.Left,
				moved.Bytes, p.pulled)
		}
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("it ended after %v", took)
		}
		top := w.Nodes()
		for name, node := range map[string]topology.NodeID{"a": 1, "b": 2} {
			g := w.MustGuest(t, name)
			if at := g.VCPUNodes(&top); !at.Equal(topology.SetOf(node)) {
				t.Errorf("the vCPUs of %s are on nodes %s, want %d", name, at, node)
			}
		}
		if got := settingsOf(b); got != "0>1" || moved.Held == nil || moved.Held.Former != "0" {
			t.Errorf("settings %q, %+v is held", got, moved.Held)
		}
	})
}

// A move that would end soon ends: what is left would have to be planned, begun and copied again.
func TestMove_DoesNotGiveWayAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		giveWay := make(chan struct{})
		_, _, _, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
			k, ok := w.Joined.Kernel.(crawling)
			if !ok {
				t.Fatal("another kernel")
			}
			w.Joined.Kernel = k.Kernel // copies at once
			r.Pull, r.Later, r.GiveWay = false, true, giveWay
			close(giveWay)
		})
		if err != nil || moved.End != journal.MoveDone || moved.GaveWay || len(moved.Left) > 0 && moved.Bytes < 2*gib {
			t.Fatalf("%v: %s, gave way %v, left of %v, %v copied", err, moved.End, moved.GaveWay, moved.Left, moved.Bytes)
		}
	})
}
