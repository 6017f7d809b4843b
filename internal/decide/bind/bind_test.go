package bind_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func nodes(s string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](s) }
func cpus(s string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](s) }
func ptr[T any](v T) *T               { return &v }
func placed(n topology.NodeID, size topology.Bytes) topology.MemoryByNode {
	return topology.MemoryByNode{n: size}
}

// square is a host of four nodes with two CPUs each.
func square() *topology.Topology {
	t := &topology.Topology{}
	for n := range topology.NodeID(4) {
		first := topology.CPUID(2 * n)
		t.Nodes = append(t.Nodes, topology.Node{ID: n, CPUs: topology.Range(first, first+1), Memory: topology.GiB})
		for c := first; c <= first+1; c++ {
			t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: n, Siblings: topology.SetOf(c)})
		}
	}
	return t
}

// seenOn is a one-vCPU guest of 128 MiB, all of it on node 0.
func seenOn(tune *inventory.NUMATune, mems, policy, backing string) inventory.Guest {
	return inventory.Guest{
		Name:       "g",
		Hypervisor: guest.LibvirtQEMU,
		Can:        inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State:      "running",
		PID:        7,
		Config:     inventory.Config{VCPUs: 1, Memory: 128 * topology.MiB, NUMATune: tune},
		Seen: inventory.Seen{
			Threads: []inventory.Thread{
				{TID: 7, Name: "qemu", Role: inventory.RoleEmulator, Affinity: cpus("0-7"), Mems: nodes(mems)},
				{
					TID:      8,
					Name:     "CPU 0/KVM",
					Role:     inventory.RoleVCPU,
					VCPU:     ptr(guest.VCPUID(0)),
					Affinity: cpus("0-7"),
					Mems:     nodes(mems),
				}},
			Ranges: []inventory.MemoryRange{
				{Address: 0x1000, Size: 128 * topology.MiB, Cell: ptr(guest.CellID(0)), Policy: policy,
					PageSize: 4 * topology.KiB, Backing: backing, ByNode: placed(0, 128*topology.MiB)},
			},
		},
	}
}

func onNode(n topology.NodeID, mode guest.MemoryMode) guest.Placement {
	c := topology.Range(topology.CPUID(2*n), topology.CPUID(2*n+1))
	return guest.Placement{
		Guest:      "g",
		Nodes:      topology.SetOf(n),
		CPUMode:    guest.CPURange,
		MemoryMode: mode,
		Movable:    true,
		Cells: []guest.Cell{
			{VCPUs: topology.SetOf[guest.VCPUID](0), Memory: 128 * topology.MiB, Nodes: topology.SetOf(n)}},
		VCPUs:    []guest.VCPU{{ID: 0, CPUs: c}},
		Emulator: c,
	}
}

func kinds(p plan.Steps) string {
	var k []string
	for _, s := range p.Steps {
		k = append(k, string(s.Kind))
	}
	return strings.Join(k, " ")
}

func TestSteps_MechanismFollowsTheGuestsMode(t *testing.T) {
	tune := func(mode string) *inventory.NUMATune { return &inventory.NUMATune{Mode: mode, Nodes: nodes("0")} }
	for _, c := range []struct {
		name   string
		guest  inventory.Guest
		mode   guest.MemoryMode
		want   string
		cannot string
	}{
		{"no numatune: libvirt records restrictive " +
			"afterwards", seenOn(nil, "0-3", "default", "anonymous"), guest.MemoryPreferred,
			"record-intent pin-vcpu pin-emulator move-memory numatune-live", ""},
		{"restrictive: widen and narrow through libvirt", seenOn(tune("restrictive"), "0", "default", "anonymous"),
			guest.MemoryRestrictive,
			"record-intent numatune-live pin-vcpu pin-emulator move-memory numatune-live", ""},
		{"strict anonymous: thread groups, policy follows the " +
			"cpuset", seenOn(tune("strict"), "0", "bind:0", "anonymous"), guest.MemoryStrict,
			"record-intent allow-nodes pin-vcpu pin-emulator move-memory hold-to-nodes", ""},
		{"strict memfd: policy changed from outside", seenOn(tune("strict"), "0", "bind:0", "memfd"),
			guest.MemoryStrict,
			"record-intent allow-nodes pin-vcpu pin-emulator set-policy move-memory hold-to-nodes", ""},
		{"preferred without cpuset: nothing to widen, hold at the " +
			"end", seenOn(tune("preferred"), "0-3", "prefer:0", "anonymous"), guest.MemoryPreferred,
			"record-intent pin-vcpu pin-emulator move-memory hold-to-nodes", ""},
		{"no memory binding wanted: CPUs only", seenOn(nil, "0-3", "default", "anonymous"), guest.MemoryNone,
			"record-intent pin-vcpu pin-emulator", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := bind.Steps(bind.Request{Guest: c.guest, Topology: square(), Placement: onNode(2, c.mode)})
			if got := kinds(p); got != c.want {
				t.Errorf("steps\n got %s\nwant %s", got, c.want)
			}
			if len(p.Cannot) > 0 {
				t.Errorf("refused without need: %v", p.Cannot)
			}
		})
	}
}

func TestSteps_NarrowAfterTheCopy(t *testing.T) {
	p := bind.Steps(
		bind.Request{
			Guest:     seenOn(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0")}, "0", "bind:0", "anonymous"),
			Topology:  square(),
			Placement: onNode(3, guest.MemoryStrict),
		},
	)
	allowed := nodes("0")
	for _, s := range p.Steps {
		switch s.Kind {
		case plan.AllowNodes:
			if !allowed.SubsetOf(s.Nodes) {
				t.Errorf("%v takes nodes away before the copy", s)
			}
			allowed = s.Nodes
		case plan.MoveRange:
			if !s.Nodes.SubsetOf(allowed) {
				t.Errorf("%v copies to nodes outside the cpuset %s", s, allowed)
			}
		default: // changes no cpuset and copies nothing
		}
	}
}

func TestSteps_VFIOMemoryStays(t *testing.T) {
	g := seenOn(nil, "0-3", "default", "anonymous")
	g.Config.Devices = []string{"0000:3b:00.0"}
	p := bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: onNode(2, guest.MemoryPreferred)})
	if strings.Contains(kinds(p), "move-memory") {
		t.Errorf("plans to move pinned memory: %s", kinds(p))
	}
	if len(p.Cannot) == 0 || !strings.Contains(p.Cannot[0].Why, "0000:3b:00.0") {
		t.Errorf("does not name the device that pins the memory: %v", p.Cannot)
	}
}

func TestSteps_OwnMemoryOfTheProcessIsOneStep(t *testing.T) {
	g := seenOn(nil, "0-3", "default", "anonymous")
	for i := range uint64(5) {
		g.Seen.Ranges = append(
			g.Seen.Ranges,
			inventory.MemoryRange{
				Address:  0x100000000 + i<<24,
				Size:     topology.MiB,
				PageSize: 4096,
				Backing:  "anonymous",
				ByNode:   placed(1, topology.MiB),
			},
		)
	}
	p := bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: onNode(2, guest.MemoryPreferred)})
	for _, s := range p.Steps {
		if s.Kind == plan.MoveOwn {
			if len(s.Parts) != 5 || s.Bytes != 5*topology.MiB {
				t.Errorf("%d parts, %v; want all five", len(s.Parts), s.Bytes)
			}
			return
		}
	}
	t.Errorf("the process's own memory stays on node 1: %s", kinds(p))
}

func TestSteps_GuestInPlaceNeedsNothing(t *testing.T) {
	g := seenOn(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0")}, "0", "bind:0", "anonymous")
	want := onNode(0, guest.MemoryStrict)
	g.Placement = &want
	g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: cpus("0-1")}
	g.Config.EmulatorPin = cpus("0-1")
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity = cpus("0-1")
	}
	p := bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: want, Persistent: true})
	if len(p.Steps) != 0 || len(p.Cannot) != 0 {
		t.Errorf("steps for a guest that is as intended: %s %v", p.Text(), p.Cannot)
	}
}

func TestSteps_AnonymousCellsThatSwapNodesAreReported(t *testing.T) {
	g := seenOn(&inventory.NUMATune{Mode: "strict", Nodes: nodes("0-1")}, "0-1", "bind:0", "anonymous")
	second := g.Seen.Ranges[0]
	second.Address, second.Cell, second.Policy, second.ByNode = 0x9000000, ptr(guest.CellID(1)), "bind:1", placed(1,
		128*topology.MiB)
	g.Seen.Ranges = append(g.Seen.Ranges, second)
	want := onNode(1, guest.MemoryStrict)
	want.Nodes = nodes("0-1")
	want.Cells = append(want.Cells, guest.Cell{ID: 1, Memory: 128 * topology.MiB, Nodes: nodes("0")})
	p := bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: want})
	if strings.Count(kinds(p), "move-memory") != 2 {
		t.Errorf("both cells' pages can move: %s", kinds(p))
	}
	if len(p.Cannot) != 2 {
		t.Errorf("want a refusal for the policy of each cell, got %v", p.Cannot)
	}
}

func TestSteps_InterleavedMemoryIsSpreadEvenly(t *testing.T) {
	want := onNode(0, guest.MemoryInterleave)
	want.Nodes = nodes("0-1")
	want.Cells[0].Nodes = nodes("0-1")
	p := bind.Steps(
		bind.Request{Guest: seenOn(nil, "0-3", "default", "anonymous"), Topology: square(), Placement: want})
	for _, s := range p.Steps {
		if s.Kind == plan.MoveRange {
			if s.Bytes != 64*topology.MiB || s.Mode != guest.MemoryInterleave {
				t.Errorf("want half of 128 MiB to be spread, got %v mode %s", s.Bytes, s.Mode)
			}
			return
		}
	}
	t.Errorf("all memory on one node is not interleaved, yet nothing moves: %s", kinds(p))
}

// Seen on Debian's 6.1 (lab results, e): narrowing a strict two-cell guest {0},{1} and widening it again.
func TestRebind_FoldsAsTheKernelDoes(t *testing.T) {
	cell0, cell1, at := nodes("0"), nodes("1"), nodes("0-1")
	for _, step := range []struct{ write, cell0, cell1 string }{{"1", "1", "1"}, {"0-1", "0", "0"}, {"2-3", "2", "2"},
		{"0-1", "0", "0"}} {
		fresh := nodes(step.write)
		cell0, cell1, at = bind.Rebind(cell0, at, fresh), bind.Rebind(cell1, at, fresh), fresh
		if !cell0.Equal(nodes(step.cell0)) || !cell1.Equal(nodes(step.cell1)) {
			t.Errorf("after cpuset.mems=%s: cells on %s and %s, the kernel had them on %s and %s", step.write, cell0,
				cell1, step.cell0, step.cell1)
		}
	}
}

func TestRebind_StaysInsideTheNewSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := func(name string) topology.NodeSet {
			return topology.SetOf(
				rapid.SliceOfNDistinct(rapid.Map(rapid.IntRange(0, 70),
					func(i int) topology.NodeID { return topology.NodeID(i) }), 1, 6, rapid.ID[topology.NodeID]).
					Draw(t, name)...)
		}
		old, fresh := set("old"), set("new")
		policy := topology.SetOf(rapid.SampledFrom(old.IDs()).Draw(t, "node"))
		if got := bind.Rebind(policy, old, fresh); !got.SubsetOf(fresh) || got.Len() != 1 {
			t.Fatalf("Rebind(%s, %s, %s) = %s", policy, old, fresh, got)
		}
		if got := bind.Rebind(policy, old, old); !got.Equal(policy) {
			t.Fatalf("an unchanged cpuset moved policy %s to %s", policy, got)
		}
	})
}

func ExampleSplitPolicy() {
	for _, text := range []string{"bind:0-1", "prefer (many):1-2", "interleave=static:0", "default"} {
		mode, nodes := bind.SplitPolicy(text)
		fmt.Printf("%q %q\n", mode, nodes.String())
	}
	// Output:
	// "bind" "0-1"
	// "prefer (many)" "1-2"
	// "interleave" "0"
	// "default" ""
}
