package operate_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// effects are all that a command does to guests and processes, each with a
// guest g, far from its memory, and a program that it finds.
var effects = map[journal.Effect]func(t *testing.T, w world, pid int) error{
	journal.EffectBind: func(t *testing.T, w world, _ int) error {
		t.Helper()
		_, err := elsewhere(t.Context(), w)
		return err
	},
	"bind process": func(_ *testing.T, w world, pid int) error {
		_, err := bindProcess(w, pid, "2")
		return err
	},
	journal.EffectCreate: func(t *testing.T, w world, _ int) error {
		t.Helper()
		_, err := w.Create(spec(t, guest.Spec{Name: "new", VCPUs: 2, Memory: 512 * mib, PageSize: 2 * mib}))
		return err
	},
	journal.EffectDelete: func(t *testing.T, w world, _ int) error {
		t.Helper()
		return w.Joined.Delete(t.Context(), operate.DeleteRequest{Name: "g", Force: true})
	},
	journal.EffectRun: func(t *testing.T, w world, _ int) error {
		t.Helper()
		n, err := w.Joined.PlaceNew(t.Context(), spec(t, guest.Spec{Name: "run-77", VCPUs: 1, Memory: mib}), "true")
		if err == nil {
			err = n.Starting()
		}
		return err
	},
}

// touches are the calls that change the host.
var touches = []string{"Record", "Configure", "Forget", "PinVCPU", "PinEmulator", "PinIOThread", "TuneLive",
	"RestoreBinding", "SetMems", "SetAffinity", "SetFilePolicy", "Move", "GrowPool", "ShrinkPool", "Start", "Remove"}

// Each effect is in the journal before anything is touched, with the user, and
// has one end that names the same effect.
func TestEffect_BeginsInTheJournalBeforeAnythingIsTouched(t *testing.T) {
	for name, do := range effects {
		b := &book{}
		w, pid := effectWorld(t, b)
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if slices.Contains(touches, c.Method) && len(b.Recorded) == 0 {
				t.Errorf("%s: %s before the journal has it", name, c.Method)
			}
			return nil
		}})
		if err := do(t, w, pid); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(b.Recorded) != 2 {
			t.Fatalf("%s: %+v", name, b.Recorded)
		}
		began, end := b.Recorded[0], b.Recorded[1]
		if !began.Begins() || end.Kind != end.Effect.Done() || end.ID != began.ID || end.Effect != began.Effect {
			t.Errorf("%s: began %+v, ended %+v", name, began, end)
		}
		for _, e := range b.Recorded {
			if e.By != "alice (uid 1000)" || len(e.Guests) != 1 || e.What == "" ||
				!strings.HasPrefix(string(name), string(e.Effect)) {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if began.Process == nil || began.Process.PID != self.PID || end.Process != nil {
			t.Errorf("%s: processes %v and %v", name, began.Process, end.Process)
		}
	}
}

// An effect that cannot be recorded does not begin: nothing is touched, and no
// claim remains.
func TestEffect_DoesNotBeginWithoutTheJournal(t *testing.T) {
	for name, do := range effects {
		w, pid := effectWorld(t, &book{Fail: full})
		g := w.MustGuest(t, "g")
		err := do(t, w, pid)
		if !errors.Is(err, operate.ErrNotBegun) || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range w.Calls() {
			if slices.Contains(touches, c.Method) {
				t.Errorf("%s: %s was called", name, c.Method)
			}
		}
		w.CheckUnchanged(t, g)
		w.CheckSettled(t)
	}
}

// An end that cannot be recorded is reported, and the effect stays open: its
// process ends, and it is closed as interrupted.
func TestEffect_EndThatCannotBeRecorded(t *testing.T) {
	for name, do := range effects {
		b := &book{Fail: func(n int, _ journal.Entry) error {
			if n == 2 {
				return errLost
			}
			return nil
		}}
		w, pid := effectWorld(t, b)
		if err := do(t, w, pid); !errors.Is(err, errLost) {
			t.Errorf("%s: %v", name, err)
		}
		if open := journal.Open(b.Recorded); len(open) != 1 {
			t.Errorf("%s: open %+v", name, open)
		}
	}
}

// An effect that fails at its first touch has failed; nothing is left open.
func TestEffect_FailureIsRecorded(t *testing.T) {
	for name, do := range effects {
		b := &book{}
		w, pid := effectWorld(t, b)
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if slices.Contains(touches, c.Method) {
				return errLost
			}
			return nil
		}})
		if err := do(t, w, pid); err == nil && name != journal.EffectRun {
			t.Errorf("%s: no error", name)
		}
		end := b.Recorded[len(b.Recorded)-1]
		if name != journal.EffectRun &&
			(end.Kind != end.Effect.Failed() || !strings.Contains(end.Why, errLost.Error())) {
			t.Errorf("%s: %+v", name, end)
		}
		if open := journal.Open(b.Recorded); len(open) > 0 {
			t.Errorf("%s: open %+v", name, open)
		}
	}
}

// A bind records how the guest was bound before.
func TestEffect_BindRecordsTheFormerBinding(t *testing.T) {
	b := &book{}
	w, _ := effectWorld(t, b)
	g := w.MustGuest(t, "g")
	bound, err := elsewhere(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Recorded[0].Move
	if m == nil || len(m.Guests) != 1 {
		t.Fatalf("%+v", b.Recorded[0])
	}
	var was topology.NodeSet
	for _, thread := range g.Seen.Threads {
		was = was.Union(thread.Mems)
	}
	u := m.Guests[0].Undo
	if diff := cmp.Diff(g.Config.Pins, u.Pins); diff != "" || u.Placement != nil || !u.Allowed.Equal(was) ||
		!u.VCPUNodes.Equal(nodes("3")) ||
		cmp.Diff(bound.Before.MemoryByNode, u.Memory) != "" {
		t.Errorf("undo %+v (pins -want +got: %s)", u, diff)
	}
	if !m.Guests[0].Placement.Nodes.SubsetOf(nodes("0,2")) || m.Guests[0].Basis.PID != g.PID ||
		m.Kind != plan.MoveGuest {
		t.Errorf("move %+v", m)
	}
	if b.Recorded[1].Moved == 0 {
		t.Errorf("the end does not say how much was copied: %+v", b.Recorded[1])
	}
	before := len(b.Recorded)
	if _, err := w.Bind("g"); err != nil || len(b.Recorded) != before {
		t.Errorf("a bind with nothing to do is recorded: %v, %+v", err, b.Recorded[before:])
	}
}
