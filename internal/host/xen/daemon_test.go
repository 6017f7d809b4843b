package xen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// watched is a simulated Xen host under the daemon, with a clock of its own.
type watched struct {
	*simulated
	t       *testing.T
	host    *operate.Host
	records record.Journal
	watcher *Watcher
	d       *daemon.Daemon
	end     func()
}

// underDaemon runs a test on a Xen host of two nodes with four CPUs each.
func underDaemon(t *testing.T, test func(t *testing.T, w *watched)) {
	t.Helper()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h, s := joined(t)
		test(t, &watched{simulated: s, t: t, host: h, records: record.Journal{Folder: folder}})
	})
}

// start runs a daemon in mode auto for all guests, or in the given mode.
func (w *watched) start(mode policy.Mode) {
	w.t.Helper()
	h := *w.host
	h.Policy = policy.Policy{Balance: policy.Balance{Mode: mode,
		Guests: map[string]policy.Mode{"a": mode, "b": mode, "c": mode}}}
	w.watcher = New(w.run).NewWatcher()
	w.d = daemon.New(daemon.Options{Host: &move.Host{Host: h}, Watcher: w.watcher, Journal: w.records,
		Records: w.records.Folder, Roster: w.watcher.Roster})
	ctx, stop := context.WithCancel(w.t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := w.d.Run(ctx); err != nil {
			w.t.Errorf("the daemon ended by %v", err)
		}
	})
	w.end = func() {
		stop()
		ended.Wait()
		if err := w.watcher.Close(); err != nil {
			w.t.Error(err)
		}
	}
	synctest.Wait()
}

func (w *watched) status() status.Status {
	w.t.Helper()
	s, err := w.d.Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// crowd adds three guests that keep twelve vCPUs busy on the four CPUs of node 0, where their memory is.
func (w *watched) crowd() {
	for _, name := range []string{"a", "b", "c"} {
		w.add(name, 0, "0-3", 4).busy = true
	}
}

func (w *watched) entries(kinds ...journal.Kind) (found []journal.Entry) {
	w.t.Helper()
	all, err := w.records.Entries()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		for _, k := range kinds {
			if e.Kind == k {
				found = append(found, e)
			}
		}
	}
	return found
}

// onNode1 are the guests whose vCPUs may run on node 1 only.
func (w *watched) onNode1() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.ids()[1:] {
		if d := w.domains[id]; d.hard[0].String() == "4-7" && d.soft[0].String() == "4-7" {
			names = append(names, d.name)
		}
	}
	return names
}

// In mode auto the daemon relieves a node whose CPUs are overloaded by hard and soft affinity, and undo takes the
// move back.
func TestDaemon_RelievesANode(t *testing.T) {
	underDaemon(t, func(t *testing.T, w *watched) {
		t.Helper()
		w.crowd()
		w.start(policy.ModeAuto)
		time.Sleep(2 * time.Minute)
		moved := w.onNode1()
		if len(moved) != 1 {
			t.Fatalf("on node 1 are %v, want one of three\n%+v", moved, w.status().Blocked)
		}
		done := w.entries(journal.MoveDone, journal.MovePartial, journal.MoveFailed)
		if len(done) != 1 || done[0].Kind != journal.MoveDone {
			t.Errorf("the journal has the ends %+v", done)
		}
		s := w.status()
		if len(s.Sample.Guests) != 3 || s.Sample.Guests[0].Load.CPU < 1.5 {
			t.Errorf("the sample has %+v", s.Sample.Guests)
		}
		w.end()
		h := &move.Host{Host: *w.host}
		h.Journal = w.records
		if _, err := h.Undo(t.Context(), move.UndoRequest{ID: done[0].ID}); err != nil {
			t.Fatal(err)
		}
		if left := w.onNode1(); len(left) != 0 {
			t.Errorf("after the undo %v are on node 1", left)
		}
	})
}

// Guests that are not measured yet are not moved: without figures they would count as busy.
func TestDaemon_WaitsForFigures(t *testing.T) {
	underDaemon(t, func(t *testing.T, w *watched) {
		t.Helper()
		w.crowd()
		for _, id := range w.ids()[1:] {
			w.domains[id].busy = false
		}
		w.slow = time.Second // a reading every 15 s
		w.start(policy.ModeAuto)
		time.Sleep(2 * time.Minute)
		if w.status().Planned.IsZero() {
			t.Error("it has never planned")
		}
		w.end()
		if began := w.entries(journal.MoveBegan); len(began) > 0 {
			t.Errorf("idle guests were moved: %+v", began)
		}
	})
}

// In mode advise the daemon raises the alarms, gives the advice, and moves nothing. What Xen never reports raises no
// alarm.
func TestDaemon_Advises(t *testing.T) {
	underDaemon(t, func(t *testing.T, w *watched) {
		t.Helper()
		w.crowd()
		w.start(policy.ModeAdvise)
		time.Sleep(3 * time.Minute)
		s := w.status()
		w.end()
		if len(w.onNode1()) != 0 || len(s.Advice) != 1 {
			t.Errorf("moved %v, advice %+v; want advice only", w.onNode1(), s.Advice)
		}
		found := map[alarm.Quantity]bool{}
		for _, a := range s.Alarms {
			found[a.Quantity] = true
			if a.Quantity == alarm.SourceUnreadable {
				t.Errorf("alarm %s: %s", a.Quantity, a.Why)
			}
		}
		if !found[alarm.GuestWait] || !found[alarm.NodeCPU] {
			t.Errorf("alarms are %v, want waiting guests and a busy node", found)
		}
	})
}

// While xl hangs the daemon goes on with a gap, plans nothing, and goes on when xl answers again.
func TestDaemon_WhileXLHangs(t *testing.T) {
	underDaemon(t, func(t *testing.T, w *watched) {
		t.Helper()
		w.start(policy.ModeAuto)
		time.Sleep(20 * time.Second)
		w.mu.Lock()
		w.failing["xl"] = fmt.Errorf("xl vcpu-list: %w", ErrHangs)
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		said := false
		for _, g := range w.status().Sample.Gaps {
			said = said || g.Kind == inventory.CPUUnmeasured && strings.Contains(g.Why, "does not answer")
		}
		if !said {
			t.Errorf("gaps are %+v, want the one of xl", w.status().Sample.Gaps)
		}
		w.mu.Lock()
		delete(w.failing, "xl")
		w.crowd()
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if len(w.onNode1()) != 1 {
			t.Errorf("after xl answers again %v are on node 1, want one", w.onNode1())
		}
		w.end()
	})
}

// A move that xl interrupted is finished by the next daemon. If its guest has ended meanwhile, the move ends.
func TestDaemon_RecoversAMove(t *testing.T) {
	for name, ends := range map[string]bool{"the guest runs": false, "the guest has ended": true} {
		t.Run(name, func(t *testing.T) {
			underDaemon(t, func(t *testing.T, w *watched) {
				t.Helper()
				w.crowd()
				var pins atomic.Int32
				second := make(chan struct{})
				w.hangs = func(line string) bool {
					if strings.HasPrefix(line, "xl vcpu-pin") {
						if pins.Add(1) == 2 {
							close(second)
						}
					}
					return pins.Load() >= 2
				}
				w.start(policy.ModeAuto)
				<-second
				w.end()
				cut := w.entries(journal.MoveBegan)[0]
				w.mu.Lock()
				w.hangs = nil
				for _, id := range w.ids()[1:] {
					if ends && w.domains[id].name == cut.Guests[0] {
						delete(w.domains, id)
					}
				}
				w.mu.Unlock()
				w.start(policy.ModeAuto)
				time.Sleep(time.Minute)
				w.end()
				end := w.entries(journal.MoveDone, journal.MoveUndone, journal.MoveFailed, journal.MovePartial)
				if len(end) == 0 || end[0].ID != cut.ID {
					t.Fatalf("the move has not ended: %+v", end)
				}
				want := map[bool]journal.Kind{false: journal.MoveDone, true: journal.MoveFailed}[ends]
				if end[0].Kind != want {
					t.Errorf("the move ended as %s (%s), want %s", end[0].Kind, end[0].Why, want)
				}
			})
		})
	}
}

// A guest that ends while it is moved ends its move, and the daemon goes on.
func TestDaemon_GuestVanishes(t *testing.T) {
	underDaemon(t, func(t *testing.T, w *watched) {
		t.Helper()
		w.crowd()
		gone := ""
		w.before = func(line string) {
			if f := strings.Fields(line); gone == "" && strings.HasPrefix(line, "xl vcpu-pin") && f[3] == "1" {
				id := number(f[2])
				gone = w.domains[id].name
				delete(w.domains, id)
			}
		}
		w.start(policy.ModeAuto)
		time.Sleep(2 * time.Minute)
		s := w.status()
		w.end()
		failed := w.entries(journal.MoveFailed)
		if gone == "" || len(failed) != 1 || failed[0].Guests[0] != gone {
			t.Fatalf("%q ended, and the journal has the failures %+v", gone, failed)
		}
		for _, g := range s.Guests {
			if g.Name == gone {
				t.Errorf("status still shows %s", gone)
			}
		}
		if len(s.Sample.Guests) != 2 {
			t.Errorf("the sample has %d guests, want 2", len(s.Sample.Guests))
		}
	})
}

// After vCPUs got other CPUs, their waits before that do not count any more.
func TestWatcher_ForgetsWaitsOfAnotherLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := synthetic(t)
		s := newSimulated(topo)
		for _, name := range []string{"a", "b"} {
			s.add(name, 0, "0-3", 4).busy = true
		}
		d := New(s.run)
		guests, err := d.Guests(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := d.NewWatcher()
		w.Follow(guests, &topo)
		waits := func(readings int) (wait, node float64) {
			for range readings {
				w.Sample()
				time.Sleep(Between)
			}
			last := w.Sample()
			return last.Guests[0].Load.Wait, last.Nodes[0].Wait
		}
		if wait, node := waits(8); wait < 1 || node < 3 {
			t.Errorf("eight vCPUs on four CPUs: guest a waits %v, %v on the node", wait, node)
		}
		cpus := topo.Nodes[1].CPUs
		for v := range 4 {
			if err := d.PinVCPU(t.Context(), "b", guest.VCPUID(v), cpus); err != nil {
				t.Fatal(err)
			}
		}
		if wait, node := waits(2); wait != 0 || node != 0 {
			t.Errorf("with a CPU for each vCPU: guest a waits %v, %v on the node", wait, node)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A sample does not wait for an observation that hangs either.
func TestWatcher_DoesNotWaitForAnObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(synthetic(t))
		s.add("vm", 0, "0-3", 2).config = `"b_info": {"sched_params": {"cap": 50}}`
		d := New(s.run)
		if _, err := d.Guests(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := d.NewWatcher()
		s.hangs = func(line string) bool { return strings.HasPrefix(line, "xl debug-keys") }
		s.domains[1].memory++ // the key is pressed again
		go func() { _, _ = d.Guests(t.Context()) }()
		synctest.Wait()
		begin := time.Now()
		w.Sample()
		if took := time.Since(begin); took != 0 {
			t.Errorf("a sample took %v while the debug key hung", took)
		}
		if _, capped := d.lastSeen(); !capped[1] {
			t.Errorf("capped domains are %v, want domain 1", capped)
		}
		time.Sleep(2 * CallTime)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A sample never waits for xl, and Close ends a reading that hangs.
func TestWatcher_DoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		w := d.NewWatcher()
		begin := time.Now()
		w.Sample()
		if took := time.Since(begin); took != 0 {
			t.Errorf("a sample took %v while xl hung", took)
		}
		time.Sleep(CallTime + time.Second)
		synctest.Wait()
		s := w.Sample()
		if len(s.Gaps) == 0 || !strings.Contains(s.Gaps[len(s.Gaps)-1].Why, ErrHangs.Error()) {
			t.Errorf("gaps are %v, want the one of xl", s.Gaps)
		}
		if err := errors.Join(w.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}
