package move_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// scene is a move that can be broken, always the same.
type scene struct {
	name string
	make func(t tester, folder string) (world, plan.Move)
}

// scenes are moves of one guest of each kind, of one that Numavisor created, and of
// two that make room for each other.
func scenes() []scene {
	var all []scene
	for _, k := range kinds {
		all = append(all, scene{k.Name, func(t tester, folder string) (world, plan.Move) {
			w := misplaced(t, k, folder)
			return w, planned(t, w, plan.MoveGuest, map[string]string{"g": "0,2"})
		}})
	}
	return append(all, scene{"created by Numavisor", func(t tester, folder string) (world, plan.Move) {
		w := newWorld(t, square, folder)
		c, err := w.Create(spec(t, guest.Spec{Name: "g", VCPUs: 2, Memory: 512 * mib}))
		if err != nil {
			t.Fatal(err)
		}
		away, _ := nodes("0-3").Minus(c.Placement.Nodes).First()
		return w, planned(t, w, plan.MoveGuest, map[string]string{"g": fmt.Sprint(away)})
	}}, scene{"a swap with little free memory", func(t tester, folder string) (world, plan.Move) {
		w := home(t, "nodes:4 cores:4 memory:512M huge:2M=4 square distances:10,16,28", folder, 320*mib,
			map[string]topology.NodeID{"g": 1, "h": 2})
		m := planned(t, w, plan.Swap, map[string]string{"g": "2", "h": "1"})
		w.Fill(1, 96*mib)
		w.Fill(2, 96*mib)
		return w, m
	}})
}

// Whichever call fails, in whatever way: the guests keep running, no claim
// remains, no memory is lost; the journal has the move's end, or Recover finds it;
// everything reported as done is in place; and a bind can finish the rest.
func TestMoveSurvivesABreakAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	for _, s := range scenes() {
		clean, m := s.make(t, folder)
		clean.Inject(fake.Fault{})
		if moved, err := carryOut(context.Background(), clean, m, &book{}); err != nil || !moved.Complete() {
			t.Fatalf("%s: %v %v", s.name, err, moved.Shortfalls())
		}
		calls := clean.Calls()
		for _, b := range append(breakages, away) {
			t.Run(s.name+"/"+b.Name, func(t *testing.T) {
				for _, call := range calls {
					w, m := s.make(t, folder)
					brokenMove(t, w, m, b, call)
				}
			})
		}
	}
}

// away: libvirtd, or the whole host, stops answering at a call.
var away = breakage{Name: "nothing answers any longer", Fault: func(_ world, call int, _ func()) fake.Fault {
	return fake.Fault{Before: func(c fake.Call) error {
		if c.N >= call {
			return errLost
		}
		return nil
	}}
}}

func brokenMove(t *testing.T, w world, m plan.Move, b breakage, call fake.Call) {
	t.Helper()
	where := fmt.Sprintf("call %d (%s)", call.N, call.Method)
	started := starts(w, m)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	records := &book{}
	w.Inject(b.Fault(w, call.N, cancel))
	moved, err := carryOut(ctx, w, m, records)
	w.Inject(fake.Fault{})
	w.Drain()
	for name, ticks := range started {
		if w.StartTicksOf(name) != ticks && !(b.Ends && name == "g") {
			t.Fatalf("%s: guest %s no longer runs", where, name)
		}
	}
	w.CheckSettled(t)
	if err != nil && len(records.Recorded) == 0 {
		if moved.End != "" || len(moved.Guests) > 0 {
			t.Errorf("%s: not begun, yet %+v", where, moved)
		}
	} else if errors.Is(err, move.ErrStopped) {
		if moved.End != "" || len(journal.InterruptedMoves(records.Recorded)) != 1 {
			t.Errorf("%s: stopped, and it ended as %q", where, moved.End)
		}
	} else if end := ended(t, records); end != moved.End {
		t.Errorf("%s: ended as %q, the journal says %q", where, moved.End, end)
	}
	if moved.Complete() {
		allAt(t, w, same(w, m, started), where) // one may have ended after it was verified
	}
	if moved.End == journal.MovePartial && err == nil && len(moved.Shortfalls()) == 0 {
		t.Errorf("%s: in part, with no reason given", where)
	}
	finishes(t, w, m, records, started, where)
}

// starts are the guests of a move with when they were started.
func starts(w world, m plan.Move) map[string]uint64 {
	all := map[string]uint64{}
	for _, g := range m.Guests {
		all[g.Guest] = w.StartTicksOf(g.Guest)
	}
	return all
}

// same is the move of only those guests that still run.
func same(w world, m plan.Move, started map[string]uint64) plan.Move {
	m.Guests = slices.DeleteFunc(slices.Clone(m.Guests),
		func(g plan.GuestMove) bool { return w.StartTicksOf(g.Guest) != started[g.Guest] })
	return m
}

// allAt checks that every guest of a move is on its target.
func allAt(t *testing.T, w world, m plan.Move, where string) {
	t.Helper()
	for _, g := range m.Guests {
		if at := w.MustGuest(t, g.Guest).Placement; at == nil || !at.Nodes.Equal(g.Placement.Nodes) {
			t.Errorf("%s: guest %s is reported on nodes %s; recorded is %+v", where, g.Guest, g.Placement.Nodes, at)
			continue
		}
		w.CheckInPlace(t, g.Guest)
	}
}

// finishes recovers interrupted moves, and then checks that each running guest is
// on the nodes of its metadata, or, without metadata, on its former nodes.
func finishes(t *testing.T, w world, m plan.Move, records *book, started map[string]uint64, where string) {
	t.Helper()
	if _, err := w.Joined.Recover(context.Background(), move.Request{By: "restart", Journal: records}); err != nil &&
		!errors.Is(err, apply.ErrGone) {
		t.Errorf("%s: recovering: %v", where, err)
	}
	if open := journal.InterruptedMoves(records.Recorded); len(open) > 0 {
		t.Errorf("%s: still unfinished: %+v", where, open)
	}
	entries := len(records.Recorded)
	again, err := w.Joined.Recover(context.Background(), move.Request{Journal: records})
	if err != nil || len(again) > 0 || len(records.Recorded) != entries {
		t.Errorf("%s: recovering again: %v, %v", where, again, err)
	}
	for _, g := range m.Guests {
		if w.StartTicksOf(g.Guest) == started[g.Guest] && w.MustGuest(t, g.Guest).Placement == nil {
			asItWas(t, w, g, where)
		}
	}
	bindAll(t, w, m, started, where)
	w.CheckSettled(t)
}

// bindAll binds the guests that have a placement, and run, in turn until all are
// in place: those that make room for each other need several.
func bindAll(t *testing.T, w world, m plan.Move, started map[string]uint64, where string) {
	t.Helper()
	const turns = 6
	for turn := range turns {
		missing := 0
		for _, g := range m.Guests {
			if w.StartTicksOf(g.Guest) != started[g.Guest] || w.MustGuest(t, g.Guest).Placement == nil {
				continue
			}
			b, err := w.Bind(g.Guest)
			if err == nil && len(b.Truth.Differences) == 0 {
				w.CheckInPlace(t, g.Guest)
				continue
			}
			if missing++; turn == turns-1 {
				t.Errorf("%s: binds of %s do not finish the work: %v %v", where, g.Guest, err, b.Shortfalls())
			}
		}
		if missing == 0 {
			return
		}
	}
}

// asItWas checks that the memory and vCPUs of a guest without a placement are where
// they were before the move.
func asItWas(t *testing.T, w world, m plan.GuestMove, where string) {
	t.Helper()
	g := w.MustGuest(t, m.Guest)
	found, total := topology.MemoryByNode{}, topology.Bytes(0)
	for _, r := range g.Seen.Ranges {
		for node, bytes := range r.ByNode {
			found[node] += bytes
			total += bytes
		}
	}
	top := w.Nodes()
	for node, bytes := range found {
		if m.Undo.Memory[node] == 0 && bytes > total/20 {
			t.Errorf("%s: %v of guest %s remain on node %d; it was on %v", where, bytes, g.Name, node, m.Undo.Memory)
		}
	}
	for _, thread := range g.Seen.Threads {
		if thread.VCPU != nil && !top.NodesOf(thread.Affinity).Equal(m.Undo.VCPUNodes) {
			t.Errorf("%s: vCPU %d of guest %s is on CPUs %s; it was on nodes %s", where, *thread.VCPU, g.Name,
				thread.Affinity, m.Undo.VCPUNodes)
		}
	}
}

// reborn is the program after it was killed and started again.
func reborn(w world, old claim.Process) world {
	fresh := claim.Process{PID: old.PID + 1, StartTicks: old.StartTicks + 1}
	h := *w.Joined
	h.Self = fresh
	h.Ledger.Alive = func(p claim.Process) bool { return p == fresh || w.Runs(p.PID, p.StartTicks) }
	h.Sources.Claims = h.Ledger.Claims
	return world{Host: w.Host, Joined: &h}
}

// killed runs an action that ends the goroutine it runs on, as kill -9 ends a
// process: nothing is cleaned up except by the kernel (locks).
func killed(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// Killed at any call of a driver and at any write of the journal, before and
// after it was done: the next start finishes the move, or undoes it, and its
// journal has one beginning and one end.
func TestMoveKilledAtEveryPointIsRecovered(t *testing.T) {
	folder := folderOf(t)
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			clean, m := s.make(t, folder)
			clean.Inject(fake.Fault{})
			records := &book{}
			if _, err := carryOut(context.Background(), clean, m, records); err != nil {
				t.Fatal(err)
			}
			for _, call := range clean.Calls() {
				for _, after := range []bool{false, true} {
					w, m := s.make(t, folder)
					die := fake.Nth(call.N, func() error { runtime.Goexit(); return nil })
					f := fake.Fault{Before: die}
					if after {
						f = fake.Fault{After: die}
					}
					b := &book{}
					started := starts(w, m)
					w.Inject(f)
					killed(func() { _, _ = carryOut(context.Background(), w, m, b) })
					w.Inject(fake.Fault{})
					recovered(t, reborn(w, self), m, b, started, fmt.Sprintf("killed at call %d (%s), after it: %v", call.N,
						call.Method, after))
				}
			}
			for n := range len(records.Recorded) {
				for _, after := range []bool{false, true} {
					w, m := s.make(t, folder)
					b := &book{}
					b.Fail = func(at int, e journal.Entry) error {
						if at == n+1 {
							if after {
								b.Recorded = append(b.Recorded, e)
							}
							runtime.Goexit()
						}
						return nil
					}
					started := starts(w, m)
					killed(func() { _, _ = carryOut(context.Background(), w, m, b) })
					b.Fail = nil
					recovered(t, reborn(w, self), m, b, started, fmt.Sprintf("killed at entry %d, after it: %v", n+1, after))
				}
			}
		})
	}
}

func recovered(t *testing.T, w world, m plan.Move, b *book, started map[string]uint64, where string) {
	t.Helper()
	w.Drain()
	for name, ticks := range started {
		if w.StartTicksOf(name) != ticks {
			t.Fatalf("%s: guest %s no longer runs", where, name)
		}
	}
	begun := len(b.Recorded) > 0
	finishes(t, w, m, b, started, where)
	if !begun {
		return
	}
	if end := ended(t, b); end == journal.MoveDone {
		allAt(t, w, m, where)
	} else {
		t.Errorf("%s: it could be finished, but ended as %s: %+v", where, end, b.Recorded[len(b.Recorded)-1])
	}
}

// A guest ends during a move: the other one is moved, into the memory that becomes
// free, and the journal reports what happened.
func TestMove_ContinuesWithoutAGuestThatEnded(t *testing.T) {
	s := scenes()
	w, m := s[len(s)-1].make(t, folderOf(t))
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 3, func() error { w.Vanish("g"); return nil })})
	b := &book{}
	moved, err := carryOut(context.Background(), w, m, b)
	if moved.End != journal.MovePartial || ended(t, b) != journal.MovePartial {
		t.Errorf("%v: %s %s", err, moved.End, moved.Why)
	}
	w.Inject(fake.Fault{})
	w.Drain()
	w.CheckInPlace(t, "h")
	w.CheckSettled(t)

	w, m = s[0].make(t, folderOf(t))
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 1, func() error { w.Vanish("g"); return nil })})
	b = &book{}
	if moved, err = carryOut(context.Background(), w, m, b); !errors.Is(err, apply.ErrGone) ||
		moved.End != journal.MoveFailed ||
		ended(t, b) != journal.MoveFailed {
		t.Errorf("%v: %s %s", err, moved.End, moved.Why)
	}
	w.CheckSettled(t)
}

// A guest whose files in /proc cannot be read for a moment has not ended: the
// move stays open, and is resumed.
func TestMove_UnreadProcessIsResumed(t *testing.T) {
	w, m := scenes()[0].make(t, folderOf(t))
	hidden := false
	w.Inject(fake.Fault{Before: func(c fake.Call) error {
		hidden = hidden || c.Method == "Move"
		if hidden && c.Method == "StartTicks" {
			return fs.ErrNotExist
		}
		return nil
	}})
	b := &book{}
	moved, err := carryOut(t.Context(), w, m, b)
	if !errors.Is(err, move.ErrStopped) || !errors.Is(err, apply.ErrUnread) || moved.End != "" {
		t.Fatalf("%v: end %q, %s; want it stopped", err, moved.End, moved.Why)
	}
	w.Inject(fake.Fault{})
	recovered, err := w.Joined.Recover(t.Context(), move.Request{By: "restart", Journal: b})
	if err != nil || len(recovered) != 1 || recovered[0].End != journal.MoveDone {
		t.Fatalf("resumed: %v, %+v", err, recovered)
	}
	w.CheckSettled(t)
}

// A stopped move stays where it is, and is resumed by a restart, or by the same
// request; a cancelled one is rolled back, guests without a
// former placement as far as their former state is known.
func TestMoveStoppedOrUndone(t *testing.T) {
	folder := folderOf(t)
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			for _, cause := range []error{context.Canceled, move.ErrUndo} {
				w, m := s.make(t, folder)
				ctx, cancel := context.WithCancelCause(context.Background())
				w.Inject(fake.Fault{After: fake.NthOf("Move", 1, func() error { cancel(cause); return nil })})
				b := &book{}
				moved, err := carryOut(ctx, w, m, b)
				w.Inject(fake.Fault{})
				w.CheckSettled(t)
				if cause == move.ErrUndo {
					if !errors.Is(err, move.ErrUndo) || ended(t, b) != journal.MoveUndone {
						t.Fatalf("%v: %s %s %v", err, moved.End, moved.Why, moved.Shortfalls())
					}
					isUndone(t, w, m)
					continue
				}
				if !errors.Is(err, move.ErrStopped) || moved.End != "" {
					t.Fatalf("%v: %s %s", err, moved.End, moved.Why)
				}
				all, err := w.Joined.Recover(context.Background(), move.Request{Journal: b})
				if err != nil || len(all) != 1 || !all[0].Complete() ||
					b.Recorded[len(b.Recorded)-1].Kind != journal.MoveDone {
					t.Fatalf("resumed: %v, %+v", err, all)
				}
				allAt(t, w, m, "resumed")
				w.CheckSettled(t)
			}
		})
	}
}

// A move that is stopped during its rollback is left, and Recover continues the rollback.
func TestMoveStoppedWhileItIsUndone(t *testing.T) {
	folder := folderOf(t)
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			w, m := s.make(t, folder)
			ctx, cancel := context.WithCancelCause(context.Background())
			back, stop := context.WithCancel(context.Background())
			defer stop()
			w.Inject(fake.Fault{After: fake.NthOf("Move", 1, func() error { cancel(move.ErrUndo); return nil })})
			b := &book{Fail: func(_ int, e journal.Entry) error {
				if e.Kind == journal.MoveUndoing {
					stop()
				}
				return nil
			}}
			moved, err := w.Joined.Move(ctx, move.Request{ID: "m1", Move: m, By: "test", Journal: b, Back: back})
			w.Inject(fake.Fault{})
			w.CheckSettled(t)
			if !errors.Is(err, move.ErrStopped) || moved.End != "" {
				t.Fatalf("%v: %s %s", err, moved.End, moved.Why)
			}
			all, err := w.Joined.Recover(context.Background(), move.Request{Journal: b})
			if err != nil || len(all) != 1 || !all[0].Cancelled || ended(t, b) != journal.MoveUndone {
				t.Fatalf("continued: %v, %+v", err, all)
			}
			isUndone(t, w, m)
			w.CheckSettled(t)
		})
	}
}

func isUndone(t *testing.T, w world, m plan.Move) {
	t.Helper()
	for _, g := range m.Guests {
		if g.Undo.Placement != nil {
			if at := w.MustGuest(t, g.Guest).Placement; at == nil || !at.Nodes.Equal(g.Undo.Placement.Nodes) {
				t.Errorf("guest %s is recorded as %+v", g.Guest, at)
			}
			w.CheckInPlace(t, g.Guest)
			continue
		}
		if w.MustGuest(t, g.Guest).Placement != nil {
			t.Errorf("guest %s had no placement and has one", g.Guest)
		}
		asItWas(t, w, g, "undone")
	}
}

// A restart rolls back a move that cannot be finished because its memory is taken.
func TestRecover_UndoesAMoveWithoutRoom(t *testing.T) {
	w := home(t, square, folderOf(t), 2*gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	b := &book{}
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 3, func() error { runtime.Goexit(); return nil })})
	killed(func() { _, _ = carryOut(context.Background(), w, m, b) })
	w.Inject(fake.Fault{})
	w.MustAdd(t, fake.Definition{Name: "other", Config: fullOn(1)})
	w = reborn(w, self)
	all, err := w.Joined.Recover(context.Background(), move.Request{By: "restart", Journal: b})
	if len(all) != 1 || all[0].End != journal.MoveUndone || ended(t, b) != journal.MoveUndone {
		t.Fatalf("%v: %+v", err, b.Recorded)
	}
	isUndone(t, w, m)
	w.CheckSettled(t)
}

// fullOn is an unmanaged guest on a node, bound to it, which leaves no room
// there for a guest of 2 GiB that has touched half of its memory.
func fullOn(node topology.NodeID) inventory.Config {
	return inventory.Config{
		VCPUs:    1,
		Memory:   3 * gib,
		Source:   "memfd",
		NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: topology.SetOf(node)},
	}
}

// A restart removes the claim of a process that was killed before it recorded the move, and its unfinished files.
func TestRecover_RemovesWhatAKilledProcessClaimed(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0})
	err := w.Joined.Ledger.Locked(t.Context(), func(tx claim.Locked) error {
		return tx.Put(claim.Claim{Name: "a", Holder: claim.Process{PID: 432}})
	})
	folder := filepath.Join(w.Joined.Ledger.Folder, "claims")
	if err := errors.Join(err, os.WriteFile(filepath.Join(folder, "a.json.432.new"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	all, err := w.Joined.Recover(t.Context(), move.Request{By: "restart", Journal: &book{}})
	if left, _ := os.ReadDir(folder); err != nil || len(all) > 0 || len(left) > 0 {
		t.Errorf("%v, %v; the folder of claims has %v", all, err, left)
	}
}

// A restart does not touch a move that another process is carrying out.
func TestRecover_IgnoresRunningMoves(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	b := &book{}
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 2, func() error {
		before := w.MustGuest(t, "a")
		if all, err := w.Joined.Recover(context.Background(), move.Request{By: "restart", Journal: b}); err != nil ||
			len(all) > 0 {
			t.Errorf("%v, %v", all, err)
		}
		w.CheckUnchanged(t, before)
		return nil
	})})
	if moved, err := carryOut(context.Background(), w, m, b); err != nil || !moved.Complete() {
		t.Fatal(err)
	}
	ended(t, b)
	w.CheckInPlace(t, "a")
}

// An old journal does not move a guest that got a new placement since then.
func TestRecover_IgnoresGuestsPlacedSince(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	b := &book{}
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 2, func() error { runtime.Goexit(); return nil })})
	killed(func() { _, _ = carryOut(context.Background(), w, m, b) })
	w.Inject(fake.Fault{})
	w = reborn(w, self)
	if _, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "a", Change: limitTo("3")}); err != nil {
		t.Fatal(err)
	}
	before := w.MustGuest(t, "a")
	all, err := w.Joined.Recover(context.Background(), move.Request{By: "restart", Journal: b})
	if err != nil || len(all) != 1 || ended(t, b) != journal.MoveFailed {
		t.Errorf("%v, %+v", err, all)
	}
	w.CheckUnchanged(t, before)
	w.CheckSettled(t)
}
