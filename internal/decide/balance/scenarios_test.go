package balance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const square = "nodes:4 cores:4 memory:16G distances:10,16,28 square"

func TestEverythingOnOneNodeAfterAMassStart(t *testing.T) {
	h := machine(square)
	for i := range 4 { // memory on node 0, vCPUs nailed there too
		add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 2, memory: 3 * gib, cpus: on(0), used: 1, wait: 1})
	}
	round := planned(t, h, policy.Policy{})
	after := legal(t, h, policy.Policy{}, round)
	perNode := map[topology.NodeID]int{}
	for _, g := range after.Guests {
		n, _ := g.Placement.Nodes.First()
		perNode[n]++
		if g.Placement.Nodes.Len() != 1 {
			t.Errorf("%s is on %s", g.Name, g.Placement.Nodes)
		}
	}
	for n, count := range perNode {
		if count > 2 || n != 0 && count > 1 {
			t.Errorf("%d guests on node %d\n%s", count, n, round.Text())
		}
	}
	if len(round.Moves) != 2 {
		t.Errorf("%d moves; node 0 has a CPU for each vCPU of two\n%s", len(round.Moves), round.Text())
	}
}

func TestOneNodeOverloadedAnotherIdle(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 4 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.MoveGuest {
		t.Fatalf("one guest must go to the idle node\n%s", round.Text())
	}
	m := round.Moves[0]
	if m.Benefit.WaitCPUs <= 3 || m.Cost.Bytes == 0 ||
		m.Cost.Took != time.Duration(float64(m.Cost.Bytes)/float64(gib)*1e9) {
		t.Errorf("benefit %+v, price %+v", m.Benefit, m.Cost)
	}
	if u := m.Guests[0].Undo; u.Placement == nil || !u.VCPUNodes.Contains(0) || u.Memory[0] == 0 {
		t.Errorf("undo does not say how it was: %+v", u)
	}
	if !strings.Contains(m.Why, "wait for CPUs 50 %") {
		t.Errorf("why: %s", m.Why)
	}
}

func TestASwapIsTheOnlyImprovement(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	// Each has its memory on the other's node, and both nodes are nearly full.
	add(h, vm{name: "a", vcpus: 4, memory: 14 * gib, cpus: on(0), memOn: bytesOn(1, 14*gib), used: 3})
	add(h, vm{name: "b", vcpus: 4, memory: 14 * gib, cpus: on(1), memOn: bytesOn(0, 14*gib), used: 3})
	crossed(h)
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 {
		t.Fatalf("want one swap\n%s", round.Text())
	}
	for _, m := range round.Moves {
		if m.Kind != plan.Swap || len(m.Guests) != 2 {
			t.Errorf("%s is no swap", m)
		}
	}
}

// crossed makes reservations follow memory: what an interrupted bind leaves.
func crossed(h *inventory.Host) {
	for i := range h.Guests {
		p := h.Guests[i].Placement
		for k := range p.Reservations {
			p.Reservations[k].Node = 1 - p.Reservations[k].Node
		}
	}
}

func bytesOn(n topology.NodeID, b topology.Bytes) topology.MemoryByNode {
	return topology.MemoryByNode{n: b}
}

func TestPlan_ConsolidatesWideGuestWithCells(t *testing.T) {
	h := machine(square)
	// Two cells on opposite nodes; neighbours have room.
	add(
		h,
		vm{
			name:   "wide",
			vcpus:  8,
			memory: 8 * gib,
			cpus:   on(0, 3),
			memOn:  topology.MemoryByNode{0: 4 * gib, 3: 4 * gib},
			used:   7,
			spec: func(s *guest.Spec) {
				s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
			},
		},
	)
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 {
		t.Fatalf("want one move\n%s", round.Text())
	}
	m := round.Moves[0]
	if to := m.Guests[0].Placement.Nodes; to.Len() != 2 || to.Equal(topology.SetOf[topology.NodeID](0, 3)) ||
		m.Cost.Bytes != 4*gib {
		t.Errorf("went to %s, %v copied; one cell of two must come near", to, m.Cost.Bytes)
	}
}

func TestPlan_SplitsWideGuest(t *testing.T) {
	h := machine(square)
	add(h, vm{name: "wide", vcpus: 8, memory: 8 * gib, cpus: on(0), used: 4, wait: 4})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.Split || goesTo(round, "wide").Len() != 2 {
		t.Fatalf("8 vCPUs on 4 CPUs need two nodes\n%s", round.Text())
	}
	if goesTo(round, "wide").Equal(topology.SetOf[topology.NodeID](0, 3)) {
		t.Error("split over the two nodes farthest apart")
	}
}

func TestPlan_ConsolidatesSmallGuest(t *testing.T) {
	h := machine(square)
	add(h, vm{name: "loose", vcpus: 2, memory: 4 * gib, cpus: on(0, 1, 2, 3), used: 2,
		memOn: topology.MemoryByNode{0: gib, 1: gib, 2: gib, 3: gib}})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.Consolidate || goesTo(round, "loose").Len() != 1 {
		t.Fatalf("want it gathered on one node\n%s", round.Text())
	}
}

func TestPlan_RepinsToMemory(t *testing.T) {
	h := machine(square)
	add(h, vm{name: "strayed", vcpus: 2, memory: 4 * gib, cpus: on(3), memOn: bytesOn(1, 4*gib), used: 2})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.Repin || round.Moves[0].Cost.Bytes != 0 ||
		round.Moves[0].Cost.PageTables != 1 {
		t.Fatalf("nothing needs to be copied\n%s", round.Text())
	}
}

func TestPlan_FetchesMemoryWhenOtherNodeIsBusy(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "far", vcpus: 2, memory: 4 * gib, cpus: on(1), memOn: bytesOn(0, 4*gib), used: 2})
	add(h, vm{name: "busy", vcpus: 4, memory: 4 * gib, cpus: on(0), used: 3.8})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.FetchLocal || !goesTo(round, "far").Contains(1) {
		t.Fatalf("its memory must come, its vCPUs must not go\n%s", round.Text())
	}
}

// The best state has far on node 0, with its memory, and busy on node 1. Copying busy for that does
// not pay; copying far's memory to the node where it runs does.
func TestPlan_FetchesMemoryWhereAnExchangeDoesNotPay(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G distances:10,31")
	add(h, vm{name: "busy", vcpus: 4, memory: 7 * gib, cpus: on(0), used: 4})
	add(h, vm{name: "far", vcpus: 1, memory: 9 * gib, cpus: on(1), memOn: bytesOn(0, 9*gib), used: 0.5})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || len(round.Moves[0].Guests) != 1 || !goesTo(round, "far").Contains(1) {
		t.Fatalf("far alone must move\n%s", round.Text())
	}
}

// xapi followed memory into an overload: -40 to -75 %.
func TestPlan_LocalityDoesNotOverloadCPUs(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	// The memory of all lies on node 0, of which one has no room to come to node 1.
	add(h, vm{name: "busy", vcpus: 4, memory: 4 * gib, cpus: on(0), used: 3.9})
	add(h, vm{name: "bait", vcpus: 4, memory: 8 * gib, cpus: on(1), memOn: bytesOn(0, 8*gib), used: 3.5})
	add(h, vm{name: "full", vcpus: 1, memory: 12 * gib, cpus: on(1), used: 0.05})
	p := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"full": policy.ModeOff, "busy": policy.ModeOff}},
	}
	round := planned(t, h, p)
	if to := goesTo(round, "bait"); !to.IsEmpty() {
		t.Fatalf("went to %s, where CPUs are taken or memory is\n%s", to, round.Text())
	}
	if len(round.Degraded) != 1 || round.Degraded[0].Guest != "bait" || len(round.Blocked) != 1 {
		t.Errorf("it is degraded and blocked, and the plan must say so: %+v, %+v", round.Degraded, round.Blocked)
	}
}

func TestTargetNearlyFull(t *testing.T) {
	h := machine("nodes:3 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 6 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "b", vcpus: 4, memory: 6 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "full", vcpus: 1, memory: 12 * gib, cpus: on(1), used: 0.05})
	add(h, vm{name: "other", vcpus: 4, memory: gib, cpus: on(2), used: 2})
	p := policy.Policy{
		Balance: policy.Balance{Guests: map[string]policy.Mode{"full": policy.ModeOff, "other": policy.ModeOff}},
	}
	round := planned(t, h, p)
	for _, name := range []string{"a", "b"} {
		if goesTo(round, name).Contains(1) {
			t.Errorf("%s went to the full node", name)
		}
	}
	if len(round.Moves) != 0 { // node 2 has room in memory, and CPUs for half a guest only
		for _, m := range round.Moves {
			if !m.Guests[0].Placement.Nodes.Contains(2) {
				t.Errorf("%s", m)
			}
		}
	}
}

func TestPlan_HugePagesWithoutRoomDoNotMove(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G huge:1G=6")
	giants := func(s *guest.Spec) { s.PageSize = gib }
	add(h, vm{name: "a", vcpus: 4, memory: 3 * gib, cpus: on(0), used: 2, wait: 2, spec: giants})
	add(h, vm{name: "b", vcpus: 4, memory: 3 * gib, cpus: on(0), used: 2, wait: 2, spec: giants})
	add(h, vm{name: "c", vcpus: 1, memory: 5 * gib, cpus: on(1), used: 0.1, spec: giants})
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"c": policy.ModeOff}}}
	if round := planned(t, h, p); len(round.Moves) != 0 || len(round.Blocked) != 2 {
		t.Fatalf("1 GiB pages of node 1 are taken; nothing can move\n%s", round.Text())
	}
	// The same in small pages moves.
	h = machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 3 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "b", vcpus: 4, memory: 3 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "c", vcpus: 1, memory: 5 * gib, cpus: on(1), used: 0.1})
	if round := planned(t, h, p); len(round.Moves) != 1 {
		t.Fatalf("with small pages there is room\n%s", round.Text())
	}
}

func TestPlan_VFIOMemoryDoesNotMove(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	vfio := func(g *inventory.Guest) { g.Config.Devices = []string{"0000:01:00.0"} }
	add(h, vm{name: "a", vcpus: 4, memory: 6 * gib, cpus: on(0), used: 2, wait: 2, change: vfio})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2, change: vfio})
	if round := planned(t, h, policy.Policy{}); len(round.Moves) != 0 {
		t.Fatalf("memory pinned by vfio was moved\n%s", round.Text())
	}
	h = machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 6 * gib, cpus: on(0), used: 2, wait: 2, change: vfio})
	add(h, vm{name: "b", vcpus: 4, memory: 8 * gib, cpus: on(0), used: 2, wait: 2})
	if round := planned(t, h, policy.Policy{}); len(round.Moves) != 1 || goesTo(round, "b").IsEmpty() {
		t.Fatalf("the one without vfio must go, although it is greater\n%s", round.Text())
	}
	h = machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 6 * gib, cpus: on(1), memOn: bytesOn(0, 6*gib), used: 3, change: vfio})
	if round := planned(t, h, policy.Policy{}); len(round.Moves) != 1 || round.Moves[0].Kind != plan.Repin {
		t.Fatalf("its vCPUs can still go to its memory\n%s", round.Text())
	}
}

// arm64 has pools of four sizes, most of them empty.
func TestHugePagesOfManySizes(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G huge:64K=0 huge:2M=0 huge:32M=0 huge:1G=6")
	for _, name := range []string{"a", "b"} {
		add(
			h,
			vm{
				name:   name,
				vcpus:  4,
				memory: 3 * gib,
				cpus:   on(0),
				used:   2,
				wait:   2,
				spec:   func(s *guest.Spec) { s.PageSize = gib },
			},
		)
	}
	if round := planned(t, h, policy.Policy{}); len(round.Moves) != 1 {
		t.Fatalf("one of them must go\n%s", round.Text())
	}
}

// immobile is a guest whose hypervisor leaves the memory of a running guest where it is.
func immobile(g *inventory.Guest) {
	g.Hypervisor, g.Can = guest.Xen, inventory.CapabilitiesOf(guest.Xen)
}

// A busy node is relieved by vCPUs alone where memory cannot move, and the plan says why it stays. vCPUs
// that are away from their memory go back when there is room.
func TestPlan_MemoryThatCannotMoveStays(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	for _, name := range []string{"a", "b"} {
		add(h, vm{name: name, vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2, change: immobile})
	}
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.Repin || len(round.Moves[0].Guests) != 1 {
		t.Fatalf("the vCPUs of one of both must go to node 1\n%s", round.Text())
	}
	move := round.Moves[0].Guests[0]
	if p := move.Placement; move.Bytes != 0 || move.To().String() != "1" || p.Nodes.String() != "0-1" ||
		p.MemoryOn(0) != 2*gib || p.VCPUs[0].CPUs.String() != "4-7" {
		t.Errorf("placement is %+v, %v to copy; want vCPUs on node 1 and memory on node 0", p, move.Bytes)
	}
	if why := round.Moves[0].Why; !strings.Contains(why, "memory stays on nodes 0: its hypervisor") {
		t.Errorf("the move does not say why the memory stays: %s", why)
	}
	for name, c := range map[string]vm{
		"an unbound VM":               {cpus: on(1)},
		"after the node was relieved": {cpus: on(1), change: func(g *inventory.Guest) { g.Placement = &move.Placement }},
	} {
		h = machine("nodes:2 cores:4 memory:16G")
		add(h, vm{name: "a", vcpus: 4, memory: 2 * gib, cpus: c.cpus, memOn: bytesOn(0, 2*gib), used: 3,
			change: func(g *inventory.Guest) {
				immobile(g)
				if c.change != nil {
					c.change(g)
				}
			}})
		if round := planned(t, h, policy.Policy{}); len(round.Moves) != 1 || round.Moves[0].Kind != plan.Repin ||
			goesTo(round, "a").String() != "0" {
			t.Errorf("%s: its vCPUs can go to its memory\n%s", name, round.Text())
		}
	}
}

// Where memory cannot move, vCPUs stay if no other node helps: all are busy, or the guest expects its cells where
// they are.
func TestPlan_MemoryThatCannotMoveBlocks(t *testing.T) {
	full := machine("nodes:2 cores:4 memory:16G")
	for i, node := range []topology.NodeID{0, 0, 1, 1} {
		add(full, vm{name: string(rune('a' + i)), vcpus: 4, memory: 2 * gib, cpus: on(node), used: 2, wait: 2,
			change: immobile})
	}
	cells := machine("nodes:3 cores:4 memory:16G")
	for _, name := range []string{"a", "b"} {
		add(cells, vm{name: name, vcpus: 4, memory: 4 * gib, cpus: on(0, 1), used: 2, wait: 2, change: immobile,
			memOn: topology.MemoryByNode{0: 2 * gib, 1: 2 * gib}, spec: func(s *guest.Spec) {
				s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
			}})
	}
	for name, h := range map[string]*inventory.Host{"all nodes are busy": full, "visible cells": cells} {
		round := planned(t, h, policy.Policy{})
		if len(round.Moves) != 0 {
			t.Errorf("%s: moved\n%s", name, round.Text())
		}
		for _, b := range round.Blocked {
			if name == "visible cells" && (b.Kind != plan.BlockedMemoryPinned || !strings.Contains(b.Why, "hypervisor")) {
				t.Errorf("%s: blocked %+v, want the reason why its memory cannot move", name, b)
			}
		}
	}
}

func TestPlan_FetchesMemoryFromNodeWithoutCPUs(t *testing.T) {
	h := machine("nodes:3 cores:4 memory:16G memory-only:1")
	add(h, vm{name: "demoted", vcpus: 2, memory: 6 * gib, cpus: on(0), used: 2,
		memOn: topology.MemoryByNode{0: 2 * gib, 2: 4 * gib}})
	add(h, vm{name: "a", vcpus: 4, memory: 2 * gib, cpus: on(1), used: 2, wait: 2})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(1), used: 2, wait: 2})
	round := planned(t, h, policy.Policy{})
	if !goesTo(round, "demoted").Equal(topology.SetOf[topology.NodeID](0)) {
		t.Errorf("memory on a node without CPUs must come to the vCPUs\n%s", round.Text())
	}
	for _, m := range round.Moves {
		if slices.Contains(m.Names(), "demoted") && m.Kind != plan.FetchLocal {
			t.Errorf("%s", m)
		}
		if m.Guests[0].Placement.Nodes.Contains(2) {
			t.Errorf("%s: nothing may be put on a node without CPUs", m)
		}
	}
}

func TestMemoryIntensiveGuestsAreSpread(t *testing.T) {
	h := machine("nodes:2 cores:8 memory:32G")
	h.Topology.Measured = &topology.Measured{Nodes: on(0, 1),
		LatencyNanos:  [][]float64{{85, 140}, {140, 85}},
		BandwidthMBps: [][]float64{{20000, 9000}, {9000, 20000}}}
	add(h, vm{name: "a", vcpus: 2, memory: 4 * gib, cpus: on(0), used: 2, mbps: 12000})
	add(h, vm{name: "b", vcpus: 2, memory: 4 * gib, cpus: on(0), used: 2, mbps: 12000})
	add(h, vm{name: "calm", vcpus: 2, memory: 4 * gib, cpus: on(1), used: 2, mbps: 20})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || round.Moves[0].Kind != plan.Spread || !goesTo(round, "calm").IsEmpty() {
		t.Fatalf("one of a and b must go\n%s", round.Text())
	}
}

func TestPlan_NoDegradedGuestNoMove(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	for i := range 3 { // lopsided, but everybody has what it wants
		add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 1, memory: gib, cpus: on(0), used: 1})
	}
	if round := planned(t, h, policy.Policy{}); len(round.Moves)+len(round.Degraded) != 0 {
		t.Fatal(round.Text())
	}
}

func TestModes(t *testing.T) {
	overloaded := func(notOurs bool) *inventory.Host {
		h := machine("nodes:2 cores:4 memory:16G")
		for _, name := range []string{"a", "b"} {
			add(h, vm{name: name, vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2, notOurs: notOurs,
				change: func(g *inventory.Guest) {
					if notOurs {
						g.Config.NUMATune = &inventory.NUMATune{
							Mode:  "restrictive",
							Nodes: topology.SetOf[topology.NodeID](0),
						}
					}
				}})
		}
		return h
	}
	for _, c := range []struct {
		name    string
		notOurs bool
		balance policy.Balance
		moves   int
		advised bool
	}{
		{"ours move", false, policy.Balance{}, 1, false},
		{"others' are advised", true, policy.Balance{}, 1, true},
		{"others' move where asked for", true, policy.Balance{Guests: map[string]policy.Mode{"a": policy.ModeAuto,
			"b": policy.ModeAuto}}, 1, false},
		{"a host in advise", false, policy.Balance{Mode: policy.ModeAdvise}, 1, true},
		{"a host that is off", false, policy.Balance{Mode: policy.ModeOff}, 0, false},
		{"guests that are off", false, policy.Balance{Guests: map[string]policy.Mode{"a": policy.ModeOff,
			"b": policy.ModeOff}}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			round := planned(t, overloaded(c.notOurs), policy.Policy{Balance: c.balance})
			if len(round.Moves) != c.moves || c.moves > 0 && round.Moves[0].Advised != c.advised {
				t.Error(round.Text())
			}
		})
	}
}

func TestBudgets(t *testing.T) {
	crowd := func() *inventory.Host {
		h := machine("nodes:8 cores:4 memory:64G")
		for i := range 8 {
			add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 2, memory: 6 * gib, cpus: on(0), used: 0.5, wait: 1.5})
		}
		return h
	}
	if r := planned(t, crowd(), policy.Policy{Overcommit: 8, Balance: policy.Balance{GuestsPerRound: 2}}); len(
		r.Moves,
	) != 2 {
		t.Errorf("guests: %s", r.Text())
	}
	if r := planned(t, crowd(), policy.Policy{Overcommit: 8, Balance: policy.Balance{BytesPerRound: 13 * gib}}); len(
		r.Moves,
	) != 2 {
		t.Errorf("bytes: %s", r.Text())
	}
	if r := planned(t, crowd(), policy.Policy{Overcommit: 8, Balance: policy.Balance{BytesPerRound: gib}}); len(
		r.Moves,
	) != 1 {
		t.Errorf("a guest greater than the budget may move alone: %s", r.Text())
	}
}

func TestPlan_RefusesCopyThatDoesNotPay(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:256G")
	add(h, vm{name: "a", vcpus: 4, memory: 200 * gib, cpus: on(1), memOn: bytesOn(0, 200*gib), used: 0.3})
	add(h, vm{name: "busy", vcpus: 4, memory: gib, cpus: on(0), used: 3.8})
	h.MoverBytesPerSecond = 100 * topology.MiB
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"busy": policy.ModeOff}}}
	if round := planned(t, h, p); len(round.Moves) != 0 || len(round.Blocked) != 1 ||
		!strings.Contains(round.Blocked[0].Why, "more CPU time than") {
		t.Fatalf("34 minutes of copying for a third of a CPU\n%s", round.Text())
	}
}

// A VM could come to its memory if another one left, which copies 400 MiB. Its own memory
// is 128 MiB.
func TestOneMoveIsCheaperThanTwo(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:4G distances:10,16,28 square")
	for i, name := range []string{"o0", "o1", "o2"} {
		add(h, vm{name: name, vcpus: []int{2, 1, 1}[i], memory: 400 << 20, cpus: on(0), unmeasured: true})
	}
	add(h, vm{name: "g", vcpus: 1, memory: 128 << 20, cpus: on(3), memOn: bytesOn(0, 128<<20), unmeasured: true})
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 1 || len(round.Moves[0].Guests) != 1 || round.Moves[0].Guests[0].Bytes != 128<<20 {
		t.Errorf("want one move of 128 MiB\n%s", round.Text())
	}
}

// Two small VMs each run on the node of the other's memory: their vCPUs change nodes, and
// nothing is copied, however little that is.
func TestSmallVMsExchangeTheirCPUs(t *testing.T) {
	h := machine("nodes:4 cores:2 memory:1G distances:10,16,28 square")
	add(h, vm{name: "e0", vcpus: 1, memory: 160 << 20, cpus: on(3), memOn: bytesOn(0, 160<<20), used: 0.98})
	add(h, vm{name: "e1", vcpus: 1, memory: 160 << 20, cpus: on(0), memOn: bytesOn(3, 160<<20), used: 0.98})
	for i := range h.Topology.Nodes {
		h.Topology.Nodes[i].Free = 128 << 20
	}
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) != 2 || round.Moves[0].Cost.Bytes != 0 || round.Moves[1].Cost.Bytes != 0 {
		t.Errorf("want that both are repinned and nothing is copied\n%s", round.Text())
	}
}
