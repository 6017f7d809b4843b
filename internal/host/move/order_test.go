package move_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// witness records in which order guests are copied and their vCPUs pinned: the
// name of a guest for each stretch of slices, NAME! for its first pin.
type witness struct {
	apply.Kernel
	apply.Hypervisor
	names  map[int]string
	events []string
	copied map[string]topology.Bytes
	pinned map[string]topology.Bytes // copied when the first vCPU was pinned
	most   int                       // threads that copied
}

func (w *witness) Move(
	ctx context.Context, pid int, s plan.Step, progress func(done, total topology.Bytes),
) (plan.Moved, error) {
	moved, err := w.Kernel.Move(ctx, pid, s, progress)
	name := w.names[pid]
	w.copied[name] += moved.Moved
	w.most = max(w.most, s.Threads)
	if n := len(w.events); n == 0 || w.events[n-1] != name {
		w.events = append(w.events, name)
	}
	return moved, err
}

func (w *witness) PinVCPU(ctx context.Context, name string, v guest.VCPUID, cpus topology.CPUSet) error {
	if event := name + "!"; !slices.Contains(w.events, event) {
		w.events, w.pinned[name] = append(w.events, event), w.copied[name]
	}
	return w.Hypervisor.PinVCPU(ctx, name, v, cpus)
}

// watched moves guests of a world and returns what happened in which order.
func watched(t *testing.T, w world, m plan.Move) *witness {
	t.Helper()
	inv, err := w.Joined.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	seen := &witness{Kernel: w.Joined.Kernel, Hypervisor: w.Joined.Control, names: map[int]string{},
		copied: map[string]topology.Bytes{}, pinned: map[string]topology.Bytes{}}
	for _, g := range inv.Guests {
		seen.names[g.PID] = g.Name
	}
	w.Joined.Kernel, w.Joined.Control = seen, seen
	moved, err := carryOut(context.Background(), w, m, &book{})
	if err != nil || !moved.Complete() {
		t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
	}
	for _, g := range m.Guests {
		w.CheckInPlace(t, g.Guest)
	}
	return seen
}

// The memory of one guest is copied before that of the next, the one that saves most per
// byte first, and the vCPUs of each follow when half of its memory is there. What was left
// of each comes last.
func TestMove_OneGuestAfterTheOther(t *testing.T) {
	w := home(t, "nodes:4 cores:8 memory:16G square distances:10,16,28", folderOf(t), gib,
		map[string]topology.NodeID{"a": 0, "b": 0, "c": 0})
	m := planned(t, w, plan.Batch, map[string]string{"a": "1", "b": "2", "c": "3"})
	for i, saves := range []float64{0.5, 2, 1} {
		m.Guests[i].Kind, m.Guests[i].Saves = plan.MoveGuest, saves
	}
	seen := watched(t, w, m)
	if got := strings.Join(seen.events, " "); got != "b b! b c c! c a a! a b c a" {
		t.Errorf("copied and pinned in the order %q", got)
	}
	for name, at := range seen.pinned {
		if at < gib/2 || at > gib/2+256*mib {
			t.Errorf("the vCPUs of %s moved after %v", name, at)
		}
	}
}

// vCPUs move before the copying if waiting for CPUs is the reason for the move,
// if another guest needs their CPUs, and if they are as far from their memory
// now.
func TestMove_VCPUsFirst(t *testing.T) {
	for name, c := range map[string]struct {
		at, to map[string]string
		change func(*plan.Move)
		want   string
	}{
		"they wait for CPUs": {map[string]string{"a": "0"}, map[string]string{"a": "1"},
			func(m *plan.Move) { m.Benefit.WaitCPUs = 1 }, "a! a"},
		"an exchange": {map[string]string{"a": "0", "b": "1"}, map[string]string{"a": "1", "b": "0"},
			func(m *plan.Move) { m.Kind, m.Guests[0].Saves, m.Guests[1].Saves = plan.Swap, 2, 1 }, "a! b! a b a"},
		"one comes to the nodes of the other": {map[string]string{"a": "0", "b": "1"},
			map[string]string{"a": "1", "b": "2"}, func(m *plan.Move) {
				m.Kind, m.Guests[0].Kind, m.Guests[1].Kind = plan.Batch, plan.MoveGuest, plan.MoveGuest
			}, "b! a a! a b a b"},
	} {
		at := map[string]topology.NodeID{}
		for name, node := range c.at {
			at[name], _ = nodes(node).First()
		}
		w := home(t, "nodes:4 cores:8 memory:16G square distances:10,16,28", folderOf(t), gib, at)
		m := planned(t, w, plan.MoveGuest, c.to)
		c.change(&m)
		if got := strings.Join(watched(t, w, m).events, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A guest that loses much until it is copied is copied fast, even if that makes
// its vCPUs wait: a slower copy would make it lose more.
func TestMove_IsNotSlowedBelowWhatWaitingCosts(t *testing.T) {
	saves := func(cpus float64) time.Duration {
		return paced(t, 500*mib, func(_ *move.Host, r *move.Request) { r.Move.Guests[0].Saves = cpus })
	}
	little, much := saves(0), saves(2)
	if much > little/2 {
		t.Errorf("a guest that loses much was copied in %v, one that loses nothing in %v", much, little)
	}
}

// Only the memory of a guest that loses much is copied by several threads.
func TestMove_Threads(t *testing.T) {
	for saves, want := range map[float64]int{0: 1, 0.05: 1, 0.2: 4} {
		w := home(t, "nodes:4 cores:8 memory:16G square distances:10,16,28", folderOf(t), gib,
			map[string]topology.NodeID{"a": 0})
		m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
		m.Guests[0].Saves = saves
		if got := watched(t, w, m).most; got != want {
			t.Errorf("a guest of one vCPU that loses %v CPUs was copied by %d threads", saves, got)
		}
	}
}
