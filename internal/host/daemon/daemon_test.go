package daemon_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

type guestVCPU = guest.VCPUID

// auto lets the daemon move unmanaged guests.
func auto(names ...string) policy.Policy {
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{}}}
	for _, n := range names {
		p.Balance.Guests[n] = policy.ModeAuto
	}
	return p
}

func TestMove_DegradedGuest(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if s := w.status(); len(s.Degraded) != 1 || len(w.entries(journal.MoveBegan)) != 0 {
			t.Errorf("it is degraded, but not for long enough: %+v", s.Degraded)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		began, done := w.entries(journal.MoveBegan), w.entries(journal.MoveDone)
		if len(began) != 1 || len(done) != 1 || began[0].ID != done[0].ID || began[0].Why == "" ||
			began[0].Move == nil ||
			done[0].Moved < 900*mib {
			t.Fatalf("began %+v, done %+v", began, done)
		}
		to := began[0].Move.Guests[0].Placement.Nodes.String()
		if share := w.share("a", to); share < 0.98 {
			t.Errorf("%.0f %% of its memory is on nodes %s", 100*share, to)
		}
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		if all := w.entries(journal.MoveBegan); len(all) != 1 {
			t.Errorf("%d moves within hours of quiet", len(all))
		}
		if s := w.status(); s.Totals.MovesDone != 1 || len(s.Moving) != 0 || s.Totals.Samples < 4*3600 {
			t.Errorf("%+v", s.Totals)
		}
	})
}

// A guest reaches degraded_for between two plans: the next plan is made then.
func TestPlan_MadeWhenDegradedForEnds(t *testing.T) {
	p := auto("a")
	p.Balance.DegradedFor = policy.Duration(7 * time.Second)
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		began := w.entries(journal.MoveBegan)
		if len(began) != 1 {
			t.Fatalf("began %+v", began)
		}
		if waited := began[0].At.Sub(w.entries(journal.Started)[0].At); waited < 7*time.Second-100*time.Millisecond ||
			waited > 7*time.Second+100*time.Millisecond {
			t.Errorf("a move began %v after the start, its guest has 7s of degraded_for", waited)
		}
	})
}

// Samples take a varying number of milliseconds: a guest does not wait a whole
// sample longer for that.
func TestPlan_ToleratesSampleJitter(t *testing.T) {
	p := auto("a")
	p.Balance.DegradedFor = policy.Duration(5 * time.Second)
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.load.Takes = func(samples int) time.Duration { return time.Duration(40/samples) * time.Millisecond }
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		s, began := w.status(), w.entries(journal.MoveBegan)
		if len(s.Degraded) > 0 || len(began) != 1 {
			t.Fatalf("degraded %+v, began %+v", s.Degraded, began)
		}
		if waited := began[0].At.Sub(w.entries(journal.Started)[0].At); waited > 6*time.Second+500*time.Millisecond {
			t.Errorf(
				"a move began %v after the start: its guest was seen to be degraded 1s after it, and has 5s of "+
					"degraded_for",
				waited)
		}
		if s.Totals.Plans < 12 {
			t.Errorf("%d plans within a minute, one is due every 5s", s.Totals.Plans)
		}
	})
}

// A guest becomes degraded between two plans: the next plan is made as soon as
// a sample shows that.
func TestPlan_MadeWhenAGuestBecomesDegraded(t *testing.T) {
	p := auto("a", "b")
	p.Balance.DegradedFor = policy.Duration(time.Second)
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 4, gib, "3", "12-15")
		w.misplaced("b", 4, gib, "3", "12-15")
		w.load.Idle.Store(true)
		w.start()
		defer w.end()
		time.Sleep(21 * time.Second) // the last plan was made at 20 s, the next is due at 25 s
		w.load.Idle.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		began := w.entries(journal.MoveBegan)
		if len(began) != 1 {
			t.Fatalf("began %+v", began)
		}
		if waited := began[0].At.Sub(w.entries(journal.Started)[0].At); waited < 21*time.Second ||
			waited > 24*time.Second {
			t.Errorf("a move began %v after the start; the sample at 21s shows that both guests wait, with 1s of "+
				"degraded_for", waited)
		}
	})
}

// The daemon waits for a guest that reaches degraded_for at the next sample:
// moved one after the other, the second would wait until the first is done.
func TestPlan_WaitsForAGuestDueAtTheNextSample(t *testing.T) {
	p := auto("a", "b")
	p.Balance.DegradedFor = policy.Duration(2 * time.Second)
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, 64*mib, "3", "0-1")
		w.misplaced("b", 2, 64*mib, "2", "4-5")
		w.load.Asleep.Store("b", true)
		w.load.Idle.Store(true)
		w.start()
		defer w.end()
		time.Sleep(19*time.Second + 500*time.Millisecond) // a plan is made each 5 s
		w.load.Idle.Store(false)
		time.Sleep(time.Second)
		w.load.Asleep.Delete("b")
		time.Sleep(time.Minute)
		synctest.Wait()
		began := w.entries(journal.MoveBegan)
		if len(began) != 1 || len(began[0].Guests) != 2 {
			t.Fatalf("a is degraded from 19s on and b from 20s on, both with 2s of degraded_for; began %+v", began)
		}
		if waited := began[0].At.Sub(w.entries(journal.Started)[0].At); waited > 23*time.Second {
			t.Errorf("the move began %v after the start", waited)
		}
	})
}

// Guests that have just begun to work count with their present demand, and not
// with the mean of that and the idle time before: otherwise all would move to
// the node of their memory.
func TestPlan_UsesPresentDemandOfStartingGuests(t *testing.T) {
	p := auto("a", "b", "c")
	p.Balance.DegradedFor = policy.Duration(time.Second)
	within(t, "nodes:4 cores:2 memory:4G square distances:10,16,28", p, func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 1, gib, "0", "2-3")
		w.misplaced("b", 1, gib, "0", "4-5")
		w.misplaced("c", 1, gib, "0", "6-7")
		w.load.Idle.Store(true)
		w.start()
		defer w.end()
		time.Sleep(21 * time.Second)
		w.load.Idle.Store(false)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		on := map[string]int{}
		for _, e := range w.entries(journal.MoveBegan) {
			for _, g := range e.Move.Guests {
				on[g.Placement.Nodes.String()]++
			}
		}
		if len(on) == 0 || on["0"] > 2 {
			t.Errorf("guests by the node that they moved to: %v; node 0 has two CPUs, each guest needs one", on)
		}
	})
}

// A noisy load counts with its mean, not with its latest value: otherwise the
// daemon would plan as if a peak lasted.
func TestPlan_UsesMeanDemandOfNoisyGuests(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 4, gib, "3", "12-15")
		w.load.Works = func(samples int) float64 { return 0.5 + 0.1*float64(samples%2) }
		w.start()
		defer w.end()
		for range 4 {
			time.Sleep(31 * time.Second)
			synctest.Wait()
			h, err := w.d.Inventory(w.t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if demand := h.Guests[0].Seen.Load.Demand(); demand < 2.15 || demand > 2.25 {
				t.Errorf("planned with a demand of %.2f CPUs, the mean is 2.20", demand)
			}
		}
	})
}

func TestAdvice_WaitsForAcceptance(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(time.Minute)
		synctest.Wait()
		s := w.status()
		if len(s.Advice) != 1 || len(w.entries(journal.Advised)) != 1 || len(w.entries(journal.MoveBegan)) != 0 ||
			w.share("a", "3") != 1 ||
			s.Advice[0].Move.Why == "" {
			t.Fatalf("advice %+v, entries %+v", s.Advice, w.entries())
		}
		if err := w.d.Accept(t.Context(), "nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("accepting an unknown move: %v", err)
		}
		if err := w.d.Accept(t.Context(), s.Advice[0].ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || done[0].By != "operator" || w.share("a", "0") < 0.98 {
			t.Errorf("done %+v, on node 0: %v", done, w.share("a", "0"))
		}
	})
}

func TestPause_AndWindowsStopMoves(t *testing.T) {
	p := auto("a")
	window, _ := policy.ParseWindow("02:00-05:00") // the clock of the test begins at midnight
	p.Balance.Windows = []policy.Window{window}
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		begin := time.Now().UTC()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.status(); len(s.Advice) != 1 || !strings.Contains(s.Held, "02:00-05:00") {
			t.Errorf("held %q, advice %+v", s.Held, s.Advice)
		}
		if err := w.d.Pause(t.Context(), 0, "load test"); err != nil {
			t.Fatal(err)
		}
		w.end()
		w.start() // a pause outlives the daemon
		defer w.end()
		time.Sleep(time.Until(begin.Truncate(24 * time.Hour).Add(2*time.Hour + time.Minute)))
		synctest.Wait()
		if s := w.status(); s.Pause == nil || !strings.Contains(s.Held, "load test") ||
			len(w.entries(journal.MoveBegan)) != 0 {
			t.Errorf("pause %+v, held %q", s.Pause, s.Held)
		}
		if err := w.d.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 1 || len(w.entries(journal.Resumed)) != 1 {
			t.Errorf("%+v", w.entries())
		}
		if err := w.d.Resume(t.Context()); err == nil {
			t.Error("resumed twice")
		}
	})
}

func TestPause_EndsByItself(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		if err := w.d.Pause(t.Context(), time.Hour, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveBegan)) != 0 {
			t.Error("moved in a pause")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(w.entries(journal.MoveDone)) != 1 || w.status().Pause != nil {
			t.Errorf("%+v", w.entries())
		}
	})
}

// A manual re-pin of a managed guest is reverted once; a second one is
// accepted.
func TestRepair_ManualChangeIsRevertedOnce(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g, _ := w.Guest("a")
		if g.Placement == nil {
			t.Fatal("it was not bound")
		}
		home := g.Placement.VCPUs[0].CPUs
		machine := w.Nodes()
		away := machine.CPUSet().Minus(home)
		repin := func() {
			if err := w.PinVCPU(t.Context(), "a", 0, away); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		repin()
		if n := len(w.entries(journal.Repaired)); n != 1 {
			t.Fatalf("%d repairs after the first change: %+v", n, w.entries())
		}
		g, _ = w.Guest("a")
		for _, thread := range g.Seen.Threads {
			if thread.VCPU != nil && *thread.VCPU == 0 && !thread.Affinity.Equal(home) {
				t.Errorf("its vCPU may run on %s, placed on %s", thread.Affinity, home)
			}
		}
		repin()
		if n := len(w.entries(journal.Repaired)); n != 1 {
			t.Errorf("%d repairs: the daemon reverted a repeated manual change", n)
		}
		s := w.status()
		if len(s.Competitors) != 1 || !strings.Contains(s.Competitors[0].Answer, "not repaired") {
			t.Errorf("competitors %+v", s.Competitors)
		}
	})
}

// A VM that migrated in with the placement of another host is not moved to the
// nodes of the same number on this one.
func TestDaemon_RepairsNoPlacementOfAnotherHost(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.hostID = "here"
		w.misplaced("a", 2, gib, "0", "0-1")
		w.start()
		if err := w.d.Host.Control.Record(t.Context(), "a", guest.Intent{
			Host: guest.HostIdentity{ID: "there", Name: "far"}, Spec: guest.Spec{Name: "a", VCPUs: 2, Memory: gib},
			Placement: guest.Placement{Guest: "a", Nodes: nodes("3"), CPUMode: guest.CPURange,
				MemoryMode: guest.MemoryStrict,
				VCPUs:      []guest.VCPU{{ID: 0, CPUs: cpus("12-15")}, {ID: 1, CPUs: cpus("12-15")}}},
		}); err != nil {
			t.Fatal(err)
		}
		defer w.end()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if all := append(w.entries(journal.Repaired), w.entries(journal.Drifted)...); len(all) > 0 {
			t.Errorf("drift from another host's placement: %+v", all)
		}
		if share := w.share("a", "0"); share < 1 {
			t.Errorf("%.0f %% of its memory are on node 0, where it was", 100*share)
		}
		for _, g := range w.status().Guests {
			if g.Managed || g.Mode != policy.ModeAdvise || len(g.Drift) > 0 {
				t.Errorf("managed %v, mode %s, drift %v", g.Managed, g.Mode, g.Drift)
			}
		}
	})
}

// If all CPUs of a VM go offline, the kernel lets it run anywhere: the daemon
// places it on other nodes, even during its cooldown.
func TestDaemon_PlacesAgainAVMWhoseCPUsGoOffline(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		for range 2 {
			time.Sleep(time.Minute)
			synctest.Wait()
			g, _ := w.Guest("a")
			if g.Placement == nil {
				t.Fatal("it was not bound")
			}
			home, machine := g.Placement.Nodes, w.Nodes()
			w.SwitchOff(machine.CPUsOf(home))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			g, _ = w.Guest("a")
			if g.Placement.Nodes.Intersects(home) {
				t.Fatalf("it is placed on nodes %s, whose CPUs are offline; %+v", g.Placement.Nodes, w.entries())
			}
			if share := w.share("a", g.Placement.Nodes.String()); share < 0.98 {
				t.Errorf("%.0f %% of its memory are on its nodes", 100*share)
			}
		}
	})
}

// The settings that every distribution ships (kernel.numa_balancing 1, KSM off)
// are no fault: the status shows their effect, but they raise no alarm.
func TestDaemon_RaisesNoAlarmOnAStockKernel(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.settings.Kernel = inventory.Kernel{
			Release:              "6.12.0",
			NUMABalancing:        "1",
			TransparentHugePages: "madvise",
			KSMRun:               "0",
			KSMAcrossNodes:       "1",
			ZoneReclaim:          "0",
			Demotion:             "false",
			CgroupV2:             true,
		}
		w.misplaced("a", 2, gib, "0", "0-3")
		w.start()
		defer w.end()
		time.Sleep(time.Hour)
		synctest.Wait()
		s := w.status()
		if len(s.Alarms) > 0 || len(w.entries(journal.Raised)) > 0 {
			t.Errorf("alarms %+v, raised before %+v", s.Alarms, w.entries(journal.Raised))
		}
		if len(s.Competitors) != 1 || !s.Competitors[0].Expected {
			t.Errorf("kernel balancing is not shown as expected: %+v", s.Competitors)
		}
	})
}

// The daemon ends during a move, at any point: the next daemon finishes the
// move.
func TestStop_MoveIsResumed(t *testing.T) {
	for n := 1; n <= 4; n++ {
		within(t, square, auto("a"), func(t *testing.T, w *world) {
			t.Helper()
			w.busy("b", "3", "12-15")
			w.misplaced("a", 2, gib, "3", "0-1")
			w.start()
			w.Inject(fake.Fault{Before: fake.NthOf("Move", n, func() error { w.stop(); return nil })})
			time.Sleep(time.Minute)
			synctest.Wait()
			w.end()
			if len(w.entries(journal.MoveBegan)) != 1 || len(w.entries(journal.MoveDone)) != 0 {
				t.Fatalf("copy %d: not interrupted: %+v", n, w.entries())
			}
			w.Inject(fake.Fault{})
			w.start()
			time.Sleep(time.Minute)
			synctest.Wait()
			w.end()
			if done := w.entries(journal.MoveDone); len(done) != 1 || done[0].By != "restart" ||
				w.share("a", "0") < 0.98 {
				t.Errorf("copy %d: %+v, on node 0: %v", n, done, w.share("a", "0"))
			}
		})
	}
}

// A pause during a move stops it at the next slice; resuming finishes it.
func TestPause_DuringAMove(t *testing.T) {
	p := auto("a")
	p.Balance.Pace = 64 * mib
	within(t, square, p, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		w.Inject(fake.Fault{Before: fake.NthOf("Move", 3, func() error {
			go func() {
				if err := w.d.Pause(t.Context(), 0, "now"); err != nil {
					t.Error(err)
				}
			}()
			return nil
		})})
		time.Sleep(time.Minute)
		synctest.Wait()
		if share := w.share("a", "0"); share == 0 || share == 1 || len(w.status().Moving) != 0 {
			t.Errorf("%.2f copied while paused: %+v", share, w.status().Moving)
		}
		w.Inject(fake.Fault{})
		if err := w.d.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || w.share("a", "0") < 0.98 {
			t.Errorf("%+v, on node 0: %v", done, w.share("a", "0"))
		}
	})
}

func TestObserve_FailureStopsMovesAndRaisesAnAlarm(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		defer w.end()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Guests" || c.Method == "Topology" || c.Method == "StoredBinding" {
				return errors.New("libvirt is away")
			}
			return nil
		}})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.MoveDone)); n != 0 {
			t.Errorf("%d moves", n)
		}
		if s := w.status(); len(s.Alarms) == 0 {
			t.Error("no alarm says that the host cannot be observed")
		}
		w.Inject(fake.Fault{})
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.MoveDone)); n != 1 {
			t.Errorf("%d moves after libvirt came back", n)
		}
	})
}

// That a host cannot be observed is logged once, not with every sample; and
// again if the reason differs, or after a successful observation.
func TestObserve_FailureIsLoggedOnce(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		var log bytes.Buffer
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		fail := func(why string) {
			w.Inject(fake.Fault{Before: func(c fake.Call) error {
				if why != "" && c.Method == "Topology" {
					return errors.New(why)
				}
				return nil
			}})
		}
		fail("sysfs is away")
		w.start()
		for _, why := range []string{"sysfs is away", "sysfs is odd", "", "sysfs is odd"} {
			fail(why)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		w.end()
		if n := strings.Count(log.String(), "could not be observed"); n != 3 {
			t.Errorf("logged %d times, want 3:\n%s", n, log.String())
		}
	})
}

// Each move has a unique name, also two that are accepted before the next plan.
func TestMove_NamesAreUnique(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 1, 256*mib, "3", "0-1")
		w.misplaced("c", 1, 256*mib, "3", "4-5")
		w.start()
		defer w.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for _, advice := range w.status().Advice {
			if err := w.d.Accept(t.Context(), advice.ID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
		}
		began := w.entries(journal.MoveBegan)
		if len(began) < 2 {
			t.Fatalf("%d moves: this run tested nothing", len(began))
		}
		seen := map[string]bool{}
		for _, e := range began {
			if seen[e.ID] {
				t.Errorf("two moves have the name %s", e.ID)
			}
			seen[e.ID] = true
		}
	})
}

// A status shares nothing with the loop: it is written while the loop goes on.
func TestStatus_IsNotChangedByTheLoop(t *testing.T) {
	within(t, square, policy.Policy{}, func(t *testing.T, w *world) {
		t.Helper()
		w.start()
		defer w.end()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		before := w.status()
		free := before.Topology.Nodes[1].Free
		w.Fill(1, 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if before.Topology.Nodes[1].Free != free {
			t.Error("it was changed")
		}
		if after := w.status(); after.Topology.Nodes[1].Free == free {
			t.Error("the loop has not noticed the full node: this run tested nothing")
		}
	})
}

// libvirt does not answer when the daemon starts again after an interrupted
// move: the daemon resumes the move when libvirt answers again, without another
// start.
func TestStart_ResumesAMoveLater(t *testing.T) {
	within(t, square, auto("a"), func(t *testing.T, w *world) {
		t.Helper()
		w.busy("b", "3", "12-15")
		w.misplaced("a", 2, gib, "3", "0-1")
		w.start()
		w.Inject(fake.Fault{Before: fake.NthOf("Move", 2, func() error { w.stop(); return nil })})
		time.Sleep(time.Minute)
		synctest.Wait()
		w.end()
		var answered atomic.Bool // once: the daemon can observe the host at first
		w.Inject(fake.Fault{Before: func(c fake.Call) error {
			if c.Method == "Guests" && answered.Swap(true) {
				return errors.New("libvirt is away")
			}
			return nil
		}})
		w.start()
		defer w.end()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(w.entries(journal.MoveDone)); n != 0 {
			t.Fatalf("%d moves done without libvirt", n)
		}
		w.Inject(fake.Fault{})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if done := w.entries(journal.MoveDone); len(done) != 1 || w.share("a", "0") < 0.98 {
			t.Errorf("%+v, on node 0: %v", done, w.share("a", "0"))
		}
	})
}
