package move_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// A move may leave the memory of the guest's process and its limit for later. It
// is complete without them, and a bind does the rest.
func TestMove_Later(t *testing.T) {
	w := home(t, "nodes:4 cores:8 memory:16G square distances:10,16,28", folderOf(t), gib,
		map[string]topology.NodeID{"a": 0})
	m, b := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"}), &book{}
	moved, err := w.Joined.Move(context.Background(),
		move.Request{ID: "m1", Move: m, By: "test", Journal: b, Later: true})
	if err != nil || ended(t, b) != journal.MoveDone || !slices.Equal(moved.Left, []string{"a"}) {
		t.Fatalf("%v: %s %v, left %v", err, moved.End, moved.Shortfalls(), moved.Left)
	}
	for _, o := range moved.Guests[0].Outcomes {
		if o.Step.Kind == plan.MoveOwn {
			t.Errorf("the memory of the process was copied: %+v", o)
		}
	}
	differences := func() []drift.Difference {
		inv, err := w.Joined.Observe(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		g, _ := inv.Guest("a")
		if g.Seen.MemoryByNode[0] > gib/8 {
			t.Errorf("memory on %v", g.Seen.MemoryByNode)
		}
		return drift.Of(*g, &inv.Topology)
	}
	if left := differences(); len(left) != 1 || left[0].Kind != drift.MemoryLimit {
		t.Errorf("the move left %v", left)
	}
	if _, err := w.Bind("a"); err != nil {
		t.Fatal(err)
	}
	if left := differences(); len(left) > 0 {
		t.Errorf("the bind left %v", left)
	}
	w.CheckInPlace(t, "a")
}

// What the kernel has left of a guest's memory after it has brought the rest is left, too, if it is little. The vCPUs
// move at once.
func TestMove_LeavesWhatTheKernelHasLeft(t *testing.T) {
	for _, brought := range []topology.Bytes{gib - 100*mib, gib / 2} {
		synctest.Test(t, func(t *testing.T) {
			w, p, _, moved, err := pulledMove(t, 0, func(w *world, r *move.Request) {
				for i, g := range r.Move.Guests {
					top := w.Nodes()
					if err := w.Repin(g.Guest, 0, top.CPUsOf(g.Placement.Nodes)); err != nil {
						t.Fatal(err)
					}
					r.Move.Guests[i].Undo.VCPUNodes = g.Placement.Nodes
				}
				w.Pull(brought)
				r.Later, r.Drifts, r.Served = true, true, []string{"a", "b"}
				k, ok := w.Joined.Sources.Kernel.(*pulling)
				if !ok {
					t.Fatal("another kernel")
				}
				k.settings.Values[plan.NUMABalancingPath] = "1"
				r.Held = &journal.SettingChange{Path: plan.NUMABalancingPath, Former: "0", Value: "1", Held: true}
			})
			if err != nil || moved.End != journal.MoveDone {
				t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
			}
			on := p.settings.Values[plan.NUMABalancingPath] == "1"
			if cold := brought > gib/2; cold != (moved.Bytes == 0) || cold != on || cold != (moved.Held != nil) ||
				len(moved.Left) != 2 {
				t.Errorf("the kernel brought %v: %v copied, left of %v, balancing is on %v, held %+v", brought, moved.Bytes,
					moved.Left, on, moved.Held)
			}
			if p.read != 2 {
				t.Errorf("the kernel brought %v: mappings were read %d times; want once for each guest", brought, p.read)
			}
			for _, name := range []string{"a", "b"} {
				if _, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: name}); err != nil {
					t.Fatal(err)
				}
				w.CheckInPlace(t, name)
			}
		})
	}
}
