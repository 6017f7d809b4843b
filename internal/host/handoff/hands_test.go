package handoff_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
	decide "github.com/numavisor/numavisor/internal/decide/handoff"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

// Guests boot, pause, lose their agents, lie and shout; messages are lost, repeated
// and reordered; the daemon is killed at any of its effects and its saves fail. Never
// is a CPU open to two guests, no guest is below its minimum for two periods, and
// when the faults end, all guests soon have what they want. NUMAVISOR_SEEDS=1000
// runs more.
func TestNoCPUEverServesTwoGuests(t *testing.T) {
	seeds := 8
	if text := os.Getenv("NUMAVISOR_SEEDS"); text != "" {
		seeds, _ = strconv.Atoi(text)
	}
	kills := 0
	for seed := range seeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			w := newWorld(t, uint64(seed))
			for range 2000 {
				w.advance()
			}
			w.faults = false
			for _, v := range w.vms {
				v.paused, v.deaf, v.want = false, false, 2
				w.report(v)
			}
			for range 13000 {
				w.advance()
			}
			for _, v := range w.vms {
				held := 0
				for _, g := range w.hands.Record().Grants {
					if g.Guest == v.Name && !g.Leaving && !g.Stuck {
						held++
					}
				}
				want := max(v.Min, v.want)
				if w.vms[0].hostile {
					want = v.Min // only a minimum is taken by force
				}
				if !v.hostile && held < want {
					t.Errorf("%s wants %d CPUs and has %d: %+v", v.Name, want, held, w.hands.Record())
				}
			}
			kills += w.kills
		})
	}
	if kills == 0 {
		t.Error("the daemon was never killed")
	}
}

// calm is a world of two guests without faults, in which both have their minimum. With N
// given, they mirror only N CPUs.
func calm(t *testing.T, cpus ...int) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.faults = false
	w.vms = w.vms[:2]
	for _, v := range w.vms {
		v.hostile, v.Min, v.Weight, v.want = false, 1, 1, 0
		for _, n := range cpus {
			v.Mirror = v.Mirror[:n]
			v.used = v.all()
		}
	}
	w.saved.Grants, w.saved.Epochs = nil, nil
	w.start()
	for range 2000 {
		w.advance()
	}
	return w
}

func (w *world) held(v *vm) topology.CPUSet {
	var cpus topology.CPUSet
	for _, g := range w.hands.Record().Grants {
		if g.Guest == v.Name && !g.Leaving {
			cpus = cpus.With(g.CPU)
		}
	}
	return cpus
}

// A rise of demand gets free CPUs within a control period.
func TestARiseGetsCPUsWithinAPeriod(t *testing.T) {
	w := calm(t)
	v := w.vms[0]
	v.want = 4
	w.report(v)
	start := w.now
	for w.held(v).Len() < 4 || v.used.Len() != 4 {
		w.advance()
		if w.now.Sub(start) > period {
			t.Fatalf("%v after the rise it has CPUs %v and uses %v", w.now.Sub(start), w.held(v), v.used)
		}
	}
}

// A VM that is created through libvirt starts paused. If it was observed then, and the next observation comes much
// later, its agent's reports show that it runs: it gets CPUs.
func TestAReportShowsThatAVMRuns(t *testing.T) {
	w := calm(t)
	v := w.vms[0]
	w.hands.Guest(v.Guest, topology.SetOf(v.Mirror[0]), true)
	v.unobserved, v.want = true, 4
	w.report(v)
	for start := w.now; w.now.Sub(start) < period; {
		w.advance()
	}
	if w.held(v).Len() < 4 {
		t.Errorf("it wants 4 CPUs, and has %v", w.held(v))
	}
}

// A guest that acknowledges a release and goes on running is stopped within a
// period, and counted.
func TestAReleasedVCPUThatRunsIsStopped(t *testing.T) {
	w := calm(t)
	liar, other := w.vms[0], w.vms[1]
	liar.want = len(liar.Mirror) - 1
	w.report(liar)
	for range 500 {
		w.advance()
	}
	before := w.held(liar)
	liar.hostile = true // it runs on all vCPUs from here on
	other.want = len(other.Mirror) / 2
	w.report(other)
	for range 200 {
		liar.epoch = uint64(w.hands.Record().Epochs[liar.Name])
		liar.used = guest.Of()
		for v, cpu := range liar.Mirror {
			if w.held(liar).Contains(cpu) {
				liar.used.Add(v)
			}
		}
		liar.hostile = false
		w.report(liar)
		liar.hostile = true
		w.advance()
	}
	if w.hands.Record().Guests[liar.Name].Misbehaved == 0 {
		t.Errorf("nobody noticed: had %v, has %v", before, w.held(liar))
	}
	if w.held(other).Len() < other.want {
		t.Errorf("the other guest has CPUs %v of the %d that are its share", w.held(other), other.want)
	}
}

// Without an answer, a guest keeps what it has, but for the minimum of another one.
func TestAnAgentThatDoesNotAnswerKeepsItsCPUs(t *testing.T) {
	w := calm(t)
	v, other := w.vms[0], w.vms[1]
	v.want = 4
	w.report(v)
	for range 500 {
		w.advance()
	}
	v.deaf = true
	other.want = len(other.Mirror)
	w.report(other)
	for range 3000 {
		w.advance()
	}
	if got := w.held(v); got.Len() != 4 {
		t.Errorf("it has CPUs %v, had 4", got)
	}
}

// A guest whose vCPUs are slow, as those of a VM that boots, releases late: it is not asked again from the
// beginning, and the other one need not wait for that. A guest that refuses has been asked for long enough.
func TestASlowGuestMayReleaseLate(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuses bool
		gets    bool
	}{{"slow", false, true}, {"refuses", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			w := calm(t, 3) // one CPU besides the anchors
			v, other := w.vms[0], w.vms[1]
			v.want = len(v.Mirror)
			w.report(v)
			for range 500 {
				w.advance()
			}
			v.slow, v.keeps = !c.refuses, c.refuses
			v.want, other.want = 0, 2
			w.report(v)
			w.report(other)
			for range 2500 {
				w.advance()
			}
			if got := w.held(other).Len(); got != 1 {
				t.Fatalf("the other has %d CPUs, although none was released", got)
			}
			v.slow, v.keeps = false, false
			for range 300 {
				w.advance()
			}
			if got := w.held(other).Len() == other.want; got != c.gets {
				t.Errorf("%v after the release the other has CPUs %v", 300*millisecond, w.held(other))
			}
		})
	}
}

// An agent that was killed between its epoch and the release starts again, and then releases: the second for which
// the host waits begins then.
func TestAnAgentThatStartsAgainMayReleaseLate(t *testing.T) {
	w := calm(t, 3)
	v, other := w.vms[0], w.vms[1]
	v.want = len(v.Mirror)
	w.report(v)
	for range 500 {
		w.advance()
	}
	v.keeps, v.want, other.want = true, 0, 2
	w.report(v)
	w.report(other)
	for range 200 {
		w.advance()
	}
	v.deaf = true // killed
	for range 1000 {
		w.advance()
	}
	if w.held(other).Len() != 1 {
		t.Fatal("the CPU was released")
	}
	v.deaf, v.seq, v.keeps = false, 0, false
	for range 500 {
		w.advance()
	}
	if w.held(other).Len() != other.want {
		t.Errorf("0.5 s after the agent's start the other has CPUs %v", w.held(other))
	}
}

// The CPUs with which a VM is about to start are its own before it starts, although another
// one uses them.
func TestAStartingVMGetsItsFirstCPUsBefore(t *testing.T) {
	w := calm(t)
	busy, starts := w.vms[0], w.vms[1]
	w.hands.Gone(starts.Name)
	w.vms = w.vms[:1]
	busy.want = len(busy.Mirror)
	w.report(busy)
	for range 500 {
		w.advance()
	}
	first := topology.SetOf(starts.Mirror[0], starts.Mirror[2]) // Mirror[1] is the anchor of the other
	if got := w.held(busy); got.Len() != len(busy.Mirror) {
		t.Fatalf("the busy VM has only CPUs %v", got)
	}
	for range 200 {
		w.hands.Starting(starts.Guest, first)
		w.advance()
	}
	if got := w.held(starts); !got.Equal(first) {
		t.Errorf("the starting VM has CPUs %v, and starts on %v", got, first)
	}
	w.hands.Gone(starts.Name) // it was not created
	for range 200 {
		w.advance()
	}
	if got := w.held(busy); got.Len() != len(busy.Mirror) {
		t.Errorf("the CPUs stay reserved: the busy VM has %v", got)
	}
}

// Create waits until the daemon has handed the first CPUs over, and fails without a daemon.
func TestAwaitStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "handoff.json")
	runs := func(vm string) bool { return vm == "m1" }
	first := topology.SetOf[topology.CPUID](2)
	await := func(record string) error {
		if err := os.WriteFile(file, []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()
		return handoff.AwaitStart(ctx, file, "m2", first, runs)
	}
	if err := handoff.AwaitStart(t.Context(), file, "m2", first, runs); err != nil {
		t.Error("without a record:", err)
	}
	for _, free := range []string{`{"grants":[]}`, `{"grants":[{"cpu":2,"guest":"m2"},{"cpu":1,"guest":"m1"}]}`,
		`{"grants":[{"cpu":2,"guest":"stopped"}]}`} {
		if err := await(free); err != nil {
			t.Errorf("%s: %v", free, err)
		}
	}
	if err := await(`{"grants":[{"cpu":2,"guest":"m1","leaving":true}]}`); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a CPU of another VM: %v", err)
	}
}

// While a VM starts, the kernel may refuse its threads their CPUs: libvirt has not put them into their cgroups yet.
// That is an error only if it lasts.
func TestThreadsOfAVMThatStartsAreConfinedLater(t *testing.T) {
	w := calm(t)
	k := &refusing{world: w}
	hands := handoff.New(handoff.Options{Topology: &w.topo, Rules: decide.Rules{CPUs: w.topo.CPUSet()}, Kernel: k,
		Save: func(handoff.Record) error { return nil }, Send: func(string, []byte) {}, Log: t.Logf}, handoff.Record{})
	g := w.vms[0].Guest
	hands.Guest(g, topology.SetOf(g.Mirror[0]), false)
	for second := range 8 {
		_, err := hands.Step(w.now.Add(time.Duration(second) * time.Second))
		if late := second > 5; (err != nil) != late {
			t.Errorf("after %d s: %v", second, err)
		} else if late && strings.Count(err.Error(), "vCPU 0:") != 1 {
			t.Errorf("after %d s, the error of a vCPU is not named once:\n%v", second, err)
		}
	}
	k.allows = true
	if _, err := hands.Step(w.now.Add(9 * time.Second)); err != nil || k.confined == 0 {
		t.Errorf("%v; %d vCPUs are confined", err, k.confined)
	}
}

// refusing is a kernel that refuses at first.
type refusing struct {
	*world

	allows   bool
	confined int
}

func (r *refusing) Confine(string, words.VCPUID, topology.CPUSet) error {
	if !r.allows {
		return errors.New("none of these CPUs is in the thread's cpuset")
	}
	r.confined++
	return nil
}
