package check

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

// twoNodes: nodes 0 and 1 with 8 CPUs on 4 cores and 16 GiB each; node 2 is
// memory only; CPU 0 is for housekeeping; guest old holds 4 GiB and CPUs 6-7 of node 0.
func twoNodes() *inventory.Host {
	h := &inventory.Host{Name: "two"}
	t := &h.Topology
	for i := range 2 {
		first := topology.CPUID(8 * i)
		n := topology.Node{
			ID: topology.NodeID(i), Memory: 16 * gib, Free: 16 * gib, CPUs: topology.Range(first, first+7),
			HugePages: []topology.HugePagePool{{Size: gib, Total: 2, Free: 2}},
			Distances: map[topology.NodeID]int{0: 21, 1: 21, 2: 30},
		}
		n.Distances[n.ID] = 10
		for c := range n.CPUs.All() {
			core := c &^ 1
			t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: n.ID, Siblings: topology.SetOf(core, core+1)})
		}
		t.Nodes = append(t.Nodes, n)
	}
	t.Nodes = append(t.Nodes, topology.Node{ID: 2, Memory: 16 * gib, Free: 16 * gib, Distances: map[topology.NodeID]int{2: 10}})
	t.Housekeeping = topology.SetOf[topology.CPUID](0)
	t.Devices = []topology.Device{{Address: "0000:01:00.0", Node: 1}}
	t.Classify()
	h.Guests = []inventory.Guest{{Name: "old", Managed: true, Placement: &guest.Placement{
		Guest: "old", CPUMode: guest.CPUExclusive,
		Reservations: []guest.Reservation{{Node: 0, Memory: 4 * gib, VCPUs: 2, Exclusive: topology.Range[topology.CPUID](6, 7)}},
	}}}
	return h
}

func cpus(s string) topology.CPUSet { return topology.MustParseSet[topology.CPUID](s) }

// shared is a guest of two cells on both nodes.
func shared() (guest.Spec, guest.Placement) {
	spec := guest.Spec{Name: "new", VCPUs: 4, Memory: 8 * gib, CPU: guest.CPUSpec{IOThreads: 1}}
	p := guest.Placement{
		Guest: "new", Nodes: topology.Range[topology.NodeID](0, 1), Visible: true,
		CPUMode: guest.CPURange, MemoryMode: guest.MemoryPreferred, Movable: true,
		Cells: []guest.Cell{
			{ID: 0, VCPUs: topology.Range[guest.VCPUID](0, 1), Memory: 4 * gib, Nodes: topology.SetOf[topology.NodeID](0), Distances: []int{10, 21}},
			{ID: 1, VCPUs: topology.Range[guest.VCPUID](2, 3), Memory: 4 * gib, Nodes: topology.SetOf[topology.NodeID](1), Distances: []int{21, 10}},
		},
		Emulator: cpus("1-5,8-15"), IOThread: cpus("8-15"), IOThreads: 1,
		Reservations: []guest.Reservation{{Node: 0, Memory: 4 * gib, VCPUs: 2}, {Node: 1, Memory: 4 * gib, VCPUs: 2}},
	}
	for i, set := range []string{"1-5", "1-5", "8-15", "8-15"} {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: cpus(set)})
	}
	return spec, p
}

// alone is a guest with CPUs of its own on node 1.
func alone() (guest.Spec, guest.Placement) {
	spec := guest.Spec{Name: "new", VCPUs: 2, Memory: 2 * gib, PageSize: gib, CPU: guest.CPUSpec{Binding: guest.CPUExclusive, SMT: guest.SMTIsolate, Emulator: guest.HelperExclusive}}
	p := guest.Placement{
		Guest: "new", Nodes: topology.SetOf[topology.NodeID](1), CPUMode: guest.CPUExclusive, PageSize: gib,
		Cells:        []guest.Cell{{VCPUs: topology.Range[guest.VCPUID](0, 1), Memory: 2 * gib, Nodes: topology.SetOf[topology.NodeID](1)}},
		VCPUs:        []guest.VCPU{{ID: 0, CPUs: cpus("8")}, {ID: 1, CPUs: cpus("10")}},
		Emulator:     cpus("12"),
		Reservations: []guest.Reservation{{Node: 1, Memory: 2 * gib, PageSize: gib, VCPUs: 2, Exclusive: cpus("8-12")}},
	}
	return spec, p
}

func TestLegalPlacements(t *testing.T) {
	for name, make := range map[string]func() (guest.Spec, guest.Placement){"shared": shared, "alone": alone} {
		spec, p := make()
		if vs := Placement(twoNodes(), policy.Policy{}, spec, p); len(vs) > 0 {
			t.Errorf("%s: %v", name, Error("new", vs))
		}
	}
	if Error("new", nil) != nil {
		t.Error("no violations are no error")
	}
}

// Each case breaks one rule of a legal placement.
func TestEachRuleIsKept(t *testing.T) {
	type parts struct {
		h    *inventory.Host
		pol  *policy.Policy
		spec *guest.Spec
		p    *guest.Placement
	}
	for _, c := range []struct {
		name string
		from func() (guest.Spec, guest.Placement)
		rule Rule
		do   func(parts)
	}{
		{"no cell", shared, RuleShape, func(x parts) { x.p.Cells = nil }},
		{"vCPU in two cells", shared, RuleShape, func(x parts) { x.p.Cells[1].VCPUs = topology.Range[guest.VCPUID](1, 3) }},
		{"vCPU in no cell", shared, RuleShape, func(x parts) { x.p.Cells[1].VCPUs = topology.SetOf[guest.VCPUID](3) }},
		{"vCPU missing", shared, RuleShape, func(x parts) { x.p.VCPUs = x.p.VCPUs[:3] }},
		{"memory missing", shared, RuleShape, func(x parts) { x.p.Cells[0].Memory -= gib }},
		{"cell outside the guest's nodes", shared, RuleShape, func(x parts) { x.p.Nodes = topology.SetOf[topology.NodeID](0) }},
		{"broken pages", alone, RuleShape, func(x parts) { x.spec.PageSize = 3 * gib }},
		{"other sizes than asked", shared, RuleShape, func(x parts) {
			x.spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Cells: []guest.CellSpec{{VCPUs: 1, Memory: 4 * gib}, {VCPUs: 3, Memory: 4 * gib}}}
		}},
		{"distance below 11", shared, RuleShape, func(x parts) { x.p.Cells[0].Distances[1] = 10 }},
		{"distance missing", shared, RuleShape, func(x parts) { x.p.Cells[0].Distances = nil }},
		{"distances nobody sees", shared, RuleShape, func(x parts) { x.p.Visible = false }},
		{"node unknown", shared, RuleNodes, func(x parts) { x.p.Nodes = x.p.Nodes.With(9) }},
		{"memory-only node not named", shared, RuleNodes, func(x parts) { x.p.Nodes = x.p.Nodes.With(2) }},
		{"outside limits.nodes", shared, RuleNodes, func(x parts) { x.spec.Limits.Nodes = topology.SetOf[topology.NodeID](0) }},
		{"too many nodes", shared, RuleNodes, func(x parts) { x.spec.Limits.MaxNodes = 1 }},
		{"cells share a node", shared, RuleNodes, func(x parts) { x.p.Cells[1].Nodes = x.p.Cells[0].Nodes }},
		{"node without memory", shared, RuleNodes, func(x parts) { x.h.Topology.Nodes[1].Memory = 0 }},
		{"housekeeping CPU", shared, RuleCPUs, func(x parts) { x.p.VCPUs[0].CPUs = cpus("0-5") }},
		{"offline CPU", shared, RuleCPUs, func(x parts) { x.p.VCPUs[0].CPUs = cpus("1-5,99") }},
		{"CPU outside the limits", shared, RuleCPUs, func(x parts) { x.spec.Limits.CPUs = cpus("2-15") }},
		{"CPU of another node", shared, RuleCPUs, func(x parts) { x.p.VCPUs[0].CPUs = cpus("1-5,8") }},
		{"no CPU", shared, RuleCPUs, func(x parts) { x.p.VCPUs[0].CPUs = topology.CPUSet{} }},
		{"bound though asked not", shared, RuleCPUs, func(x parts) { x.p.CPUMode = guest.CPUNone }},
		{"more vCPUs than CPUs", shared, RuleCPUs, func(x parts) { x.p.Reservations[0].VCPUs = 6 }},
		{"CPU of another alone", shared, RuleExclusive, func(x parts) { x.p.VCPUs[0].CPUs = cpus("1-6") }},
		{"exclusive CPU of another", alone, RuleExclusive, func(x parts) { x.p.Reservations[0].Exclusive = cpus("6,8-12") }},
		{"exclusive CPU with a vCPU bound to it", alone, RuleExclusive, func(x parts) {
			x.h.Guests = append(x.h.Guests, inventory.Guest{Name: "wild", Config: inventory.Config{VCPUs: 1, Memory: gib, Pins: map[guest.VCPUID]topology.CPUSet{0: cpus("9")}}})
		}},
		{"exclusive housekeeping CPU", alone, RuleExclusive, func(x parts) { x.pol.Housekeeping = cpus("9") }},
		{"two CPUs", alone, RuleExclusive, func(x parts) { x.p.VCPUs[0].CPUs = cpus("8-9") }},
		{"one CPU twice", alone, RuleExclusive, func(x parts) { x.p.VCPUs[1].CPUs = cpus("8") }},
		{"CPU not reserved", alone, RuleExclusive, func(x parts) { x.p.VCPUs[1].CPUs = cpus("14") }},
		{"sibling not reserved", alone, RuleSMT, func(x parts) { x.p.Reservations[0].Exclusive = cpus("8,10-12") }},
		{"two vCPUs on an isolated core", alone, RuleSMT, func(x parts) { x.p.VCPUs[1].CPUs = cpus("9") }},
		{"reserved less than the cells", shared, RuleReservations, func(x parts) { x.p.Reservations[1].Memory = 3 * gib }},
		{"reserved elsewhere", shared, RuleReservations, func(x parts) { x.p.Reservations[0].Memory, x.p.Reservations[1].Memory = 0, 8*gib }},
		{"reserved twice", shared, RuleReservations, func(x parts) { x.p.Reservations = append(x.p.Reservations, x.p.Reservations[0]) }},
		{"reserved on no node", shared, RuleReservations, func(x parts) { x.p.Reservations[0].Node = 9 }},
		{"foreign exclusive CPUs", alone, RuleReservations, func(x parts) { x.p.Reservations[0].Exclusive = cpus("1,8-12") }},
		{"pages of another size", alone, RuleReservations, func(x parts) { x.p.Reservations[0].PageSize = 0 }},
		{"promised away", shared, RuleMemory, func(x parts) { x.h.Guests[0].Placement.Reservations[0].Memory = 12 * gib }},
		{"not free", shared, RuleMemory, func(x parts) { x.h.Topology.Nodes[1].Free = 4 * gib }},
		{"untouched promises", shared, RuleMemory, func(x parts) { x.h.Topology.Nodes[0].Free = 7 * gib }},
		{"bound beyond the node", alone, RuleMemory, func(x parts) { x.h.Topology.Nodes[1].Memory = gib }},
		{"pool too small", alone, RuleHugePages, func(x parts) { x.h.Topology.Nodes[1].HugePages[0].Free = 1 }},
		{"pages promised", alone, RuleHugePages, func(x parts) {
			x.h.Claims = []inventory.Claim{{Name: "c", Placement: guest.Placement{Guest: "c", Reservations: []guest.Reservation{{Node: 1, Memory: gib, PageSize: gib}}}}}
		}},
		{"overcommitted", shared, RuleOvercommit, func(x parts) {
			x.h.Claims = []inventory.Claim{{Name: "c", Placement: guest.Placement{Guest: "c", Reservations: []guest.Reservation{{Node: 0, VCPUs: 9}}}}}
		}},
		{"too far", shared, RuleDistance, func(x parts) { x.spec.Limits.MaxDistance = 20 }},
		{"too far a class", shared, RuleDistance, func(x parts) { x.spec.Limits.MaxClass = topology.Local }},
		{"no path", shared, RuleDistance, func(x parts) { x.h.Topology.Nodes[0].Distances[1] = 255 }},
		{"device elsewhere", alone, RuleDevices, func(x parts) {
			x.h.Topology.Devices[0].Node = 0
			x.spec.Devices = []guest.DeviceSpec{{Address: "0000:01:00.0", Required: true}}
		}},
		{"emulator nowhere", shared, RuleHelpers, func(x parts) { x.p.Emulator = topology.CPUSet{} }},
		{"emulator bound though asked not", shared, RuleHelpers, func(x parts) { x.spec.CPU.Emulator = guest.HelperNone }},
		{"emulator off housekeeping", shared, RuleHelpers, func(x parts) { x.spec.CPU.Emulator = guest.HelperHousekeeping }},
		{"emulator on a vCPU's CPU", alone, RuleHelpers, func(x parts) { x.p.Emulator = cpus("8") }},
		{"emulator with too many CPUs", alone, RuleHelpers, func(x parts) { x.p.Emulator = cpus("11-12") }},
		{"shared emulator on reserved CPUs", alone, RuleHelpers, func(x parts) { x.spec.CPU.Emulator, x.p.Emulator = guest.HelperNodes, cpus("9,13") }},
		{"I/O threads elsewhere", shared, RuleHelpers, func(x parts) {
			x.p.Nodes = topology.SetOf[topology.NodeID](0)
			x.p.Reservations = x.p.Reservations[:1]
		}},
		{"I/O threads that do not exist", shared, RuleHelpers, func(x parts) { x.spec.CPU.IOThreads = 0 }},
	} {
		h, pol := twoNodes(), policy.Policy{}
		spec, p := c.from()
		c.do(parts{h, &pol, &spec, &p})
		found := false
		vs := Placement(h, pol, spec, p)
		for _, v := range vs {
			found = found || v.Rule == c.rule
		}
		if !found {
			t.Errorf("%s: rule %s kept silent, found %v", c.name, c.rule, vs)
		}
	}
}

// The guest's own memory, as it lies now, is not in the way of its next placement.
func TestOwnMemoryIsGivenBack(t *testing.T) {
	h := twoNodes()
	h.Topology.Nodes[1].Free = gib
	spec, p := shared()
	if len(Placement(h, policy.Policy{}, spec, p)) == 0 {
		t.Fatal("4 GiB do not fit in 1 GiB")
	}
	h.Guests = append(h.Guests, inventory.Guest{Name: "new", Placement: &p, Seen: inventory.Seen{MemoryByNode: map[topology.NodeID]topology.Bytes{1: 4 * gib}}})
	if vs := Placement(h, policy.Policy{}, spec, p); len(vs) > 0 {
		t.Errorf("%v", Error("new", vs))
	}
}

func TestViolationsAsTextAndJSON(t *testing.T) {
	v := Violation{RuleMemory, "node 3", "17 GiB bound in all, it has 16 GiB"}
	err := Error("web1", []Violation{v})
	if err == nil || !strings.Contains(err.Error(), "guest web1 is not legal: memory: node 3: 17 GiB") {
		t.Errorf("%v", err)
	}
	text, _ := json.Marshal(v)
	if string(text) != `{"rule":"memory","object":"node 3","what":"17 GiB bound in all, it has 16 GiB"}` {
		t.Errorf("%s", text)
	}
}
