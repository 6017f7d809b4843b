package fake_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// The fake satisfies the interfaces of the real drivers.
var (
	_ observe.Kernel     = (*fake.Host)(nil)
	_ observe.Hypervisor = (*fake.Host)(nil)
	_ apply.Kernel       = (*fake.Host)(nil)
	_ apply.Hypervisor   = (*fake.Host)(nil)
	_ operate.Domains    = (*fake.Host)(nil)
)

const mib = topology.MiB

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

// one is a guest of one vCPU on CPU 0 with 256 MiB.
func one(tune *inventory.NUMATune) fake.Definition {
	return fake.Definition{
		Name: "g",
		Config: inventory.Config{VCPUs: 1, Memory: 256 * mib, Source: "anonymous", NUMATune: tune,
			Pins: map[guest.VCPUID]topology.CPUSet{0: cpus("0")}},
	}
}

func with(t *testing.T, machine string, d fake.Definition) (*fake.Host, int) {
	t.Helper()
	h := fake.MustNew(machine)
	if err := h.Add(d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Audit(); err != nil {
			t.Errorf("memory was lost or created: %v", err)
		}
	})
	g, _ := h.Guest("g")
	return h, g.PID
}

// ram is the guest's one cell.
func ram(t *testing.T, h *fake.Host) inventory.MemoryRange {
	t.Helper()
	g, ok := h.Guest("g")
	if !ok || len(g.Seen.Ranges) == 0 {
		t.Fatal("the guest is gone")
	}
	return g.Seen.Ranges[0]
}

func TestFirstTouchFollowsPolicyAndCpuset(t *testing.T) {
	for _, c := range []struct {
		name string
		tune *inventory.NUMATune
		want topology.NodeID
	}{
		{"no policy: where the vCPU runs", nil, 0},
		{"strict", &inventory.NUMATune{Mode: "strict", Nodes: nodes("2")}, 2},
		{"preferred", &inventory.NUMATune{Mode: "preferred", Nodes: nodes("3")}, 3},
		{"restrictive: the cpuset alone", &inventory.NUMATune{Mode: "restrictive", Nodes: nodes("1")}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, _ := with(t, "nodes:4 cores:2 square", one(c.tune))
			if got, err := h.Touch("g", 64*mib); err != nil || got != 64*mib {
				t.Fatalf("touched %v: %v", got, err)
			}
			if r := ram(t, h); r.ByNode[c.want] != 128*mib || len(r.ByNode) != 1 {
				t.Errorf("memory is on %v, want all on node %d", r.ByNode, c.want)
			}
		})
	}
}

func TestAFullNodeOverflowsToTheNearest(t *testing.T) {
	h, _ := with(t, "nodes:4 cores:2 square distances:10,16,28", one(nil))
	h.Fill(0, 0)
	h.Fill(1, 0)
	if _, err := h.Touch("g", 10*mib); err != nil {
		t.Fatal(err)
	}
	if r := ram(t, h); r.ByNode[2] != 10*mib {
		t.Errorf("memory is on %v, want 10 MiB on node 2, nearer than 3", r.ByNode)
	}
}

func TestMovesEndAtAFullNode(t *testing.T) {
	h, pid := with(t, "nodes:2 cores:1", one(nil))
	h.Fill(1, 24*mib)
	s := plan.Step{Address: ram(t, h).Address, Size: ram(t, h).Size, Nodes: nodes("1")}
	moved, err := h.Move(context.Background(), pid, s, func(topology.Bytes, topology.Bytes) {})
	if !errors.Is(err, unix.ENOMEM) || moved.Moved != 24*mib || moved.Failed != 40*mib || moved.Why["ENOMEM"] == 0 {
		t.Errorf("moved %+v, error %v", moved, err)
	}
}

func TestMovesObeyTheCpuset(t *testing.T) {
	h, pid := with(t, "nodes:2 cores:1", one(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0")}))
	s := plan.Step{Address: ram(t, h).Address, Size: ram(t, h).Size, Nodes: nodes("1")}
	if _, err := h.Move(context.Background(), pid, s, nil); !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v, want EACCES", err)
	}
}

// As seen on a 6.1 kernel: narrowing moves pages and remaps the policy.
func TestNarrowingMovesPagesAndRemapsThePolicy(t *testing.T) {
	h, pid := with(t, "nodes:4 cores:1", one(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0")}))
	for _, step := range []struct{ mems, policy string }{{"0-3", "bind:0"}, {"1", "bind:1"}, {"0-1", "bind:0"}} {
		if err := h.SetMems(context.Background(), pid, nodes(step.mems)); err != nil {
			t.Fatal(err)
		}
		if r := ram(t, h); r.Policy != step.policy {
			t.Errorf("after cpuset.mems %s the policy is %s, want %s", step.mems, r.Policy, step.policy)
		}
	}
	if r := ram(t, h); r.ByNode[1] != 64*mib {
		t.Errorf("memory is on %v, want it on node 1: the last write only widened", r.ByNode)
	}
}

func TestLibvirtRetunesOnlyRestrictiveGuests(t *testing.T) {
	for mode, allowed := range map[string]bool{"": true, "restrictive": true, "strict": false, "preferred": false} {
		var tune *inventory.NUMATune
		if mode != "" {
			tune = &inventory.NUMATune{Mode: mode, Nodes: nodes("0")}
		}
		h, _ := with(t, "nodes:2 cores:1", one(tune))
		err := h.TuneLive(context.Background(), "g", nodes("1"))
		if errors.Is(err, guest.ErrRefused) == allowed {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
}

func TestMove_HugePagesMoveTheirPool(t *testing.T) {
	d := one(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0")})
	d.Config.PageSize = 2 * mib
	d.Config.Immediate = true
	h, pid := with(t, "nodes:2 cores:1 huge:2M=128", d)
	if _, err := h.ShrinkPool(1, 2*mib, 88); err != nil {
		t.Fatal(err)
	}
	if err := h.SetMems(context.Background(), pid, nodes("1")); err != nil {
		t.Fatal(err)
	}
	var total, free []uint64
	for _, n := range h.Nodes().Nodes {
		total, free = append(total, n.HugePages[0].Total), append(free, n.HugePages[0].Free)
	}
	if !slices.Equal(total, []uint64{40, 128}) || !slices.Equal(free, []uint64{40, 0}) {
		t.Errorf("pools of %d pages, %d free; want 40, 128 and 40, 0", total, free)
	}
}

func TestStart_RefusesAUsedName(t *testing.T) {
	h, _ := with(t, "nodes:2 cores:1", one(nil))
	before, _ := h.Guest("g")
	if err := h.Add(one(nil)); !errors.Is(err, guest.ErrExists) {
		t.Errorf("error %v", err)
	}
	if after, _ := h.Guest("g"); after.PID != before.PID {
		t.Errorf("process %d became %d", before.PID, after.PID)
	}
}

func TestFaults(t *testing.T) {
	h, pid := with(t, "nodes:2 cores:1", one(nil))
	lost := errors.New("lost")
	h.Inject(fake.Fault{
		Before: fake.Nth(2, func() error { return lost }),
		After:  fake.NthOf("PinEmulator", 1, func() error { return lost }),
	})
	if _, err := h.StartTicks(pid); err != nil {
		t.Errorf("call 1: %v", err)
	}
	if _, err := h.StartTicks(pid); !errors.Is(err, lost) {
		t.Errorf("call 2: %v, want it to fail", err)
	}
	if _, err := h.StartTicks(pid); err != nil {
		t.Errorf("call 3: %v", err)
	}
	if err := h.PinEmulator(context.Background(), "g", cpus("1")); !errors.Is(err, lost) {
		t.Errorf("call 4: %v, want its answer to be lost", err)
	}
	if g, _ := h.Guest("g"); !g.Config.EmulatorPin.Equal(cpus("1")) {
		t.Errorf("call 4 had no effect: emulator on CPUs %s", g.Config.EmulatorPin)
	}
	if calls := h.Calls(); len(calls) != 4 || calls[2] != (fake.Call{N: 3, Method: "StartTicks"}) {
		t.Errorf("calls %v", calls)
	}
}
