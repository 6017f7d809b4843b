package move_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/room"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// tight is a host of two nodes whose node 0 has two guests of 512 MiB, of which
// Numavisor created one, and whose node 1 has one of 1.5 GiB. No node has room for new.
func tight(t tester, folder string) world {
	t.Helper()
	w := newWorld(t, "nodes:2 cores:4 memory:4G huge:2M=4", folder)
	w.Joined.Policy.KeepFree = new(topology.Bytes)
	asked := guest.Spec{Name: "b", VCPUs: 1, Memory: 512 * mib, Binding: guest.MemorySpec{Immediate: true}}
	if made, err := w.Create(spec(t, asked)); err != nil || !made.Placement.Nodes.Equal(nodes("0")) {
		t.Fatalf("b is on nodes %s, %v", made.Placement.Nodes, err)
	}
	a := kinds[1].Guest("a", 512*mib, []topology.NodeID{0}, cpus("0-3"))
	c := kinds[1].Guest("c", 1536*mib, []topology.NodeID{1}, cpus("4-7"))
	a.Config.Immediate, c.Config.Immediate = true, true
	w.MustAdd(t, a)
	w.MustAdd(t, c)
	w.Joined.Journal = &book{}
	w.Inject(fake.Fault{})
	return w
}

// large fits on a node of the tight host only if nothing else is there.
func large(t tester) operate.CreateRequest {
	t.Helper()
	s := guest.Spec{Name: "new", VCPUs: 2, Memory: 3968 * mib, Limits: guest.Limits{MaxNodes: 1}}
	return operate.CreateRequest{Spec: spec(t, s), Render: operatetest.Render}
}

func TestCreateMakingRoom(t *testing.T) {
	w := tight(t, folderOf(t))
	var refused *room.RefusalError
	if _, err := w.Joined.Create(t.Context(), large(t)); !errors.As(err, &refused) || len(refused.MakeRoom.Moves) != 2 {
		t.Fatalf("create without moves: %v", err)
	}
	before := w.Nodes()
	dry := large(t)
	dry.MakeRoom = true
	would, err := w.Joined.WouldCreate(t.Context(), dry)
	if err != nil || would.MakeRoom == nil || len(would.MakeRoom.Moves) != 2 || would.MakeRoom.Price.Bytes < gib ||
		!would.Placement.Nodes.Equal(nodes("0")) {
		t.Fatalf("dry run: %+v, %v", would.MakeRoom, err)
	}
	if diff := cmp.Diff(before, w.Nodes()); diff != "" {
		t.Errorf("the dry run changed the host:\n%s", diff)
	}
	made, moves, err := w.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{})
	if err != nil || len(made.Shortfalls()) > 0 || len(moves) != 2 {
		t.Fatalf("%v %v, moves %+v", err, made.Shortfalls(), moves)
	}
	for name, on := range map[string]string{"new": "0", "a": "1", "b": "1"} {
		w.CheckInPlace(t, name)
		if p := w.MustGuest(t, name).Placement; !p.Nodes.Equal(nodes(on)) {
			t.Errorf("%s is on nodes %s, want %s", name, p.Nodes, on)
		}
	}
	w.CheckSettled(t)
	entries, _ := w.Joined.Journal.Entries()
	var kinds []journal.Kind
	for _, e := range entries {
		if e.Kind != journal.MoveStep {
			kinds = append(kinds, e.Kind)
		}
	}
	want := []journal.Kind{journal.EffectCreate.Began(), journal.MoveBegan, journal.MoveDone, journal.MoveBegan,
		journal.MoveDone, journal.EffectCreate.Done()}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// A guest that fits is created without moves.
func TestCreateMakingRoom_MovesNobodyWithoutNeed(t *testing.T) {
	w := tight(t, folderOf(t))
	r := large(t)
	r.Spec.Memory = gib
	made, moves, err := w.Joined.CreateMakingRoom(t.Context(), r, move.Request{})
	if err != nil || len(moves) > 0 || made.MakeRoom != nil {
		t.Errorf("%v, moves %+v", err, moves)
	}
}

// Guests whose mode is off stay; the refusal says that no moves help.
func TestCreateMakingRoom_RefusesWhatThePolicyForbids(t *testing.T) {
	w := tight(t, folderOf(t))
	w.Joined.Policy.Balance.Mode = policy.ModeOff
	_, moves, err := w.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{})
	var refused *room.RefusalError
	if !errors.As(err, &refused) || refused.MakeRoom.Obstacle != room.NoMoves || len(moves) > 0 {
		t.Errorf("%v, moves %+v", err, moves)
	}
	w.CheckSettled(t)
	if entries, _ := w.Joined.Journal.Entries(); len(entries) > 0 {
		t.Errorf("recorded: %+v", entries)
	}
}

// roomBreakages are those of a create, and guests that end meanwhile.
var roomBreakages = append(breakages[:3:3],
	breakage{Name: "both nodes fill up", Fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error { w.Fill(0, 0); w.Fill(1, 0); return nil })
	}},
	breakage{Name: "a guest that makes room ends", Fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error { w.Vanish("a"); return nil })
	}},
	breakage{Name: "the new guest ends at once", Fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error { w.Vanish("new"); return nil })
	}},
	breakage{Name: "it never starts", Fault: func(world, int, func()) fake.Fault {
		return fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Start" {
				return errLost
			}
			return nil
		}}
	}})

// Whichever call fails, in whatever way: the new guest runs and the others made room;
// or it does not run, and those that still run are back. Results name every exception.
func TestCreateMakingRoom_SurvivesABreakAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	clean := tight(t, folder)
	if _, _, err := clean.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{}); err != nil {
		t.Fatal(err)
	}
	calls := clean.Calls()
	step := 1
	if testing.Short() {
		step = 7
	}
	for _, b := range append(roomBreakages, away) {
		t.Run(b.Name, func(t *testing.T) {
			for i := 0; i < len(calls); i += step {
				brokenRoom(t, tight(t, folder), b, calls[i])
			}
		})
	}
}

func brokenRoom(t *testing.T, w world, b breakage, call fake.Call) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.Inject(b.Fault(w, call.N, cancel))
	made, moves, err := w.Joined.CreateMakingRoom(ctx, large(t), move.Request{})
	w.Inject(fake.Fault{})
	w.Drain()
	w.CheckSettled(t)
	if err == nil && len(made.Shortfalls()) == 0 {
		if _, there := w.Guest("new"); there { // it may have ended after it was verified
			w.CheckInPlace(t, "new")
		}
		return
	}
	if _, there := w.Guest("new"); there {
		return // it was started, and reported as it is
	}
	if err == nil {
		t.Errorf("call %d (%s): no guest and no error", call.N, call.Method)
	}
	away := map[string]bool{} // guests that stay where they made room, as reported
	for _, m := range moves {
		took := m.End == journal.MoveDone || m.End == journal.MovePartial || m.End == ""
		back := m.Back != nil && m.Back.Moved != nil && m.Back.Moved.End == journal.MoveUndone
		away[m.Move.Guests[0].Guest] = took && !back || m.End == journal.MoveFailed
	}
	for _, name := range []string{"a", "b"} {
		g, runs := w.Guest(name)
		at := topology.MemoryByNode{}
		for _, r := range g.Seen.Ranges {
			for node, bytes := range r.ByNode {
				at[node] += bytes
			}
		}
		if runs && g.State == "running" && !away[name] && at[0] < 500*mib {
			t.Errorf("call %d (%s): %s is on %v, and no result says so: %v", call.N, call.Method, name, at, err)
		}
	}
	if _, err := w.Joined.Recover(t.Context(), move.Request{By: "restart", Journal: w.Joined.Journal}); err != nil {
		t.Errorf("call %d (%s): recovering: %v", call.N, call.Method, err)
	}
	w.CheckSettled(t)
}

// Killed at any call: the next command finishes the interrupted move or rolls it back,
// and closes the creation in the journal. The new guest can then be created.
func TestCreateMakingRoom_KilledAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	clean := tight(t, folder)
	if _, _, err := clean.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{}); err != nil {
		t.Fatal(err)
	}
	calls := clean.Calls()
	step := 1
	if testing.Short() {
		step = 7
	}
	for i := 0; i < len(calls); i += step {
		w := tight(t, folder)
		w.Inject(before(calls[i].N, func() error { runtime.Goexit(); return nil }))
		killed(func() { _, _, _ = w.Joined.CreateMakingRoom(context.Background(), large(t), move.Request{}) })
		w.Inject(fake.Fault{})
		next := reborn(w, self)
		if err := next.Joined.CloseInterrupted(t.Context()); err != nil {
			t.Fatal(err)
		}
		request := move.Request{By: "restart", Journal: next.Joined.Journal}
		if _, err := next.Joined.Recover(t.Context(), request); err != nil {
			t.Errorf("call %d (%s): %v", calls[i].N, calls[i].Method, err)
		}
		next.CheckSettled(t)
		if _, there := next.Guest("new"); there {
			continue
		}
		if _, _, err := next.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{}); err != nil {
			t.Errorf("call %d (%s): the next create: %v", calls[i].N, calls[i].Method, err)
		}
		next.CheckSettled(t)
	}
}

// The room of the new guest is reserved while others move: nobody else gets it.
func TestCreateMakingRoom_NobodyElseGetsTheRoom(t *testing.T) {
	w := tight(t, folderOf(t))
	other := spec(t, guest.Spec{Name: "other", VCPUs: 1, Memory: 3 * gib, Limits: guest.Limits{MaxNodes: 1}})
	tried := 0
	w.Inject(fake.Fault{Before: func(c fake.Call) error {
		if c.Method != "Move" || tried > 0 {
			return nil
		}
		tried++
		request := operate.CreateRequest{Spec: other, Render: operatetest.Render}
		_, err := w.Joined.WouldCreate(context.Background(), request)
		var refused *room.RefusalError
		if !errors.As(err, &refused) {
			t.Errorf("another VM would get the room: %v", err)
		}
		return nil
	}})
	if _, _, err := w.Joined.CreateMakingRoom(t.Context(), large(t), move.Request{}); err != nil || tried == 0 {
		t.Errorf("%v, tried %d times", err, tried)
	}
}
