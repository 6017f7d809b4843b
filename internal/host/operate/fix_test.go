package operate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// full is a journal on a full disk.
func full(int, journal.Entry) error { return errors.New("no space left on device") }

func TestFix_JournalHasTheFormerValueBeforeTheChange(t *testing.T) {
	for _, c := range []struct {
		remedy        plan.Remedy
		path          string
		former, value string
	}{
		{balancingOff, plan.NUMABalancingPath, "3", "2"},
		{plan.Remedy{Kind: plan.KSMWithinNodes}, plan.KSMAcrossNodesPath, "1", "0"},
	} {
		h, k, b := fixing(t, 0)
		want := &journal.SettingChange{Path: c.path, Former: c.former, Value: c.value, Held: true}
		k.Wrote = func() {
			if len(b.Recorded) != 1 || b.Recorded[0].Kind != "setting-began" ||
				cmp.Diff(want, b.Recorded[0].Setting) != "" {
				t.Errorf("%s: when it is written, the journal has %+v", c.remedy.Kind, b.Recorded)
			}
		}
		f, err := h.Fix(t.Context(), operate.FixRequest{Remedy: c.remedy, Held: true})
		if err != nil || f.Former != c.former || k.Values[c.path] != c.value ||
			!strings.Contains(f.What, "was "+c.former+", is "+c.value) {
			t.Errorf("%s: %+v, %v; now %v", c.remedy.Kind, f, err, k.Values)
		}
		if len(b.Recorded) != 2 {
			t.Fatalf("%s: %+v", c.remedy.Kind, b.Recorded)
		}
		began, done := b.Recorded[0], b.Recorded[1]
		if done.Kind != "setting-done" || done.ID != began.ID || done.ID == "" || done.By != "alice (uid 1000)" ||
			began.By != done.By ||
			began.Why != c.remedy.Why {
			t.Errorf("%s: began %+v, done %+v", c.remedy.Kind, began, done)
		}
	}
}

// Whichever call fails: the setting is what it was or what it should be, the
// journal has no beginning without an end, and an error that says that nothing
// was changed is true.
func TestFix_Faults(t *testing.T) {
	restore := plan.Remedy{
		Kind:  plan.RestoreSetting,
		Path:  plan.NUMABalancingPath,
		From:  "3",
		Value: "1",
		Why:   "the daemon stops",
	}
	for _, remedy := range []plan.Remedy{balancingOff, {Kind: plan.KSMWithinNodes}, restore,
		{Kind: plan.ExcludeFromNumad, Guest: "a", PID: 7}} {
		for n := 1; n <= 2; n++ {
			h, k, b := fixing(t, n)
			before := fmt.Sprint(k.Values)
			_, err := h.Fix(t.Context(), operate.FixRequest{Remedy: remedy})
			if k.Calls < n {
				continue
			}
			if !errors.Is(err, errKernel) {
				t.Errorf("%s, call %d: %v", remedy.Kind, n, err)
			}
			if fmt.Sprint(k.Values) != before || len(journal.Open(b.Recorded)) > 0 {
				t.Errorf("%s, call %d: settings %v, journal %+v", remedy.Kind, n, k.Values, b.Recorded)
			}
			if errors.Is(err, operate.ErrNotBegun) != (n == 1 && remedy.Kind != plan.ExcludeFromNumad) {
				t.Errorf("%s, call %d: %v", remedy.Kind, n, err)
			}
		}
	}
}

func TestFix_ChangesNothingThatCannotBeRecorded(t *testing.T) {
	h, k, _ := fixing(t, 0)
	h.Journal = &book{Fail: full}
	if _, err := h.Fix(t.Context(), operate.FixRequest{Remedy: balancingOff}); !errors.Is(err, operate.ErrNotBegun) {
		t.Errorf("with a full journal: %v", err)
	}
	h.Journal = nil
	if _, err := h.Fix(t.Context(), operate.FixRequest{Remedy: balancingOff}); !errors.Is(err, operate.ErrNotBegun) {
		t.Errorf("without a journal: %v", err)
	}
	if k.Values[plan.NUMABalancingPath] != "3" {
		t.Errorf("changed: %v", k.Values)
	}
}

// A full disk does not prevent the restoration of a setting.
func TestFix_RestoresWithAFullJournal(t *testing.T) {
	h, k, _ := fixing(t, 0)
	h.Journal = &book{Fail: full}
	_, err := h.Fix(
		t.Context(),
		operate.FixRequest{
			Remedy: plan.Remedy{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: "3", Value: "1"},
		},
	)
	if err == nil || k.Values[plan.NUMABalancingPath] != "1" {
		t.Errorf("%v; %v", err, k.Values)
	}
}

func TestFix_RefusesARemedyForAnotherValue(t *testing.T) {
	h, k, b := fixing(t, 0)
	k.Values[plan.NUMABalancingPath] = "1"
	_, err := h.Fix(t.Context(), operate.FixRequest{Remedy: balancingOff})
	if !errors.Is(err, operate.ErrNotBegun) ||
		!strings.Contains(err.Error(), "was 3 when this was decided, and is 1 now") ||
		k.Calls != 1 ||
		len(b.Recorded) > 0 {
		t.Errorf("%v after %d calls: %+v", err, k.Calls, b.Recorded)
	}
	if _, err := h.Fix(t.Context(), operate.FixRequest{Remedy: plan.Remedy{Kind: "teleport"}}); !errors.Is(
		err,
		operate.ErrNotBegun,
	) {
		t.Errorf("a remedy that is not known: %v", err)
	}
}

// An effect whose process ended without an end gets one; that of a process that
// runs is left alone.
func TestCloseInterrupted(t *testing.T) {
	h, _, b := fixing(t, 0)
	alive, dead := journal.Process{PID: self.PID, StartTicks: self.StartTicks}, journal.Process{PID: 1, StartTicks: 1}
	for id, p := range map[string]*journal.Process{"alive": &alive, "dead": &dead, "unknown": nil} {
		b.Recorded = append(
			b.Recorded,
			journal.Entry{
				At:      time.Unix(1, 0),
				Kind:    journal.EffectBind.Began(),
				ID:      id,
				Effect:  journal.EffectBind,
				Guests:  []string{"a"},
				What:    "bind a",
				Process: p,
			},
		)
	}
	for range 2 {
		if err := h.CloseInterrupted(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var closed []string
	for _, e := range b.Recorded[3:] {
		if e.Kind != "bind-interrupted" || e.What != "bind a" || e.Guests[0] != "a" || e.Why == "" {
			t.Errorf("%+v", e)
		}
		closed = append(closed, e.ID)
	}
	if open := journal.Open(b.Recorded); len(closed) != 2 || len(open) != 1 || open[0].ID != "alive" {
		t.Errorf("closed %v, open %+v", closed, open)
	}
	if !h.Ledger.Alive(claim.Process(alive)) {
		t.Error("the test's own process is not alive: this run tested nothing")
	}
}
