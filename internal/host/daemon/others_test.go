package daemon_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// everyCompetitor has all competitors on a host, and a policy that changes their
// settings.
func everyCompetitor(w *world) {
	w.settings.Say(func(s *fake.Settings) {
		s.Kernel.NUMABalancing, s.Kernel.NumadRunning, s.Kernel.KSMRun, s.Kernel.KSMAcrossNodes = "1", true, "1", "1"
	})
}

func answering(names ...string) policy.Policy {
	p := auto(names...)
	p.Movers = policy.Movers{KernelBalancing: policy.AnswerOff, Numad: policy.AnswerExclude, KSM: policy.AnswerWithin}
	return p
}

// answer is the status's response to a competitor; empty: no such competitor.
func (w *world) answer(name string) string {
	w.t.Helper()
	for _, r := range w.status().Competitors {
		if r.Name == name {
			return r.Answer
		}
	}
	return ""
}

// A setting takes a minute to change: samples go on, one a second, and the
// status is answered at once. Settings are changed one after the other, each
// once.
func TestSettings_SlowChangeDelaysNothing(t *testing.T) {
	within(t, square, answering("a", "b"), func(t *testing.T, w *world) {
		t.Helper()
		everyCompetitor(w)
		w.settings.Say(func(s *fake.Settings) { s.Took = time.Minute })
		w.busy("a", "1", "4-7")
		w.busy("b", "2", "8-11")
		w.start()
		defer w.end()
		for seconds := 1; seconds <= 240; seconds++ {
			time.Sleep(time.Second)
			synctest.Wait()
			// The first two are taken at the start: before the VMs are known, and after.
			if n := w.status().Totals.Samples; n != uint64(seconds+2) {
				t.Fatalf("%d samples after %d s", n, seconds)
			}
			began, ended := w.settings.Did()
			cut := 0
			for _, what := range began {
				if strings.HasPrefix(what, "numad") && !slices.Contains(ended, what) {
					cut++ // numad has 10 s to answer
				}
			}
			if on := len(began) - len(ended) - cut; on > 1 {
				t.Fatalf("after %d s %d are in progress: %v, ended %v", seconds, on, began, ended)
			}
			if seconds == 30 && !strings.HasPrefix(w.answer("kernel NUMA balancing"), "being disabled") {
				t.Errorf("while it is being disabled: %q", w.answer("kernel NUMA balancing"))
			}
		}
		_, ended := w.settings.Did()
		slices.Sort(ended)
		if !slices.Equal(ended, []string{"balancing 0", "ksm"}) {
			t.Errorf("done: %v", ended)
		}
		if competitors := w.status().Competitors; len(competitors) != 1 ||
			!strings.Contains(competitors[0].Answer, "could not be excluded from numad: a, b") {
			t.Errorf("remaining competitors: %+v", competitors)
		}
	})
}

// Whenever the daemon ends, it stops waiting for numad, and restores kernel
// balancing, even if it is just switching it off.
func TestStop_RestoresASettingInProgress(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 2 * time.Second, 45 * time.Second, 100 * time.Second,
		150 * time.Second, 3 * time.Minute} {
		within(t, square, answering("a"), func(t *testing.T, w *world) {
			t.Helper()
			everyCompetitor(w)
			w.settings.Say(func(s *fake.Settings) { s.Took = time.Minute })
			w.busy("a", "1", "4-7")
			w.start()
			time.Sleep(after)
			synctest.Wait()
			began := time.Now()
			w.end()
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("stopped after %v: took %v", after, took)
			}
			now, _ := w.settings.On(w.Host).Settings()
			_, changed := w.settings.Did()
			if now.NUMABalancing != "1" {
				t.Errorf("stopped after %v: kernel.numa_balancing is left at %s: %v", after, now.NUMABalancing, changed)
			}
			notes := w.entries(journal.EffectSetting.Done())
			balancingTo := func(value string) bool {
				return slices.ContainsFunc(notes, func(e journal.Entry) bool {
					return e.Setting.Path == plan.NUMABalancingPath && e.Setting.Value == value
				})
			}
			off, back := balancingTo("0"), balancingTo("1")
			if off != slices.Contains(changed, "balancing 0") || back != off {
				t.Errorf("stopped after %v: changed %v, noted %+v", after, changed, notes)
			}
		})
	}
}

// A killed daemon restores nothing: the next one does, when it ends.
func TestStart_RestoresSettingsOfAKilledDaemon(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		everyCompetitor(w)
		w.busy("a", "1", "4-7")
		w.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		balancing := func() string {
			now, _ := w.settings.On(w.Host).Settings()
			return now.NUMABalancing
		}
		if balancing() != "0" {
			t.Fatal("the daemon did not switch it off: this run tested nothing")
		}
		w.full.Store(true) // a killed daemon does not do this
		w.end()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "0" })
		w.full.Store(false)
		w.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if balancing() != "0" {
			t.Error("it was restored while the policy wants it off")
		}
		w.end()
		if balancing() != "1" {
			t.Errorf("it is left at %s", balancing())
		}
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "0" }) // by an operator
		w.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.end()
		if balancing() != "0" {
			t.Errorf("it was restored twice: %s", balancing())
		}
	})
}

func TestStop_DoesNotWaitForNumad(t *testing.T) {
	p := answering("a")
	p.Movers = policy.Movers{Numad: policy.AnswerExclude}
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		everyCompetitor(w)
		w.settings.Say(func(s *fake.Settings) { s.Took = time.Hour })
		w.busy("a", "1", "4-7")
		w.start()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if began, _ := w.settings.Did(); len(began) != 1 {
			t.Fatalf("the daemon does not wait for numad: this run tested nothing: %v", began)
		}
		began := time.Now()
		w.end()
		if took := time.Since(began); took > 0 {
			t.Errorf("waited %v", took)
		}
	})
}

// If numad does not exclude a guest, the status says so, the daemon retries now
// and then, and the journal has each outcome once.
func TestNumad_FailedExclusionIsRetried(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NumadRunning, s.Fails = true, errors.New("no such program") })
		w.busy("a", "1", "4-7")
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		if a := w.answer("numad"); !strings.Contains(a, "could not be excluded from numad: a (no such program)") {
			t.Errorf("the status says %q", a)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		tries, _ := w.settings.Did()
		if n := len(tries); n < 10 || n > 14 {
			t.Errorf("tried %d times in an hour", n)
		}
		if notes := w.entries(journal.Setting); len(notes) != 1 {
			t.Errorf("noted %+v", notes)
		}
		w.settings.Say(func(s *fake.Settings) { s.Fails = nil })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if a := w.answer("numad"); a != "excluded from numad: a" {
			t.Errorf("now that numad excludes it, the status says %q", a)
		}
		if again, _ := w.settings.Did(); len(again) != len(tries)+1 && len(again) != len(tries)+2 {
			t.Errorf("tried %d times more", len(again)-len(tries))
		}
	})
}

// Competitors are handled once between two plans, even if nothing is planned.
func TestCompetitors_AreHandledOncePerPlan(t *testing.T) {
	for name, quiet := range map[string]func(w *world){
		"in mode off": func(w *world) { w.policy.Balance.Mode = policy.ModeOff },
		"unobservable": func(w *world) {
			w.Inject(fake.Fault{Before: func(c fake.Call) error {
				if (c.Method == "Guests" || c.Method == "Topology") && w.unobservable.Load() {
					return errors.New("libvirt is away")
				}
				return nil
			}})
		},
		"while it moves": func(w *world) {
			w.policy.Balance.Pace = 2 * mib
			w.busy("b", "3", "12-15")
			w.misplaced("a", 2, gib, "3", "0-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, square, auto("a"), func(t *testing.T, w *world) {
				t.Helper()
				everyCompetitor(w)
				quiet(w)
				w.start()
				defer w.end()
				time.Sleep(time.Minute)
				synctest.Wait()
				w.unobservable.Store(true)
				time.Sleep(time.Minute)
				synctest.Wait()
				if planned := w.status().Planned; time.Since(planned) < 20*time.Second {
					t.Fatalf("a plan was made %v ago: this run tested nothing", time.Since(planned))
				}
				said := map[string]bool{} // the kernel's move rate differs in each sample
				for range 60 {
					time.Sleep(time.Second)
					synctest.Wait()
					said[fmt.Sprint(w.status().Competitors)] = true
				}
				if n := len(said); n < 11 || n > 13 {
					t.Errorf("%d responses in a minute", n)
				}
			})
		})
	}
}

// A pause that cannot be written to the journal takes effect, and the
// operator's error says that a restart would end it.
func TestPause_NotPersistent(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		w.full.Store(true)
		if err := w.d.Pause(t.Context(), 0, "load test"); !errors.Is(err, control.ErrNotPersistent) ||
			!strings.Contains(err.Error(), "no space left") {
			t.Errorf("pausing with a full disk: %v", err)
		}
		w.full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.status(); s.Pause == nil || len(w.entries(journal.MoveBegan)) != 0 {
			t.Errorf("pause %+v, moves %+v", s.Pause, w.entries(journal.MoveBegan))
		}
		if err := w.d.Pause(t.Context(), 0, "load test"); err != nil {
			t.Errorf("pausing again with room: %v", err)
		}
		w.end()
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.status(); s.Pause == nil || len(w.entries(journal.MoveBegan)) != 0 {
			t.Errorf("after a restart: pause %+v, moves %+v", s.Pause, w.entries(journal.MoveBegan))
		}
		w.full.Store(true)
		if err := w.d.Resume(t.Context()); !errors.Is(err, control.ErrNotPersistent) {
			t.Errorf("resuming with a full disk: %v", err)
		}
		if s := w.status(); s.Pause != nil {
			t.Errorf("still paused: %+v", s.Pause)
		}
		w.full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 1 {
			t.Errorf("resumed, but nothing moves: %+v", w.entries())
		}
	})
}

// If a new policy no longer wants kernel balancing off, the daemon restores it;
// if another policy wants it off again, the daemon switches it off again.
func TestPolicy_RestoresKernelBalancing(t *testing.T) {
	for name, other := range map[string]func(*policy.Policy){
		"left to it":  func(p *policy.Policy) { p.Movers.KernelBalancing = policy.AnswerLeave },
		"advise only": func(p *policy.Policy) { p.Balance.Mode = policy.ModeAdvise },
		"off":         func(p *policy.Policy) { p.Balance.Mode = policy.ModeOff },
	} {
		within(t, square, answering("a"), func(t *testing.T, w *world) {
			t.Helper()
			w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "1" })
			w.busy("a", "1", "4-7")
			w.start()
			defer w.end()
			after := func(p policy.Policy, want string) {
				t.Helper()
				if err := w.d.SetPolicy(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if now, _ := w.settings.On(w.Host).Settings(); now.NUMABalancing != want {
					t.Errorf("%s: kernel.numa_balancing is %s, not %s", name, now.NUMABalancing, want)
				}
			}
			p := answering("a")
			after(p, "0")
			other(&p)
			after(p, "1")
			after(p, "1")
			after(answering("a"), "0")
			if held := journal.Lasting(w.entries()); len(held) != 1 {
				t.Errorf("%s: %+v", name, held)
			}
			after(p, "1")
			if held := journal.Lasting(w.entries()); len(held) != 0 {
				t.Errorf("%s: %+v", name, held)
			}
		})
	}
}

// If it cannot be restored, the daemon retries now and then, and records that
// once.
func TestPolicy_RetriesRestoringKernelBalancing(t *testing.T) {
	within(t, square, answering("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Say(func(s *fake.Settings) { s.Kernel.NUMABalancing = "1" })
		w.busy("a", "1", "4-7")
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		w.settings.Say(func(s *fake.Settings) { s.Fails, s.Began = errors.New("read-only file system"), nil })
		if err := w.d.SetPolicy(t.Context(), auto("a")); err != nil {
			t.Fatal(err)
		}
		noted := len(w.entries(journal.Setting))
		time.Sleep(time.Hour)
		synctest.Wait()
		if tries, _ := w.settings.Did(); len(tries) < 10 || len(tries) > 14 {
			t.Errorf("tried %d times in an hour", len(tries))
		}
		if notes := w.entries(journal.Setting); len(notes) != noted+1 || len(journal.Lasting(w.entries())) != 1 {
			t.Errorf("noted %+v, held %+v", notes, journal.Lasting(w.entries()))
		}
		w.settings.Say(func(s *fake.Settings) { s.Fails = nil })
	})
}
