package apply_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

const mib = topology.MiB

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

// running is a host with guest g, 64 MiB of it touched on node 0, and an executor.
func running(t *testing.T) (*fake.Host, inventory.Guest, apply.Executor) {
	t.Helper()
	h := fake.MustNew("nodes:2 cores:2 memory:1G huge:2M=8")
	err := h.Add(
		fake.Definition{Name: "g", Config: inventory.Config{VCPUs: 1, Memory: 256 * mib, Source: "memfd", IOThreads: 1,
			Pins: map[guest.VCPUID]topology.CPUSet{0: cpus("0")}, EmulatorPin: cpus("0-1")}},
	)
	if err != nil {
		t.Fatal(err)
	}
	g, _ := h.Guest("g")
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Second); return now }
	return h, g, apply.Executor{Kernel: h, Hypervisor: h, Clock: clock}
}

// planOf is a plan for the guest as it runs now.
func planOf(t *testing.T, h *fake.Host, g inventory.Guest, steps ...plan.Step) plan.Steps {
	t.Helper()
	basis, err := apply.Basis(h, g)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Steps{Guest: "g", PID: g.PID, Basis: basis, Steps: steps}
}

// everyKind has a step of every kind; each is possible for the guest.
func everyKind(g inventory.Guest) []plan.Step {
	ram, heap := g.Seen.Ranges[0], g.Seen.Ranges[1]
	return []plan.Step{
		{Kind: plan.Record},
		{Kind: plan.GrowPool, Node: 1, PageSize: 2 * mib, Pages: 4},
		{Kind: plan.AllowNodes, Nodes: nodes("0-1")},
		{Kind: plan.TuneLive, Mode: guest.MemoryRestrictive, Nodes: nodes("0-1")},
		{Kind: plan.PinVCPU, VCPU: 0, CPUs: cpus("2")},
		{Kind: plan.PinHelper, CPUs: cpus("3")},
		{Kind: plan.PinIO, IOThread: 1, CPUs: cpus("2-3")},
		{Kind: plan.Affinity, TID: g.PID, CPUs: cpus("2-3")},
		{Kind: plan.SetPolicy, Address: ram.Address, Size: ram.Size, Mode: guest.MemoryPreferred, Nodes: nodes("1")},
		{
			Kind:  plan.MoveOwn,
			Nodes: nodes("1"),
			Bytes: 4 * mib,
			Parts: []plan.Part{{Address: heap.Address, Size: heap.Size, PageSize: heap.PageSize}},
		},
		{Kind: plan.MoveRange, Address: ram.Address, Size: ram.Size, Nodes: nodes("1"), Bytes: 64 * mib},
		{Kind: plan.HoldNodes, Nodes: nodes("1")},
		{Kind: plan.ShrinkPool, Node: 0, PageSize: 2 * mib, Pages: 8},
		{Kind: plan.Configure},
	}
}

func TestRun_EveryKindOfStep(t *testing.T) {
	h, g, x := running(t)
	var reported topology.Bytes
	x.Progress = func(_ plan.Step, done, _ topology.Bytes) { reported = done }
	intent := guest.Intent{
		Spec:      guest.Spec{Name: "g"},
		Placement: guest.Placement{Guest: "g", Nodes: nodes("1"), MemoryMode: guest.MemoryStrict},
	}
	p := planOf(t, h, g, everyKind(g)...)
	outcomes, err := x.Run(context.Background(), p, intent)
	if err != nil || !apply.Complete(outcomes) {
		t.Fatalf("%v: %+v", err, outcomes)
	}
	for i, o := range outcomes {
		if o.Step.Kind != p.Steps[i].Kind || o.Took != time.Second {
			t.Errorf("outcome %d is of %s and took %v", i, o.Step, o.Took)
		}
	}
	after, _ := h.Guest("g")
	ram, heap := after.Seen.Ranges[0], after.Seen.Ranges[1]
	top := h.Nodes()
	for what, holds := range map[string]bool{
		"intent recorded":         after.Placement != nil && after.Placement.Nodes.Equal(nodes("1")),
		"vCPU pinned":             after.Seen.Threads[1].Affinity.Equal(cpus("2")),
		"emulator pinned":         after.Config.EmulatorPin.Equal(cpus("3")),
		"main thread's affinity":  after.Seen.Threads[0].Affinity.Equal(cpus("2-3")),
		"I/O thread pinned":       after.Seen.Threads[2].Affinity.Equal(cpus("2-3")),
		"policy set":              ram.Policy == "prefer:1",
		"memory moved":            ram.ByNode[1] == 64*mib && len(ram.ByNode) == 1,
		"own memory moved":        heap.ByNode[1] == 4*mib && len(heap.ByNode) == 1,
		"restricted to its node":  after.Seen.Threads[1].Mems.Equal(nodes("1")),
		"pool of node 1 grown":    top.Nodes[1].HugePages[0].Total == 12,
		"pool of node 0 shrunk":   top.Nodes[0].HugePages[0].Total == 0,
		"progress reported":       reported == ram.Size,
		"moved bytes reported":    outcomes[10].Moved != nil && outcomes[10].Moved.Moved == 64*mib,
		"own memory's sum, too":   outcomes[9].Moved != nil && outcomes[9].Moved.Moved == 4*mib,
		"recorded as restrictive": after.Config.NUMATune != nil && after.Config.NUMATune.Mode == "restrictive",
	} {
		if !holds {
			t.Errorf("not true: %s", what)
		}
	}
}

// Whichever step fails, the steps before it are done, it has failed with the
// reason, and those after it were not tried.
func TestRun_StopsAtTheFailingStep(t *testing.T) {
	_, g, _ := running(t)
	lost := errors.New("lost")
	for i := range everyKind(g) {
		h, g, x := running(t)
		p := planOf(t, h, g, everyKind(g)...)
		// Run checks the guest once before each step: step i is call 2i+2.
		h.Inject(fake.Fault{Before: fake.Nth(2*i+2, func() error { return lost })})
		outcomes, err := x.Run(context.Background(), p, guest.Intent{})
		if !errors.Is(err, lost) || errors.Is(err, apply.ErrGone) ||
			!strings.Contains(err.Error(), p.Steps[i].String()) {
			t.Errorf("step %d: error %v", i, err)
		}
		var got, want []apply.Status
		for k, o := range outcomes {
			got = append(got, o.Status)
			switch {
			case k < i:
				want = append(want, apply.Done)
			case k == i:
				want = append(want, apply.Failed)
			default:
				want = append(want, apply.Skipped)
			}
		}
		if len(outcomes) != len(p.Steps) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("step %d fails: %v, want %v", i, got, want)
		}
		if apply.Complete(outcomes) {
			t.Errorf("step %d failed, but the plan counts as complete", i)
		}
	}
}

func TestAStalePlanIsRefused(t *testing.T) {
	h, g, x := running(t)
	p := planOf(t, h, g, everyKind(g)...)
	if err := h.Replace(fake.Definition{Name: "g", Config: inventory.Config{VCPUs: 1, Memory: 128 * mib,
		Source: "anonymous"}}); err != nil {
		t.Fatal(err)
	}
	outcomes, err := x.Run(context.Background(), p, guest.Intent{})
	if !errors.Is(err, apply.ErrGone) || len(outcomes) != len(p.Steps) {
		t.Errorf("%v, %d outcomes", err, len(outcomes))
	}
	for _, o := range outcomes {
		if o.Status != apply.Skipped {
			t.Errorf("%s: %s", o.Step, o.Status)
		}
	}
	if calls := h.Calls(); calls[len(calls)-1].Method != "StartTicks" {
		t.Errorf("the new guest was touched: %v", calls)
	}
}

func TestRun_GuestEndsDuringAStep(t *testing.T) {
	h, g, x := running(t)
	p := planOf(
		t,
		h,
		g,
		plan.Step{
			Kind:    plan.MoveRange,
			Address: g.Seen.Ranges[0].Address,
			Size:    g.Seen.Ranges[0].Size,
			Nodes:   nodes("1"),
		},
	)
	h.Inject(fake.Fault{Before: fake.NthOf("Move", 1, func() error { h.Vanish("g"); return nil })})
	if _, err := x.Run(context.Background(), p, guest.Intent{}); !errors.Is(err, apply.ErrGone) ||
		!errors.Is(err, unix.ESRCH) {
		t.Errorf("error %v, want that the guest is gone, and the kernel's own error", err)
	}
	if _, err := apply.Basis(h, g); !errors.Is(err, apply.ErrGone) {
		t.Errorf("basis of a guest that ended: %v", err)
	}
}

// Only ESRCH and another start time mean that a guest has ended: if its files
// cannot be read (a mount hides them, for example), it may be running.
func TestStillThere_UnreadIsNotGone(t *testing.T) {
	for _, unread := range []error{fs.ErrNotExist, fs.ErrPermission, unix.EIO} {
		h, g, _ := running(t)
		p := planOf(t, h, g)
		h.Inject(fake.Fault{Before: func(fake.Call) error { return unread }})
		for what, err := range map[string]error{"StillThere": apply.StillThere(h, p.Basis), "Basis": basisError(h, g)} {
			if errors.Is(err, apply.ErrGone) || !errors.Is(err, apply.ErrUnread) || !errors.Is(err, unread) {
				t.Errorf("%s with %v: %v; want ErrUnread", what, unread, err)
			}
		}
	}
}

func basisError(h *fake.Host, g inventory.Guest) error {
	_, err := apply.Basis(h, g)
	return err
}

func TestAnEndedContextStopsBetweenSteps(t *testing.T) {
	h, g, x := running(t)
	ctx, cancel := context.WithCancel(context.Background())
	p := planOf(t, h, g, plan.Step{Kind: plan.Affinity, TID: g.PID, CPUs: cpus("1")},
		plan.Step{Kind: plan.Affinity, TID: g.PID, CPUs: cpus("2")})
	h.Inject(fake.Fault{Before: fake.NthOf("SetAffinity", 1, func() error { cancel(); return nil })})
	outcomes, err := x.Run(ctx, p, guest.Intent{})
	if !errors.Is(err, context.Canceled) || outcomes[0].Status != apply.Done || outcomes[1].Status != apply.Skipped {
		t.Errorf("%v: %+v", err, outcomes)
	}
}

func TestRun_PartialSteps(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(h *fake.Host) error
		step   func(g inventory.Guest) plan.Step
		want   apply.Status
		detail string
		err    error
	}{
		{"pages in use stay", func(h *fake.Host) error { return h.Stick("g", 4*mib) },
			func(g inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.MoveRange, Address: g.Seen.Ranges[0].Address, Size: g.Seen.Ranges[0].Size,
					Nodes: nodes("1")}
			}, apply.Partial, "4 MiB did not move (1024 pages: in use or pinned)", nil},
		{"a small remainder of the process's own memory is no " +
			"shortfall", func(h *fake.Host) error { return h.Stick("g", mib) },
			func(g inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.MoveOwn, Nodes: nodes("1"),
					Parts: []plan.Part{{Address: g.Seen.Ranges[0].Address, Size: g.Seen.Ranges[0].Size}}}
			}, apply.Done, "1 MiB left behind, in use", nil},
		{"a large remainder is one", func(h *fake.Host) error { return h.Stick("g", 2*mib) },
			func(g inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.MoveOwn, Nodes: nodes("1"), Bytes: 64 * mib,
					Parts: []plan.Part{{Address: g.Seen.Ranges[0].Address, Size: g.Seen.Ranges[0].Size}}}
			}, apply.Partial, "2 MiB left behind, in use", nil},
		{"a full node", func(h *fake.Host) error { h.Fill(1, 24*mib); return nil },
			func(g inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.MoveRange, Address: g.Seen.Ranges[0].Address, Size: g.Seen.Ranges[0].Size,
					Nodes: nodes("1")}
			}, apply.Failed, "cannot allocate memory", unix.ENOMEM},
		{"a full node, own memory", func(h *fake.Host) error { h.Fill(1, 0); return nil },
			func(g inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.MoveOwn, Nodes: nodes("1"),
					Parts: []plan.Part{{Address: g.Seen.Ranges[1].Address, Size: g.Seen.Ranges[1].Size}}}
			}, apply.Failed, "cannot allocate memory", unix.ENOMEM},
		{"a pool that cannot grow", func(h *fake.Host) error { h.Fill(1, 5*mib); return nil },
			func(inventory.Guest) plan.Step {
				return plan.Step{Kind: plan.GrowPool, Node: 1, PageSize: 2 * mib, Pages: 4}
			},
			apply.Partial, "2 of 4 pages: node 1 has no more unfragmented free memory", nil},
		{"a step of an unknown kind", func(*fake.Host) error { return nil },
			func(inventory.Guest) plan.Step { return plan.Step{Kind: "teleport"} }, apply.Failed,
			`unknown kind of step "teleport"`, errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, g, x := running(t)
			if err := c.before(h); err != nil {
				t.Fatal(err)
			}
			outcomes, err := x.Run(context.Background(), planOf(t, h, g, c.step(g)), guest.Intent{})
			if (err == nil) != (c.err == nil) || (c.err != nil && c.err != errAny && !errors.Is(err, c.err)) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			o := outcomes[0]
			if o.Status != c.want || !strings.Contains(o.Detail, c.detail) ||
				(o.Status == apply.Done) != apply.Complete(outcomes) {
				t.Errorf("%s %q, want %s %q", o.Status, o.Detail, c.want, c.detail)
			}
			if err := h.Audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// busyKernel reports pages in use for the first calls of Move.
type busyKernel struct {
	apply.Kernel
	inUse []topology.Bytes // of each call; the last one stays
	calls int
}

func (k *busyKernel) Move(
	context.Context, int, plan.Step, func(done, of topology.Bytes),
) (plan.Moved, error) {
	left := k.inUse[min(k.calls, len(k.inUse)-1)]
	k.calls++
	return plan.Moved{Moved: 8*mib - left, Failed: left}, nil
}

func TestMoveOwn_AsksAgainForPagesInUse(t *testing.T) {
	for _, c := range []struct {
		about string
		inUse []topology.Bytes
		calls int
		want  apply.Status
	}{
		{"a remainder that is tolerated", []topology.Bytes{mib}, 1, apply.Done},
		{"pages in use for a moment", []topology.Bytes{4 * mib, mib}, 2, apply.Done},
		{"fewer with each pass", []topology.Bytes{4 * mib, 3 * mib, 2 * mib, mib}, 3, apply.Partial},
		{"pages that stay in use", []topology.Bytes{4 * mib}, 2, apply.Partial},
	} {
		t.Run(c.about, func(t *testing.T) {
			h, g, x := running(t)
			kernel := &busyKernel{Kernel: x.Kernel, inUse: c.inUse}
			x.Kernel = kernel
			step := plan.Step{Kind: plan.MoveOwn, Nodes: nodes("1"), Bytes: 8 * mib,
				Parts: []plan.Part{{Address: g.Seen.Ranges[0].Address, Size: g.Seen.Ranges[0].Size}}}
			outcomes, err := x.Run(t.Context(), planOf(t, h, g, step), guest.Intent{})
			if err != nil {
				t.Fatal(err)
			}
			if o := outcomes[0]; o.Status != c.want || kernel.calls != c.calls {
				t.Errorf("%s after %d passes, want %s after %d", o.Status, kernel.calls, c.want, c.calls)
			}
		})
	}
}

var errAny = errors.New("any")
