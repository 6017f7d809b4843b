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

// passes lets time pass.
func passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A disk that fills up while a setting is changed, and then a kill: what the
// setting was is in the journal by then, and the next daemon gives it back.
func TestWhatASettingWasIsKeptBeforeItIsChanged(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing, s.Took = "1", time.Minute })
		w.busy("a", "1", "4-7")
		w.start()
		passes(30 * time.Second)
		began, ended := w.settings.Did()
		if len(began) != 1 || len(ended) != 0 {
			t.Fatalf("began %v, ended %v: the test shows nothing", began, ended)
		}
		if held := journal.Lasting(w.entries()); len(held) != 1 || held[0].Setting == nil ||
			held[0].Setting.Former != "1" {
			t.Errorf("while it is being changed the journal has %+v", held)
		}
		w.full.Store(true)
		passes(time.Minute)
		if w.balancing() != "0" {
			t.Fatal("it was not switched off, the test shows nothing")
		}
		w.end()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "0" }) // a killed one gives nothing back
		w.full.Store(false)
		w.start()
		passes(time.Minute)
		w.end()
		if w.balancing() != "1" {
			t.Errorf("the next daemon left it at %s: %+v", w.balancing(), w.entries())
		}
	})
}

// What cannot be written down is not changed; the status says so, and it is
// tried again once there may be room.
func TestNoSettingIsChangedThatCannotBeKept(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		everyRival(w)
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

// A value that was written down, and a change that then failed: nothing is
// given back, whatever others set in the meantime.
func TestAChangeThatFailedIsNotGivenBack(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(
			func(s *fake.Settings) { s.Kernel.NUMABalancing, s.Fails = "1", errors.New("read-only file system") })
		w.busy("a", "1", "4-7")
		w.start()
		passes(time.Minute)
		if began, _ := w.settings.Did(); len(began) != 1 {
			t.Fatalf("tried %v, the test shows nothing", began)
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

// A daemon that was killed between writing down and changing: the next one finds
// that nothing was changed, and does not undo what others set after that.
func TestAChangeThatWasNeverMadeIsNotGivenBack(t *testing.T) {
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

// Whoever sets it while the daemon has it off keeps what they set.
func TestWhatOthersSetSinceIsNotOverwritten(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "1" })
		w.busy("a", "1", "4-7")
		w.start()
		passes(time.Minute)
		if w.balancing() != "0" {
			t.Fatal("it was not switched off, the test shows nothing")
		}
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "2" })
		passes(time.Minute)
		w.end()
		if w.balancing() != "2" {
			t.Errorf("it was set to %s", w.balancing())
		}
	})
}
