package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// pinned is a guest's vCPU pins and the nodes of its pages.
func pinned(g inventory.Guest) (vcpus string, memory topology.NodeSet) {
	for _, r := range g.Seen.Ranges {
		for id, bytes := range r.ByNode {
			if bytes > 0 {
				memory = memory.With(id)
			}
		}
	}
	for _, t := range g.Seen.Threads {
		if t.VCPU != nil {
			vcpus += fmt.Sprintf("vCPU %d on %s; ", *t.VCPU, t.Affinity)
		}
	}
	return vcpus, memory
}

// isBack checks that a guest's vCPUs run where they did, and its memory is on
// nodes where it was.
func isBack(t *testing.T, where string, was, now inventory.Guest) {
	t.Helper()
	vcpus, memory := pinned(was)
	vcpusNow, memoryNow := pinned(now)
	if vcpusNow != vcpus || !memoryNow.SubsetOf(memory) || memoryNow.IsEmpty() {
		t.Errorf("%s: %smemory on %s; it was %smemory on %s", where, vcpusNow, memoryNow, vcpus, memory)
	}
}

// bound is a world with an unmanaged guest g that a user bound to other nodes.
func bound(t *testing.T) (w world, b *book, was inventory.Guest) {
	t.Helper()
	b = &book{}
	w, _ = effectWorld(t, b)
	was = w.MustGuest(t, "g")
	_, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("2")})
	if err != nil {
		t.Fatal(err)
	}
	if _, memory := pinned(w.MustGuest(t, "g")); !memory.Equal(nodes("2")) {
		t.Fatal("the bind changed nothing: this run tested nothing")
	}
	return w, b, was
}

func TestUndo_BindOfAnUnmanagedGuest(t *testing.T) {
	w, b, was := bound(t)
	began := b.Recorded[0].ID
	u, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
	if err != nil || u.Of.ID != began || u.Moved == nil || u.Moved.End != journal.MoveUndone {
		t.Fatalf("%v: %+v", err, u)
	}
	now := w.MustGuest(t, "g")
	isBack(t, "undone", was, now)
	if now.Placement != nil || !now.Seen.Threads[0].Mems.Equal(was.Seen.Threads[0].Mems) {
		t.Errorf("placement %v, memory from nodes %s; it was from %s", now.Placement, now.Seen.Threads[0].Mems,
			was.Seen.Threads[0].Mems)
	}
	w.CheckSettled(t)
	last := b.Recorded[len(b.Recorded)-1]
	if last.Kind != journal.MoveUndone || last.Undoes != began || last.By != "alice (uid 1000)" || last.Fails() {
		t.Errorf("the journal ends with %+v", last)
	}
	if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{}); !errors.Is(err, move.ErrCannotUndo) {
		t.Errorf("a second undo: %v", err)
	}
	if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{ID: began}); !errors.Is(err, move.ErrCannotUndo) ||
		!strings.Contains(err.Error(), "undone already") {
		t.Errorf("a second undo by name: %v", err)
	}
	if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{ID: last.ID}); !errors.Is(err, move.ErrCannotUndo) {
		t.Errorf("undo of the undo: %v", err)
	}
}

func TestUndo_BindOfEveryKindOfGuest(t *testing.T) {
	for _, k := range kinds {
		w := misplaced(t, k, folderOf(t))
		was := w.MustGuest(t, "g")
		if b, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("0,2")}); err != nil ||
			len(b.Plan.Steps) == 0 {
			t.Fatalf("%s: %v: %+v", k.Name, err, b.Plan)
		}
		w.Joined.By = "alice (uid 1000)"
		entries, err := w.Joined.Journal.Entries()
		if err != nil {
			t.Fatal(err)
		}
		u, err := w.Joined.Undo(t.Context(), move.UndoRequest{ID: entries[0].ID})
		if err != nil || u.Moved.End != journal.MoveUndone {
			t.Errorf("%s: %v: %+v", k.Name, err, u.Moved)
			continue
		}
		isBack(t, k.Name, was, w.MustGuest(t, "g"))
		w.CheckSettled(t)
	}
}

func TestUndo_BindOfAPlacedGuest(t *testing.T) {
	w, b, _ := bound(t)
	first := w.MustGuest(t, "g")
	if _, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("1,3")}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	now := w.MustGuest(t, "g")
	if diff := cmp.Diff(first.Placement, now.Placement); diff != "" {
		t.Errorf("placement (-want +got):\n%s", diff)
	}
	isBack(t, "undone", first, now)
	w.CheckInPlace(t, "g")
	if u, err := w.Joined.Undo(t.Context(), move.UndoRequest{}); err != nil || u.Of.ID != b.Recorded[0].ID {
		t.Errorf("the bind before that: %v, %+v", err, u.Of)
	}
	w.CheckSettled(t)
}

func TestUndo_Move(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	m := planned(t, w, plan.MoveGuest, map[string]string{"g": "1"})
	placed := w.MustGuest(t, "g")
	moved, err := w.Joined.Move(t.Context(), move.Request{ID: "m1", Move: m, By: "balancer", Journal: b})
	if err != nil || !moved.Complete() {
		t.Fatalf("%v: %+v", err, moved)
	}
	if u, err := w.Joined.Undo(t.Context(), move.UndoRequest{ID: "m1"}); err != nil || u.Moved.End != journal.MoveUndone {
		t.Fatalf("%v: %+v", err, u.Moved)
	}
	isBack(t, "undone", placed, w.MustGuest(t, "g"))
	w.CheckSettled(t)
}

func TestUndo_RefusesChangedGuestsAndSettings(t *testing.T) {
	for name, change := range map[string]func(w world) error{
		"pinned by hand": func(w world) error { return w.PinVCPU(t.Context(), "g", 0, cpus("4-7")) },
		"placed again": func(w world) error {
			quiet := *w.Joined
			quiet.Journal = &book{}
			_, err := quiet.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("1")})
			return err
		},
	} {
		w, b, was := bound(t)
		if err := change(w); err != nil {
			t.Fatal(err)
		}
		entries, g := len(b.Recorded), w.MustGuest(t, "g")
		if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{}); !errors.Is(err, move.ErrChanged) ||
			!strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: %v", name, err)
		}
		if len(b.Recorded) != entries {
			t.Errorf("%s: recorded %+v", name, b.Recorded[entries:])
		}
		w.CheckUnchanged(t, g)
		if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{Force: true}); err != nil {
			t.Errorf("%s, by force: %v", name, err)
		}
		isBack(t, name+", by force", was, w.MustGuest(t, "g"))
		w.CheckSettled(t)
	}
}

func TestUndo_RefusesAGuestThatWasReplaced(t *testing.T) {
	w, _, _ := bound(t)
	if err := w.Replace(replacement); err != nil {
		t.Fatal(err)
	}
	for _, force := range []bool{false, true} {
		g := w.MustGuest(t, "g")
		if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{Force: force}); !errors.Is(err, move.ErrChanged) {
			t.Errorf("force %v: %v", force, err)
		}
		w.CheckUnchanged(t, g)
	}
	w.CheckSettled(t)
}

// Whichever call of an undo fails: an interrupted undo is resumed as an undo,
// and undoing again restores the guest's former state.
func TestUndo_SurvivesABreakAtEveryCall(t *testing.T) {
	clean, _, _ := bound(t)
	clean.Inject(fake.Fault{})
	if _, err := clean.Joined.Undo(t.Context(), move.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, call := range clean.Calls() {
		where := fmt.Sprintf("call %d (%s)", call.N, call.Method)
		w, b, was := bound(t)
		w.Inject(before(call.N, func() error { return errLost }))
		u, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
		w.Inject(fake.Fault{})
		undone := err == nil && u.Moved.End == journal.MoveUndone
		if _, err := w.Joined.Recover(t.Context(), move.Request{By: "restart", Journal: b}); err != nil {
			t.Errorf("%s: resuming it: %v", where, err)
		}
		if open := journal.InterruptedMoves(b.Recorded); len(open) > 0 {
			t.Errorf("%s: still open: %+v", where, open)
		}
		if _, again := w.Joined.Undo(t.Context(), move.UndoRequest{ID: b.Recorded[0].ID}); (again != nil) != undone {
			t.Errorf("%s: %v; undoing again: %v", where, err, again)
		}
		isBack(t, where, was, w.MustGuest(t, "g"))
		w.CheckSettled(t)
	}
}

// An undo whose process was killed is resumed as an undo.
func TestUndo_IsResumedAfterAKill(t *testing.T) {
	for n := 1; n <= 6; n++ {
		w, b, was := bound(t)
		written := len(b.Recorded)
		b.Fail = func(int, journal.Entry) error {
			if len(b.Recorded) >= written+n { // nothing more is recorded, as after kill -9
				return errLost
			}
			return nil
		}
		_, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
		b.Fail = nil
		if len(journal.InterruptedMoves(b.Recorded)) == 0 {
			break // it ended
		}
		if err == nil {
			t.Errorf("after %d entries: the end is not recorded, and no error", n)
		}
		all, err := w.Joined.Recover(t.Context(), move.Request{By: "restart", Journal: b})
		if err != nil || len(all) != 1 || all[0].End != journal.MoveUndone {
			t.Errorf("after %d entries: %v: %+v", n, err, all)
		}
		if last := b.Recorded[len(b.Recorded)-1]; last.Undoes != b.Recorded[0].ID || last.Fails() {
			t.Errorf("after %d entries: %+v", n, last)
		}
		isBack(t, fmt.Sprintf("after %d entries", n), was, w.MustGuest(t, "g"))
	}
}

func TestUndo_Setting(t *testing.T) {
	h, k, b := fixing(t, 0)
	if _, err := h.Fix(t.Context(), operate.FixRequest{Remedy: balancingOff}); err != nil {
		t.Fatal(err)
	}
	k.Values[plan.NUMABalancingPath] = "1"
	if _, err := h.Undo(t.Context(), move.UndoRequest{}); !errors.Is(err, move.ErrChanged) ||
		k.Values[plan.NUMABalancingPath] != "1" {
		t.Errorf("changed since: %v; %v", err, k.Values)
	}
	k.Values[plan.NUMABalancingPath] = "2"
	u, err := h.Undo(t.Context(), move.UndoRequest{})
	if err != nil || k.Values[plan.NUMABalancingPath] != "3" || !strings.Contains(u.What, "was 2, is 3") {
		t.Errorf("%v: %+v; %v", err, u, k.Values)
	}
	if last := b.Recorded[len(b.Recorded)-1]; last.Undoes != b.Recorded[0].ID || last.Kind != "setting-done" {
		t.Errorf("the journal ends with %+v", last)
	}
	k.Values[plan.NUMABalancingPath] = "1"
	b.Recorded = b.Recorded[:2]
	if _, err := h.Undo(t.Context(), move.UndoRequest{Force: true}); err != nil ||
		k.Values[plan.NUMABalancingPath] != "3" {
		t.Errorf("by force: %v; %v", err, k.Values)
	}
}

// Without an ID, Undo skips effects that cannot be undone.
func TestUndo_LastEffect(t *testing.T) {
	h, k, b := fixing(t, 0)
	if _, err := h.Fix(t.Context(), operate.FixRequest{Remedy: balancingOff}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []journal.Kind{journal.EffectRun.Began(), journal.EffectRun.Done()} {
		b.Recorded = append(b.Recorded,
			journal.Entry{Kind: kind, ID: "r", Effect: journal.EffectRun, By: "alice (uid 1000)"})
	}
	u, err := h.Undo(t.Context(), move.UndoRequest{})
	if err != nil || u.Of.ID != b.Recorded[0].ID || k.Values[plan.NUMABalancingPath] != "3" {
		t.Errorf("%v: %+v; %v", err, u.Of, k.Values)
	}
}

func TestUndo_Refusals(t *testing.T) {
	h, _, b := fixing(t, 0)
	add := func(e journal.Effect, id string, kinds ...journal.Kind) {
		for _, k := range kinds {
			b.Recorded = append(b.Recorded,
				journal.Entry{Kind: k, ID: id, Effect: e, Guests: []string{"web1"}, By: "alice (uid 1000)"})
		}
	}
	create, remove, run, bind := journal.EffectCreate, journal.EffectDelete, journal.EffectRun, journal.EffectBind
	add(create, "c", create.Began(), create.Done())
	add(remove, "d", remove.Began(), remove.Done())
	add(run, "r", run.Began(), run.Done())
	add(bind, "failed", bind.Began(), bind.Failed())
	add(bind, "open", bind.Began())
	for _, k := range []journal.Kind{journal.EffectMigrateIn.Began(), journal.EffectMigrateIn.Done()} {
		b.Recorded = append(b.Recorded, journal.Entry{Kind: k, ID: "m", Effect: journal.EffectMigrateIn,
			Guests: []string{"web1"}, Migration: &plan.Migration{Guest: "web1"}})
	}
	for id, want := range map[string]string{
		"m": "migrate it back",
		"c": "numavisor delete web1", "d": "numavisor create", "r": "ran a command", "failed": "made no lasting change",
		"open": "has not ended", "nowhere": `no effect or move "nowhere"`,
	} {
		if _, err := h.Undo(t.Context(), move.UndoRequest{ID: id}); !errors.Is(err, move.ErrCannotUndo) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", id, err, want)
		}
	}
	if u, err := h.Undo(t.Context(), move.UndoRequest{}); !errors.Is(err, move.ErrCannotUndo) || u.Of.ID != "" {
		t.Errorf("without an ID: %v, %+v", err, u.Of)
	}
	held := &journal.SettingChange{Path: "p", Former: "1", Value: "0", Held: true}
	for _, k := range []journal.Kind{journal.EffectSetting.Began(), journal.EffectSetting.Done()} {
		b.Recorded = append(b.Recorded,
			journal.Entry{Kind: k, ID: "h", Effect: journal.EffectSetting, Setting: held, By: "daemon"})
	}
	if _, err := h.Undo(t.Context(), move.UndoRequest{ID: "h"}); !errors.Is(err, move.ErrCannotUndo) ||
		!strings.Contains(err.Error(), "policy") {
		t.Errorf("a setting that the daemon holds: %v", err)
	}
}

// stored is the binding in the stored configuration of guest g.
func stored(t *testing.T, w world) string {
	t.Helper()
	binding, err := w.StoredBinding(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	return binding
}

func TestUndo_FirstBindRestoresTheStoredConfiguration(t *testing.T) {
	for _, k := range kinds {
		w := misplaced(t, k, folderOf(t))
		w.Joined.By = "alice (uid 1000)"
		former := stored(t, w)
		_, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("0,2")})
		if err != nil || stored(t, w) == former {
			t.Fatalf("%s: %v, or the bind left the stored configuration as it was", k.Name, err)
		}
		u, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
		if err != nil || len(u.Notes) > 0 {
			t.Errorf("%s: %v; notes %q, want none", k.Name, err, u.Notes)
		}
		if diff := cmp.Diff(former, stored(t, w)); diff != "" {
			t.Errorf("%s: the stored configuration (-want +got):\n%s", k.Name, diff)
		}
		w.CheckSettled(t)
	}
}

// A second bind and its undo are Numavisor's own changes: the first bind can be
// undone after them.
func TestUndo_FirstBindAfterOthersOfNumavisor(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	former := stored(t, w)
	for _, to := range []string{"2", "1,3"} {
		if _, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo(to)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(former, stored(t, w)); diff != "" {
		t.Errorf("the stored configuration (-want +got):\n%s", diff)
	}
}

func TestUndo_RefusesAStoredConfigurationThatWasChanged(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	former := stored(t, w)
	if _, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("2")}); err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(stored(t, w), `"memory_source":"anonymous"`, `"memory_source":"memfd"`, 1)
	if edited == stored(t, w) {
		t.Fatal("the edit changes nothing: this run tested nothing")
	}
	if err := w.RestoreBinding(t.Context(), "g", edited); err != nil {
		t.Fatal(err)
	}
	entries, g := len(b.Recorded), w.MustGuest(t, "g")
	_, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
	if !errors.Is(err, move.ErrChanged) || !strings.Contains(err.Error(), "--force") ||
		!strings.Contains(err.Error(), "stored configuration") {
		t.Errorf("error is %v, want move.ErrChanged that names the stored configuration and --force", err)
	}
	if len(b.Recorded) != entries || stored(t, w) != edited {
		t.Errorf("recorded %+v, stored %s", b.Recorded[entries:], stored(t, w))
	}
	w.CheckUnchanged(t, g)
	if _, err := w.Joined.Undo(t.Context(), move.UndoRequest{Force: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(former, stored(t, w)); diff != "" {
		t.Errorf("by force, the stored configuration (-want +got):\n%s", diff)
	}
}

// Nobody can tell what an interrupted bind left in the stored configuration, and
// what somebody else has written since: undo leaves it and says so.
func TestUndo_InterruptedBindLeavesTheStoredConfiguration(t *testing.T) {
	for _, force := range []bool{false, true} {
		w, b, was := bound(t)
		b.Recorded = b.Recorded[:1]
		former := b.Recorded[0].Move.Guests[0].Undo.StoredBinding
		b.Recorded[0].Process = nil // it was killed
		if err := w.Joined.CloseInterrupted(t.Context()); err != nil {
			t.Fatal(err)
		}
		bound := stored(t, w)
		u, err := w.Joined.Undo(t.Context(), move.UndoRequest{Force: force})
		if err != nil || len(u.Notes) == 0 != force {
			t.Errorf("force %v: %v; notes %q", force, err, u.Notes)
		}
		isBack(t, fmt.Sprintf("force %v", force), was, w.MustGuest(t, "g"))
		if now := stored(t, w); force && now != former {
			t.Errorf("by force, stored\n%s\nwant\n%s", now, former)
		} else if !force && !strings.Contains(bound, `"numatune"`) {
			t.Errorf("stored\n%s\nwant numatune as the bind left it", now)
		}
	}
}

// A move that fails at its first step, or is cancelled, goes back as an undo does.
func TestMove_RollbackRestoresTheStoredConfiguration(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	former := stored(t, w)
	m := planned(t, w, plan.MoveGuest, map[string]string{"g": "1"})
	ctx, cancel := context.WithCancelCause(t.Context())
	moved, err := w.Joined.Move(ctx, move.Request{ID: "m1", Move: m, By: "balancer", Journal: b,
		Progress: func(status.Moving) { cancel(move.ErrUndo) }})
	if !errors.Is(err, move.ErrUndo) || moved.End != journal.MoveUndone {
		t.Fatalf("%v: %+v", err, moved)
	}
	if diff := cmp.Diff(former, stored(t, w)); diff != "" {
		t.Errorf("the stored configuration (-want +got):\n%s", diff)
	}
}

// A stored configuration that is too large for the journal stays as the bind
// left it, and a note says so.
func TestUndo_LargeStoredConfigurationStays(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	large := strings.Replace(stored(t, w), `"memory_source":"anonymous"`,
		`"memory_source":"`+strings.Repeat("x", 64<<10)+`"`, 1)
	if err := w.RestoreBinding(t.Context(), "g", large); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g", Change: limitTo("2")}); err != nil {
		t.Fatal(err)
	}
	if size := len(b.Recorded[0].Move.Guests[0].Undo.StoredBinding); size > 0 {
		t.Errorf("the journal has %d bytes of it, want none", size)
	}
	left := stored(t, w)
	u, err := w.Joined.Undo(t.Context(), move.UndoRequest{})
	if err != nil || len(u.Notes) != 1 || !strings.Contains(left, `"numatune"`) {
		t.Errorf("%v; notes %q; stored %.200s", err, u.Notes, left)
	}
	if now := stored(t, w); !strings.Contains(now, `"numatune"`) {
		t.Errorf("stored %.300s, want it as the bind left it", now)
	}
}
