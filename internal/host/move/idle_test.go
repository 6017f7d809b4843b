package move_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// vcpuTimes is a meter whose threads run all the time until they stop.
type vcpuTimes struct {
	began time.Time
	stops map[int]time.Duration // by thread: when it stops to run
	waits bool                  // instead, they wait for a CPU
}

func (v *vcpuTimes) ThreadTimes(tid int) (ran, waited time.Duration, err error) {
	ran = time.Since(v.began)
	if stops, ok := v.stops[tid]; ok {
		ran = min(ran, stops)
	}
	if v.waits {
		ran, waited = 0, ran
	}
	return ran, waited, nil
}

// becomesIdle lets a guest of pulledMove become idle some time after the move has begun. All of them worked when the
// move was planned.
func becomesIdle(t *testing.T, w *world, r *move.Request, name string, after time.Duration) *vcpuTimes {
	t.Helper()
	v := &vcpuTimes{began: time.Now(), stops: map[int]time.Duration{}}
	threads, _, err := w.Joined.Sources.Kernel.Threads(w.MustGuest(t, name).PID)
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		v.stops[thread.TID] = after
	}
	w.Joined.Meter, r.Later = v, true
	for i := range r.Move.Guests {
		r.Move.Guests[i].Demand = 2
	}
	return v
}

func memoryOf(t *testing.T, w world, name string) topology.MemoryByNode {
	t.Helper()
	memory, _, err := w.Memory(w.MustGuest(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return memory
}

// The memory of a guest that has become idle is left for a quiet time: nothing depends on it, and copying it takes time
// from the others. Its move does not delay the next one, once it works again.
func TestMove_LeavesMemoryOfAGuestThatBecomesIdle(t *testing.T) {
	for name, c := range map[string]struct {
		each  topology.Bytes // that the kernel brings at once
		after time.Duration
		pull  bool
	}{
		"before it is copied":             {0, 5 * time.Second, false},
		"while it is copied":              {0, 40 * time.Second, false},
		"while the kernel brings nothing": {0, time.Second, true},
		"while the kernel brings memory":  {mib, time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, p, b, moved, err := pulledMove(t, c.each, func(w *world, r *move.Request) {
				becomesIdle(t, w, r, "b", c.after)
				r.Pull = c.pull
			})
			if err != nil || !moved.Complete() {
				t.Fatalf("%s: %v: %s %v", name, err, moved.End, moved.Shortfalls())
			}
			if memory := memoryOf(t, w, "a"); memory[1] < gib*9/10 {
				t.Errorf("%s: the memory of a is at %v", name, memory)
			}
			if !slices.Equal(moved.Idle, []string{"b"}) || !slices.Contains(moved.Left, "b") {
				t.Errorf("%s: idle %v, left of %v", name, moved.Idle, moved.Left)
			}
			if memory := memoryOf(t, w, "b"); memory[0] < gib/2 {
				t.Errorf("%s: the memory of b is at %v", name, memory)
			}
			if moved.Held != nil || p.settings.Values[plan.NUMABalancingPath] != "0" {
				t.Errorf("%s: held %+v; settings %q", name, moved.Held, settingsOf(b))
			}
		})
	}
}

// Guests often pause. If none of a move works any more, kernel balancing stays on for the memory that they use when
// they work again, unless the kernel has brought nearly all of it.
func TestMove_LeavesBalancingOnWhenAllGuestsPause(t *testing.T) {
	for name, c := range map[string]struct {
		each topology.Bytes // that the kernel brings at once
		own  string         // the setting before
		want string         // changes of settings
		held bool
		more bool // another guest of the move, which is only pinned, works on
	}{
		"much is left":        {64 * mib, "0", "0>1", true, false},
		"nearly all is there": {gib, "0", "0>1 1>0", false, false},
		"it was on before":    {64 * mib, "1", "", false, false},
		"one of them works":   {64 * mib, "0", "0>1 1>0", false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, _, b, moved, err := pulledMove(t, c.each, func(w *world, r *move.Request) {
				if c.more {
					pinsToo(t, w, r, "c")
				}
				v := becomesIdle(t, w, r, "a", time.Second)
				for tid, after := range becomesIdle(t, w, r, "b", time.Second).stops {
					v.stops[tid] = after
				}
				w.Joined.Meter = v
				settings, ok := w.Joined.Settings.(*operatetest.Settings)
				if !ok {
					t.Fatal("other settings")
				}
				settings.Values[plan.NUMABalancingPath] = c.own
			})
			if err != nil || !moved.Complete() {
				t.Fatalf("%s: %v: %s %v", name, err, moved.End, moved.Shortfalls())
			}
			if got := settingsOf(b); got != c.want || (moved.Held != nil) != c.held || moved.Pauses != c.held {
				t.Errorf("%s: settings %q, want %q; held %+v, pauses %v", name, got, c.want, moved.Held, moved.Pauses)
			}
			if c.held && !slices.Equal(moved.Idle, []string{"a", "b"}) {
				t.Errorf("%s: idle %v", name, moved.Idle)
			}
		})
	}
}

// pinsToo adds a guest to pulledMove whose memory is at its target, and whose vCPUs are not.
func pinsToo(t *testing.T, w *world, r *move.Request, name string) {
	t.Helper()
	top := w.Nodes()
	d := kinds[0].Guest(name, gib, []topology.NodeID{3}, top.CPUsOf(nodes("0")))
	d.Config.Immediate = true
	w.MustAdd(t, d)
	pinned := planned(t, *w, plan.Batch, map[string]string{name: "3"}).Guests[0]
	pinned.Kind = plan.MoveGuest
	r.Move.Guests = append(r.Move.Guests, pinned)
}

// The memory is copied if the guest waits for CPUs, if it was idle when the move was planned (it makes room, or was not
// measured), and if an operator asks for the move.
func TestMove_CopiesMemoryOfAnIdleGuest(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *world, *move.Request, *vcpuTimes){
		"it waits for CPUs": func(_ *testing.T, _ *world, _ *move.Request, v *vcpuTimes) {
			v.waits, v.stops = true, nil
		},
		"it was idle before": func(_ *testing.T, _ *world, r *move.Request, _ *vcpuTimes) { r.Move.Guests[1].Demand = 0.01 },
		"it was not measured": func(_ *testing.T, _ *world, r *move.Request, _ *vcpuTimes) {
			r.Move.Guests[1].Demand = 0
		},
		"an operator asks":   func(_ *testing.T, _ *world, r *move.Request, _ *vcpuTimes) { r.Later = false },
		"nothing is metered": func(_ *testing.T, w *world, _ *move.Request, _ *vcpuTimes) { w.Joined.Meter = nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			w, _, _, moved, err := pulledMove(t, 0, func(w *world, r *move.Request) {
				v := becomesIdle(t, w, r, "b", time.Second)
				r.Pull = false
				change(t, w, r, v)
			})
			if err != nil || len(moved.Idle) > 0 {
				t.Fatalf("%s: %v: idle %v", name, err, moved.Idle)
			}
			if memory := memoryOf(t, w, "b"); memory[2] < gib*9/10 {
				t.Errorf("%s: the memory of b is at %v", name, memory)
			}
		})
	}
}

// Guests that exchange room with an idle one need what it leaves: it is copied.
func TestMove_CopiesMemoryOfAnIdleGuestThatMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "nodes:2 cores:8 memory:4G", folderOf(t))
		none := topology.Bytes(0)
		w.Joined.Policy.KeepFree = &none
		top := w.Nodes()
		for node, name := range []string{"a", "b"} {
			on := topology.SetOf(topology.NodeID(node))
			d := kinds[0].Guest(name, 5*gib/2, []topology.NodeID{topology.NodeID(node)}, top.CPUsOf(on))
			d.Config.Immediate = true
			w.MustAdd(t, d)
		}
		b := &book{}
		w.Joined.Journal, w.Joined.Clock, w.Joined.Kernel = b, time.Now, crawling{w.Joined.Kernel}
		r := move.Request{ID: "m1", Move: planned(t, w, plan.Swap, map[string]string{"a": "1", "b": "0"}), Journal: b}
		becomesIdle(t, &w, &r, "b", time.Second)
		moved, err := w.Joined.Move(t.Context(), r)
		if err != nil || !moved.Complete() || len(moved.Idle) > 0 {
			t.Fatalf("%v: %s %v: idle %v", err, moved.End, moved.Shortfalls(), moved.Idle)
		}
		if a, b := memoryOf(t, w, "a"), memoryOf(t, w, "b"); a[1] < 2*gib || b[0] < 2*gib {
			t.Errorf("the memory of a is at %v, of b at %v", a, b)
		}
	})
}

// A rollback brings all memory back, also that of guests that are idle.
func TestMove_RollbackBringsIdleMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		var moved move.Result
		var undone error
		_, _, _, again, err := pulledMove(t, 0, func(w *world, r *move.Request) {
			becomesIdle(t, w, r, "b", time.Hour)
			r.Pull = false
			time.AfterFunc(50*time.Second, func() { cancel(move.ErrUndo) })
			moved, undone = w.Joined.Move(ctx, *r)
			for _, name := range []string{"a", "b"} {
				if memory := memoryOf(t, *w, name); memory[0] < gib*9/10 {
					t.Errorf("the memory of %s is at %v", name, memory)
				}
			}
			r.ID = "m2" // pulledMove moves them again
		})
		if !errors.Is(undone, move.ErrUndo) || moved.End != journal.MoveUndone || len(moved.Idle) > 0 {
			t.Errorf("%v: %s %v, idle %v", undone, moved.End, moved.Shortfalls(), moved.Idle)
		}
		if err != nil || !again.Complete() {
			t.Errorf("moved again: %v: %s %v", err, again.End, again.Shortfalls())
		}
	})
}
