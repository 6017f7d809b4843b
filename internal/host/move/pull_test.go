package move_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// pulling is a kernel whose balancing, if it is on, brings memory of each guest to
// its vCPUs at each reading of a guest's memory.
type pulling struct {
	observe.Kernel
	host     *fake.Host
	settings *operatetest.Settings
	each     topology.Bytes
	most     topology.Bytes // brings no more than that; 0: all
	pulled   topology.Bytes
	last     time.Time // when it brought something last
	read     int       // times that mappings of a guest were read
	// What kernel balancing records about each guest: passes more with each reading, and what its threads touch.
	faults  inventory.HintFaults
	passes  uint64
	unknown bool // the kernel does not record hinting faults
}

func (p *pulling) HintFaults(int) (inventory.HintFaults, error) {
	if p.unknown {
		return inventory.HintFaults{}, os.ErrNotExist
	}
	p.faults.Passes += p.passes
	return p.faults, nil
}

func (p *pulling) Ranges(ctx context.Context, pid int) ([]inventory.MemoryRange, error) {
	p.read++
	return p.Kernel.Ranges(ctx, pid)
}

func (p *pulling) Memory(g inventory.Guest) (topology.MemoryByNode, string, error) {
	if p.settings.Values[plan.NUMABalancingPath] == "1" && (p.most == 0 || p.pulled < p.most) {
		if brought := p.host.Pull(p.each); brought > 0 {
			p.pulled, p.last = p.pulled+brought, time.Now()
		}
	}
	return p.Kernel.Memory(g)
}

// crawling is a kernel that copies 30 MiB a second, as in the lab.
type crawling struct{ apply.Kernel }

func (c crawling) Move(
	ctx context.Context, pid int, step plan.Step, progress func(done, total topology.Bytes),
) (plan.Moved, error) {
	moved, err := c.Kernel.Move(ctx, pid, step, progress)
	time.Sleep(time.Duration(float64(moved.Moved) / float64(30*mib) * float64(time.Second)))
	return moved, err
}

// pulledMove moves two guests of 1 GiB from node 0, which lose half of their time to
// remote memory.
func pulledMove(
	t *testing.T, each topology.Bytes, change func(*world, *move.Request),
) (w world, p *pulling, b *book, moved move.Result, err error) {
	t.Helper()
	w = newWorld(t, "nodes:4 cores:8 memory:16G square distances:10,16,28", folderOf(t))
	none := topology.Bytes(0)
	w.Joined.Policy.KeepFree = &none
	top := w.Nodes()
	for _, name := range []string{"a", "b"} {
		d := kinds[0].Guest(name, gib, []topology.NodeID{0}, top.CPUsOf(nodes("0")))
		d.Config.Immediate = true
		w.MustAdd(t, d)
	}
	b = &book{}
	p = &pulling{Kernel: w.Joined.Sources.Kernel, host: w.Host, each: each,
		settings: &operatetest.Settings{Values: map[string]string{plan.NUMABalancingPath: "0"}}}
	w.Joined.Sources.Kernel, w.Joined.Settings, w.Joined.Journal, w.Joined.Clock = p, p.settings, b, time.Now
	w.Joined.Kernel = crawling{w.Joined.Kernel}
	m := planned(t, w, plan.Batch, map[string]string{"a": "1", "b": "2"})
	m.Benefit.AccessCPUs = 1
	for i := range m.Guests {
		m.Guests[i].Kind, m.Guests[i].Saves = plan.MoveGuest, 0.5
	}
	r := move.Request{ID: "m1", Move: m, Journal: b, Pull: true}
	change(&w, &r)
	moved, err = w.Joined.Move(context.Background(), r)
	return w, p, b, moved, err
}

// Kernel balancing costs VMs hinting faults as long as it is on. It is restored soon after it brings no more of the
// last pages.
func TestMove_ThePullEndsSoonAfterTheLastPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, b, _, err := pulledMove(t, 96*mib, func(w *world, r *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			k.most, r.Later = 2*gib-300*mib, true
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Recorded {
			if e.Setting != nil && e.Takes() && e.Setting.Value == "0" {
				if after := e.At.Sub(p.last); after > 4*time.Second {
					t.Errorf("kernel balancing is restored %v after it brought something last", after)
				}
				return
			}
		}
		t.Errorf("kernel balancing is not restored: %s", settingsOf(b))
	})
}

// settingsOf lists the changes of settings in a journal: "0>1" and so on.
func settingsOf(b *book) string {
	var all []string
	for _, e := range b.Recorded {
		if e.Setting != nil && e.Takes() {
			all = append(all, e.Setting.Former+">"+e.Setting.Value)
		}
	}
	return strings.Join(all, " ")
}

// The kernel brings the memory of both guests to their vCPUs, which move first; what
// it does not bring is copied. Kernel balancing is then as before.
func TestMove_KernelBringsMemory(t *testing.T) {
	for name, c := range map[string]struct {
		each   topology.Bytes
		change func(*world, *move.Request)
	}{
		"all":                            {64 * mib, func(*world, *move.Request) {}},
		"a little":                       {4 * mib, func(*world, *move.Request) {}},
		"nothing":                        {0, func(*world, *move.Request) {}},
		"all, of VMs that wait for CPUs": {64 * mib, func(_ *world, r *move.Request) { r.Move.Benefit.WaitCPUs = 2 }},
	} {
		synctest.Test(t, func(t *testing.T) {
			each := c.each
			w, p, b, moved, err := pulledMove(t, each, c.change)
			if err != nil || !moved.Complete() {
				t.Fatalf("%s: %v: %s %v", name, err, moved.End, moved.Shortfalls())
			}
			w.CheckInPlace(t, "a")
			w.CheckInPlace(t, "b")
			if (p.pulled > 0) != (each > 0) {
				t.Errorf("%s: the kernel brought %v", name, p.pulled)
			}
			end := b.Recorded[len(b.Recorded)-1]
			// What the kernel brings while a slice is copied to measure the rate is not counted.
			if more := p.pulled - moved.Pulled; more > 5*each || end.Pulled != moved.Pulled {
				t.Errorf("%s: %v reported, %v in the journal, %v brought", name, moved.Pulled, end.Pulled, p.pulled)
			}
			if moved.Bytes+p.pulled < 2*gib {
				t.Errorf("%s: the kernel brought %v and %v were copied", name, p.pulled, moved.Bytes)
			}
			if got := settingsOf(b); got != "0>1 1>0" {
				t.Errorf("%s: settings %q", name, got)
			}
			if held := journal.Held(b.Recorded, plan.NUMABalancingPath); held.Former != "" {
				t.Errorf("%s: the journal still holds %+v", name, held)
			}
		})
	}
}

// tired copies one slice at 100 MiB a second, and later ones at 10: the guests begin to work.
type tired struct {
	apply.Kernel
	slices int
}

func (k *tired) Move(
	ctx context.Context, pid int, step plan.Step, progress func(done, total topology.Bytes),
) (plan.Moved, error) {
	moved, err := k.Kernel.Move(ctx, pid, step, progress)
	rate := 10 * mib
	if k.slices++; k.slices == 1 {
		rate = 100 * mib
	}
	time.Sleep(time.Duration(float64(moved.Moved) / float64(rate) * float64(time.Second)))
	return moved, err
}

// The rate of our own copy is measured again before it replaces the kernel: it was measured when the guests hardly
// worked.
func TestMove_MeasuresAgainBeforeThePullEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p, _, moved, err := pulledMove(t, 8*mib, func(w *world, _ *move.Request) {
			k, ok := w.Joined.Kernel.(crawling)
			if !ok {
				t.Fatal("another kernel")
			}
			w.Joined.Kernel = &tired{Kernel: k.Kernel}
		})
		if err != nil || !moved.Complete() {
			t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
		}
		w.CheckInPlace(t, "a")
		if p.pulled < 2*gib*9/10 || moved.Bytes > gib/4 {
			t.Errorf("%v copied, %v brought", moved.Bytes, p.pulled)
		}
	})
}

// What the kernel has hardly brought is little, and waits for a quiet time.
func TestMove_LeavesUnusedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, _, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			k.most, r.Later = 2*gib-100*mib, true
		})
		if err != nil || !moved.Complete() {
			t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
		}
		if moved.Bytes > 64*mib || p.pulled < 2*gib-200*mib || len(moved.Left) != 2 {
			t.Errorf("%v copied, %v brought, left of %v", moved.Bytes, p.pulled, moved.Left)
		}
	})
}

// A quarter of a guest's memory that it does not use is copied when the kernel has brought the rest, and
// no setting is held.
func TestMove_CopiesAQuarterThatIsNotInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, b, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			k.most, r.Later = 3*gib/2, true
		})
		if err != nil || !moved.Complete() {
			t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
		}
		if moved.Bytes < gib/4 || moved.Held != nil || settingsOf(b) != "0>1 1>0" {
			t.Errorf("%v copied, left of %v; held %+v; settings %q", moved.Bytes, moved.Left, moved.Held, settingsOf(b))
		}
		if p.settings.Values[plan.NUMABalancingPath] != "0" {
			t.Errorf("settings %v", p.settings.Values)
		}
	})
}

// What the kernel stops to bring is not in use: it is not copied, and kernel balancing stays on for it.
func TestMove_LeavesKernelBalancingOnForUnusedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, b, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			k.most, r.Later = gib/2, true
		})
		if err != nil || !moved.Complete() {
			t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
		}
		if moved.Bytes > 64*mib || len(moved.Left) != 2 {
			t.Errorf("%v copied, left of %v", moved.Bytes, moved.Left)
		}
		held := journal.Held(b.Recorded, plan.NUMABalancingPath)
		if moved.Held == nil || moved.Held.Former != "0" || held.Former != "0" || settingsOf(b) != "0>1" {
			t.Errorf("held %+v, in the journal %+v; settings %q", moved.Held, held, settingsOf(b))
		}
		if p.settings.Values[plan.NUMABalancingPath] != "1" {
			t.Errorf("settings %v", p.settings.Values)
		}
	})
}

// A VM that works uses hardly any of its memory: what the kernel does not bring, much slower than our own copy, is not
// copied. If the VM touches it where it is, the kernel cannot move it; then, or if that is not known, it is copied.
func TestMove_LeavesMemoryThatNoVCPUTouches(t *testing.T) {
	for name, c := range map[string]struct {
		touched topology.MemoryByNode
		unknown bool
		left    bool
	}{
		"not touched":                {topology.MemoryByNode{1: 10 * mib, 2: 10 * mib}, false, true},
		"touched where it is":        {topology.MemoryByNode{0: gib / 2}, false, false},
		"the kernel records nothing": {nil, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, p, b, moved, err := pulledMove(t, mib, func(w *world, r *move.Request) {
				k, ok := w.Joined.Sources.Kernel.(*pulling)
				if !ok {
					t.Fatal("another kernel")
				}
				k.faults.Memory, k.passes, k.unknown, r.Later = c.touched, 4, c.unknown, true
			})
			if err != nil || !moved.Complete() {
				t.Fatalf("%s: %v: %s %v", name, err, moved.End, moved.Shortfalls())
			}
			if c.left && (moved.Bytes > 64*mib || len(moved.Left) != 2 || moved.Held == nil) ||
				!c.left && (moved.Bytes < gib || moved.Held != nil) {
				t.Errorf("%s: %v copied, %v brought, left of %v, held %+v; settings %q", name, moved.Bytes, p.pulled,
					moved.Left, moved.Held, settingsOf(b))
			}
		})
	}
}

// A setting that cannot be restored is reported, for the caller to restore it.
func TestMove_ReportsASettingThatItCannotRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, moved, err := pulledMove(t, 64*mib, func(w *world, _ *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			w.Joined.Settings = &stuck{k.settings}
		})
		if err == nil || moved.Held == nil || moved.Held.Former != "0" || moved.Held.Value != "1" {
			t.Errorf("%v: held %+v", err, moved.Held)
		}
	})
}

// A move takes over kernel balancing that the daemon enabled ahead of it, and restores it: after the kernel has
// brought the memory, before it copies by itself, and if it does not begin it leaves it to the daemon.
func TestMove_TakesOverKernelBalancing(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(w *world, r *move.Request)
		settings string
	}{
		"the kernel brings memory": {func(*world, *move.Request) {}, "0"},
		"it copies":                {func(_ *world, r *move.Request) { r.Pull = false }, "0"},
		"it does not begin": {func(w *world, _ *move.Request) {
			if err := w.Remove(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}, "1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, p, _, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
				k, ok := w.Joined.Sources.Kernel.(*pulling)
				if !ok {
					t.Fatal("another kernel")
				}
				k.settings.Values[plan.NUMABalancingPath] = "1"
				r.Held = &journal.SettingChange{Path: plan.NUMABalancingPath, Former: "0", Value: "1", Held: true}
				c.change(w, r)
			})
			if begun := c.settings == "0"; begun != (err == nil) || begun != (moved.Held == nil) {
				t.Errorf("%s: %v: held %+v", name, err, moved.Held)
			}
			if now := p.settings.Values[plan.NUMABalancingPath]; now != c.settings {
				t.Errorf("%s: kernel balancing is %s, want %s", name, now, c.settings)
			}
		})
	}
}

// stuck are settings that cannot be written back.
type stuck struct{ *operatetest.Settings }

func (s *stuck) WriteSetting(path, value string) error {
	if value == "0" {
		return errLost
	}
	return s.Settings.WriteSetting(path, value)
}

// Kernel balancing stays as it is if the policy or the request does not allow it, if
// it limits the rate, if copying is fast, if hinting faults do not move the memory, and
// if kernel balancing would move the memory of another guest.
func TestMove_KernelBalancingStaysOff(t *testing.T) {
	for name, change := range map[string]func(*world, *move.Request){
		"not asked for": func(_ *world, r *move.Request) { r.Pull = false },
		"the policy":    func(w *world, _ *move.Request) { w.Joined.Policy.Movers.KernelBalancing = policy.AnswerOff },
		"a rate":        func(w *world, _ *move.Request) { w.Joined.Policy.Balance.Pace = 100 * mib },
		"copying is fast": func(w *world, _ *move.Request) {
			k, ok := w.Joined.Kernel.(crawling)
			if !ok {
				t.Fatal("another kernel")
			}
			w.Joined.Kernel = &slow{Kernel: k.Kernel, began: time.Now()}
		},
		"another guest may run far from its memory": func(w *world, _ *move.Request) {
			top := w.Nodes()
			d := kinds[0].Guest("c", gib, []topology.NodeID{0}, top.CPUsOf(nodes("2-3")))
			d.Config.Immediate = true
			w.MustAdd(t, d)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, p, b, moved, err := pulledMove(t, 64*mib, change)
			if err != nil || !moved.Complete() {
				t.Fatalf("%s: %v: %s %v", name, err, moved.End, moved.Shortfalls())
			}
			if got := settingsOf(b); got != "" || p.pulled > 0 {
				t.Errorf("%s: settings %q, the kernel brought %v", name, got, p.pulled)
			}
		})
	}
}

// A guest outside the move that hardly uses CPUs does not prevent that the kernel brings
// memory, wherever it may run.
func TestMove_AnIdleGuestDoesNotPreventAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, _, moved, err := pulledMove(t, 64*mib, func(w *world, r *move.Request) {
			top := w.Nodes()
			d := kinds[0].Guest("idle", gib, []topology.NodeID{0}, top.CPUsOf(nodes("0-3")))
			d.Config.Immediate = true
			w.MustAdd(t, d)
			r.Idle = []string{"idle"}
		})
		if err != nil || !moved.Complete() || p.pulled == 0 {
			t.Fatalf("%v: %s %v, %v brought", err, moved.End, moved.Shortfalls(), p.pulled)
		}
	})
}

// A move that is cancelled while the kernel brings memory restores the setting and
// rolls back.
func TestMove_CancelledWhileTheKernelBringsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(2*time.Second, func() { cancel(move.ErrUndo) })
		defer cancel(nil)
		var w world
		var b *book
		w, _, b, _, _ = pulledMove(t, 8*mib, func(w *world, r *move.Request) {
			moved, err := w.Joined.Move(ctx, *r)
			if !errors.Is(err, move.ErrUndo) || moved.End != journal.MoveUndone {
				t.Errorf("%v: %s %s", err, moved.End, moved.Why)
			}
			r.ID = "m2"
		})
		if got := settingsOf(b); got != "0>1 1>0 0>1 1>0" {
			t.Errorf("settings %q", got)
		}
		w.CheckInPlace(t, "a")
	})
}

// A guest whose vCPUs cannot be moved keeps its memory, too. The other one is moved.
func TestMove_NoMemoryWithoutItsVCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _, moved, err := pulledMove(t, 64*mib, func(w *world, _ *move.Request) {
			w.Inject(fake.Fault{Before: fake.NthOf("PinVCPU", 1, func() error { return errLost })})
		})
		if !errors.Is(err, move.ErrStopped) || moved.End != "" {
			t.Fatalf("%v: %s", err, moved.End)
		}
		at := map[string]topology.Bytes{} // away from node 0
		for _, name := range []string{"a", "b"} {
			memory, _, err := w.Memory(w.MustGuest(t, name))
			if err != nil {
				t.Fatal(err)
			}
			for node, bytes := range memory {
				if node != 0 {
					at[name] += bytes
				}
			}
		}
		if low, high := min(at["a"], at["b"]), max(at["a"], at["b"]); low > 64*mib || high < gib-64*mib {
			t.Errorf("moved: %v", at)
		}
	})
}

// Whichever call fails or ends the process, and whichever entry of the journal does:
// kernel balancing is as before, or the journal has its former value.
func TestMove_KernelBalancingIsRestoredAfterABreakAtEveryPoint(t *testing.T) {
	die := func() error { runtime.Goexit(); return nil }
	lose := func() error { return errLost }
	const each = 128 * mib
	var calls, entries int
	synctest.Test(t, func(t *testing.T) {
		w, _, b, _, _ := pulledMove(t, each, func(w *world, _ *move.Request) { w.Inject(fake.Fault{}) })
		calls, entries = len(w.Calls()), len(b.Recorded)
	})
	broken := func(where string, inject func(world, *book)) {
		synctest.Test(t, func(t *testing.T) {
			var settings *operatetest.Settings
			var records *book
			var moved move.Result
			killed(func() {
				_, _, _, moved, _ = pulledMove(t, each, func(w *world, r *move.Request) {
					p, ok := w.Joined.Sources.Kernel.(*pulling)
					if records, _ = r.Journal.(*book); !ok || records == nil {
						panic("another world")
					}
					settings = p.settings
					inject(*w, records)
				})
			})
			now := settings.Values[plan.NUMABalancingPath]
			held := journal.Held(records.Recorded, plan.NUMABalancingPath)
			if now != "0" && (held.Former != "0" || held.Value != now) {
				t.Errorf("%s: kernel balancing is %s, the journal holds %+v", where, now, held)
			}
			if now != "0" && moved.ID != "" && moved.Held == nil {
				t.Errorf("%s: kernel balancing is %s, and the result does not say so", where, now)
			}
		})
	}
	for n := 1; n <= calls; n++ {
		for how, do := range map[string]func() error{"fails": lose, "kills": die} {
			where := fmt.Sprintf("call %d %s", n, how)
			broken(where, func(w world, _ *book) { w.Inject(fake.Fault{Before: fake.Nth(n, do)}) })
			broken(where+" after it", func(w world, _ *book) { w.Inject(fake.Fault{After: fake.Nth(n, do)}) })
		}
	}
	for n := 1; n <= entries; n++ {
		for how, do := range map[string]func() error{"fails": lose, "kills": die} {
			broken(fmt.Sprintf("entry %d %s", n, how), func(_ world, b *book) {
				b.Fail = func(at int, _ journal.Entry) error {
					if at == n {
						return do()
					}
					return nil
				}
			})
		}
	}
}
