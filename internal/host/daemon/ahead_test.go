package daemon_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

func (w *world) balancing() string {
	now, _ := w.settings.ReadSetting(plan.NUMABalancingPath)
	return now
}

// passes advances the clock.
func passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// The disk fills up while a setting is changed, and then the daemon is killed:
// the journal already has the setting's former value, and the next daemon
// restores it.
func TestSettings_RecordTheFormerValueFirst(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing, s.Took = "1", time.Minute })
		w.busy("a", "1", "4-7")
		w.start()
		passes(30 * time.Second)
		began, ended := w.settings.Did()
		if len(began) != 1 || len(ended) != 0 {
			t.Fatalf("began %v, ended %v: this run tested nothing", began, ended)
		}
		if held := journal.Lasting(w.entries()); len(held) != 1 || held[0].Setting == nil ||
			held[0].Setting.Former != "1" {
			t.Errorf("during the change the journal has %+v", held)
		}
		w.full.Store(true)
		passes(time.Minute)
		if w.balancing() != "0" {
			t.Fatal("the daemon did not switch it off: this run tested nothing")
		}
		w.end()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "0" }) // a killed daemon restores nothing
		w.full.Store(false)
		w.start()
		passes(time.Minute)
		w.end()
		if w.balancing() != "1" {
			t.Errorf("the next daemon left it at %s: %+v", w.balancing(), w.entries())
		}
	})
}

// A setting whose former value cannot be recorded is not changed; the status
// says so, and the daemon tries again later.
func TestSettings_UnrecordableIsNotChanged(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		everyCompetitor(w)
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NumadRunning = false })
		w.busy("a", "1", "4-7")
		w.start()
		defer w.end()
		w.full.Store(true)
		passes(4 * time.Minute)
		if began, _ := w.settings.Did(); len(began) != 0 {
			t.Errorf("changed with a full disk: %v", began)
		}
		for _, competitor := range []string{"kernel NUMA balancing", "KSM across nodes"} {
			if a := w.answer(competitor); !strings.Contains(a, "not begun") || !strings.Contains(a, "no space left") {
				t.Errorf("%s: the status says %q", competitor, a)
			}
		}
		w.full.Store(false)
		passes(10 * time.Minute)
		if now, _ := w.settings.On(w.Host).Settings(); now.NUMABalancing != "0" || now.KSMAcrossNodes != "0" {
			t.Errorf("with room again: %+v", now)
		}
		if began, _ := w.settings.Did(); len(began) != 2 {
			t.Errorf("changed: %v", began)
		}
	})
}

// The former value was recorded, and then the change failed: the daemon
// restores nothing, whatever others set in the meantime.
func TestSettings_FailedChangeIsNotRestored(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(
			func(s *fake.Settings) { s.Kernel.NUMABalancing, s.Fails = "1", errors.New("read-only file system") })
		w.busy("a", "1", "4-7")
		w.start()
		passes(time.Minute)
		if began, _ := w.settings.Did(); len(began) != 1 {
			t.Fatalf("tried %v: this run tested nothing", began)
		}
		if held := journal.Lasting(w.entries()); len(held) != 0 {
			t.Errorf("the journal still has %+v", held)
		}
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing, s.Fails = "0", nil }) // an operator
		passes(time.Minute)
		w.end()
		if w.balancing() != "0" {
			t.Errorf("it was set to %s: %+v", w.balancing(), w.entries())
		}
	})
}

// The daemon was killed between recording the value and changing it: the next
// daemon finds that nothing was changed, and does not undo what others set
// after that.
func TestSettings_UnmadeChangeIsNotRestored(t *testing.T) {
	for _, now := range []string{"1", "2"} {
		within(t, square, auto("a"), func(t *testing.T, w *world) {
			t.Helper()
			err := record.Journal{
				Folder: w.folder,
			}.Append(
				journal.Entry{
					At:      time.Now(),
					Kind:    journal.EffectSetting.Began(),
					Effect:  journal.EffectSetting,
					ID:      "s",
					What:    "from 1 to 0",
					Setting: &journal.SettingChange{Path: plan.NUMABalancingPath, Former: "1", Value: "0", Held: true},
				},
			)
			if err != nil {
				t.Fatal(err)
			}
			w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = now })
			w.start()
			if held := journal.Lasting(w.entries()); len(held) != 0 {
				t.Errorf("it is %s, and the journal still has %+v", now, held)
			}
			w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "0" }) // an operator
			passes(time.Minute)
			w.end()
			if w.balancing() != "0" {
				t.Errorf("it was %s, and was set to %s", now, w.balancing())
			}
		})
	}
}

// A value that another program sets while the daemon has the setting off stays.
func TestSettings_OthersValuesStay(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "1" })
		w.busy("a", "1", "4-7")
		w.start()
		passes(time.Minute)
		if w.balancing() != "0" {
			t.Fatal("the daemon did not switch it off: this run tested nothing")
		}
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "2" })
		passes(time.Minute)
		w.end()
		if w.balancing() != "2" {
			t.Errorf("it was set to %s", w.balancing())
		}
	})
}
