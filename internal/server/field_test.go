package server

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// The tests of this file are named after the rows of a survey of what systems for VMs do about NUMA:
// H scheduling across hosts, J rebalancing, K migration, P API, Q tenancy and groups, R availability.

// oneNode asks for a VM within one node.
func oneNode(name string, vcpus int, memory topology.Bytes) fleetapi.VMCreate {
	v := vmOf(name, vcpus, memory)
	v.Spec.Limits.MaxNodes = 1
	return v
}

// fieldRig is a fleet without overcommit of CPUs.
func fieldRig(t *testing.T) *rig {
	t.Helper()
	r := newUnstartedRig(t)
	r.setup.policy = policy.Policy{Overcommit: 1, Count: policy.CountThreads, KeepFree: new(topology.Bytes)}
	r.start()
	return r
}

// create creates a VM that must get a host.
func (r *rig) create(v fleetapi.VMCreate) fleetapi.VM {
	r.t.Helper()
	vm, err := r.admin.CreateVM(r.t.Context(), v, fleetapi.Change{})
	if err != nil || vm.Host == "" {
		r.t.Fatalf("%s: %v: %s", v.Spec.Name, err, vm.Pending)
	}
	return vm
}

// dryRun asks where a VM would go.
func (r *rig) dryRun(v fleetapi.VMCreate) fleetapi.VM {
	r.t.Helper()
	vm, err := r.admin.CreateVM(r.t.Context(), v, fleetapi.Change{DryRun: true})
	if err != nil || vm.Why == nil {
		r.t.Fatalf("%s: %v: %+v", v.Spec.Name, err, vm.Why)
	}
	return vm
}

// A host whose totals suffice and whose nodes do not is no candidate.
func TestField_H1_FeasibilityIsThatOfNodes(t *testing.T) {
	r := fieldRig(t)
	r.join("many-small", "nodes:4 cores:2 memory:8G")
	vm, err := r.admin.CreateVM(t.Context(), oneNode("vm", 4, topology.GiB), fleetapi.Change{})
	if err != nil || vm.Host != "" || vm.State != fleetapi.VMPending || vm.Pending == "" {
		t.Fatalf("got %+v, %v", vm, err)
	}
	r.join("large", "nodes:2 cores:4 memory:2G")
	r.eventually("the VM gets the host whose node has room", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "large" && vm.Placement.Nodes.Len() == 1
	})
}

// Hosts that all take a VM are compared by a cost, and the reasons name the figure that decided.
func TestField_H2_HostsHaveACost(t *testing.T) {
	r := fieldRig(t)
	for _, name := range []string{"a", "b", "c"} {
		r.join(name, "nodes:2 cores:4 memory:8G")
	}
	r.create(oneNode("first", 2, topology.GiB))
	vm := r.dryRun(oneNode("second", 2, topology.GiB))
	if vm.Why.Fitted != 3 || len(vm.Why.Next) != 2 {
		t.Fatalf("got %+v", vm.Why)
	}
	for _, n := range vm.Why.Next {
		if n.Behind == "" || n.Cost == nil || *n.Cost < vm.Why.Cost {
			t.Errorf("%+v against %v", n, vm.Why.Cost)
		}
	}
}

// The fleet decides on nodes and CPUs, and the host receives them.
func TestField_H3_TheServerPicksTheNode(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	got := make(chan guest.Placement, 100)
	a.follow(func(vm fleet.VM) *fleet.VMStatus { got <- vm.Placement; return obey(vm) })
	v := oneNode("vm", 3, topology.GiB)
	v.Spec.CPU.Binding = guest.CPUExclusive
	made := r.create(v)
	if made.Placement.Nodes.Len() != 1 || len(made.Placement.Reservations) != 1 ||
		made.Placement.Reservations[0].Exclusive.Len() != 3 {
		t.Errorf("got %+v", made.Placement)
	}
	if p := <-got; !p.Nodes.Equal(made.Placement.Nodes) || !same(p, made.Placement) {
		t.Errorf("the host gets %+v", p)
	}
}

// What nodes are doing counts, also if nothing of it is reserved.
func TestField_H4_MeasuredLoadOfNodes(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	for busy := range topology.NodeID(2) {
		loads := fleet.Loads{Number: uint64(busy) + 1, Taken: time.Now()}
		for node := range topology.NodeID(2) {
			n := fleet.Node{NodeLoad: inventory.NodeLoad{Node: node}, Free: 8 * topology.GiB}
			if node == busy {
				n.CPU, n.Wait = 4, 3
			}
			loads.Nodes = append(loads.Nodes, n)
		}
		a.send("POST", "/agent/v1/loads", loads, nil)
		vm := r.dryRun(oneNode("vm", 2, topology.GiB))
		if want := topology.SetOf(1 - busy); !vm.Placement.Nodes.Equal(want) {
			t.Errorf("node %d is busy: the VM goes to nodes %v", busy, vm.Placement.Nodes)
		}
	}
}

// Small VMs fill hosts that wide VMs have no use for.
func TestField_H5_RoomForWideVMs(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	r.join("b", "nodes:2 cores:4 memory:8G")
	for i := range 4 {
		r.create(oneNode(fmt.Sprintf("small%d", i), 2, 2*topology.GiB))
	}
	wide := vmOf("wide", 8, 8*topology.GiB)
	if vm := r.create(wide); vm.Placement.Nodes.Len() != 2 {
		t.Errorf("got %v", vm.Placement.Nodes)
	}
}

// Hosts of different shapes are compared by what their nodes take, not by their totals.
func TestField_H6_HostsOfDifferentShapes(t *testing.T) {
	r := fieldRig(t)
	r.join("small-nodes", "nodes:8 cores:4 memory:8G")  // 64 GiB
	r.join("large-nodes", "nodes:2 cores:8 memory:24G") // 48 GiB
	if vm := r.create(oneNode("vm", 4, 16*topology.GiB)); vm.Host != "large-nodes" {
		t.Errorf("on %s", vm.Host)
	}
	two := vmOf("two", 8, 12*topology.GiB)
	two.Spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
	if vm := r.create(two); vm.Placement.Nodes.Len() != 2 {
		t.Errorf("a VM of two cells: %s, nodes %v", vm.Host, vm.Placement.Nodes)
	}
}

// A dry run explains and changes nothing.
func TestField_H7_DryRunExplains(t *testing.T) {
	r := fieldRig(t)
	for _, name := range []string{"a", "b"} {
		r.join(name, "nodes:2 cores:4 memory:8G")
	}
	r.join("closed", "nodes:2 cores:4 memory:8G")
	if _, err := r.admin.Cordon(t.Context(), "closed"); err != nil {
		t.Fatal(err)
	}
	vm := r.dryRun(vmOf("vm", 2, topology.GiB))
	if vm.Host == "" || vm.Why.Text == "" || len(vm.Why.Terms) == 0 || len(vm.Why.Next) != 1 || len(vm.Why.Excluded) != 1 ||
		vm.Why.Excluded[0].Hosts != 1 {
		t.Errorf("got %+v", vm.Why)
	}
	if huge := r.dryRun(vmOf("huge", 64, topology.GiB)); huge.Host != "" || huge.Pending == "" || huge.Why.Summary == "" {
		t.Errorf("got %+v", huge)
	}
	if vms, err := r.admin.VMs(t.Context(), fleetapi.Filter{}); err != nil || len(vms) > 0 {
		t.Errorf("got %+v, %v", vms, err)
	}
}

// Ten times the hosts, of 16 nodes each, take far less than ten times the time. It is compared in one run,
// and again until other programs have let it.
func TestField_H8_DecisionsOverManyNodesAreFast(t *testing.T) {
	topo, err := topology.Synthetic("nodes:16 cores:8 memory:32G")
	if err != nil {
		t.Fatal(err)
	}
	fleetOf := func(hosts int) *schedule.Fleet {
		f := newFleet(policy.Policy{})
		for i := range hosts {
			f.Set(schedule.Host{Name: fmt.Sprintf("h%04d", i),
				Inventory: &inventory.Host{Version: inventory.Version, Topology: topo}}, nil)
		}
		return f
	}
	small, large := fleetOf(100), fleetOf(1000)
	decide := func(f *schedule.Fleet) time.Duration {
		best := time.Duration(math.MaxInt64)
		for range 5 {
			began := time.Now()
			for range 10 {
				s := guest.Spec{Name: "vm", VCPUs: 12, Memory: 24 * topology.GiB}
				if _, err := f.Decide(schedule.Request{Spec: s, WhatIf: true}); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	decide(small)
	decide(large) // the first decision reads all hosts
	ratio := 0.0
	for range 50 {
		if ratio = float64(decide(large)) / float64(decide(small)); ratio < 5 {
			return
		}
	}
	t.Errorf("ten times the hosts take %.1f times the time", ratio)
}

// Overload of a whole host ends by migrations to another one, one at a time.
func TestField_J7_RebalancesHosts(t *testing.T) {
	r := newPressed(t, policy.Balance{}, nil, migrates)
	r.planned("a VM has migrated", func(*fleetapi.Plan) bool {
		moves, err := r.admin.Moves(t.Context(), "", 100, "")
		return err == nil && slices.ContainsFunc(moves.Moves, func(m fleetapi.Move) bool {
			return m.Outcome == fleetapi.MoveArrived && m.From == "a" && m.To == "b"
		})
	})
}

// The target of a migration is a node with idle CPUs, not only a host.
func TestField_J8_RebalancingChoosesNodes(t *testing.T) {
	r := newPressed(t, policy.Balance{Migrate: policy.ModeAdvise}, nil, migrates)
	busy := fleet.Loads{Number: 2, Taken: time.Now()}
	for node := range topology.NodeID(2) {
		n := fleet.Node{NodeLoad: inventory.NodeLoad{Node: node}, Free: 16 * topology.GiB}
		if node == 0 {
			n.CPU = 4
		}
		busy.Nodes = append(busy.Nodes, n)
	}
	r.b.send("POST", "/agent/v1/loads", busy, nil)
	p := r.planned("a plan for node 1", func(p *fleetapi.Plan) bool {
		return len(p.Migrations) > 0 && p.Migrations[0].Nodes.Equal(topology.SetOf[topology.NodeID](1))
	})
	if p.Migrations[0].To != "b" {
		t.Errorf("got %+v", p.Migrations)
	}
}

// A host that its own moves relieve has no migrations.
func TestField_J9_MovesWithinTheHostComeFirst(t *testing.T) {
	r := &pressed{rig: newUnstartedRig(t)}
	r.setup.policy = policy.Policy{Overcommit: 2, Count: policy.CountThreads, KeepFree: new(topology.Bytes)}
	r.setup.plans, r.setup.limits = 20*time.Millisecond, migrate.Limits{Lasts: time.Millisecond}
	r.start()
	r.a = r.join("a", "nodes:2 cores:4 memory:16G")
	busy := fleet.Loads{Number: 1, Taken: time.Now()}
	for i := range 3 { // all are on node 0
		v := oneNode(fmt.Sprintf("vm%d", i), 2, 2*topology.GiB)
		v.Spec.Limits.Nodes = topology.SetOf[topology.NodeID](0)
		at := r.dryRun(v)
		at.Spec.Limits.Nodes = topology.NodeSet{}
		g := inventory.Guest{Name: at.Name, State: "running", Managed: true, Spec: &at.Spec, Placement: &at.Placement,
			Can:    inventory.Capabilities{MoveMemory: true},
			Config: inventory.Config{VCPUs: 2, Memory: 2 * topology.GiB, SharedStorage: new(true)}}
		g.Seen.MemoryByNode = topology.MemoryByNode{0: 2 * topology.GiB}
		r.a.inv.Guests = append(r.a.inv.Guests, g)
		r.a.report()
		adopted := fleetapi.VMAdopt{Host: "a", Name: at.Name, Project: "default"}
		if vm, err := r.admin.AdoptVM(t.Context(), adopted, fleetapi.Change{}); err != nil ||
			!vm.Placement.Nodes.Equal(at.Placement.Nodes) {
			t.Fatalf("got %+v, %v", vm, err)
		}
		busy.VMs = append(busy.VMs, fleet.VMLoad{Name: at.Name, GuestLoad: inventory.GuestLoad{
			Window: 30 * time.Second, CPU: 4. / 3, Wait: 2. / 3}})
	}
	busy.Nodes = []fleet.Node{{NodeLoad: inventory.NodeLoad{Node: 0, CPU: 4, Wait: 2}, Free: 10 * topology.GiB},
		{NodeLoad: inventory.NodeLoad{Node: 1}, Free: 16 * topology.GiB}}
	r.a.send("POST", "/agent/v1/loads", busy, nil)
	r.b = r.join("b", "nodes:2 cores:4 memory:16G")
	r.b.send("POST", "/agent/v1/loads", fleet.Loads{Number: 1, Taken: time.Now()}, nil)
	r.planned("the host's own plan", func(p *fleetapi.Plan) bool {
		return slices.ContainsFunc(p.Blocked, func(b fleetapi.BlockedVM) bool {
			return b.Kind == string(migrate.LocalFirst)
		})
	})
	if moves, err := r.admin.Moves(t.Context(), "", 100, ""); err != nil || len(moves.Moves) > 0 {
		t.Errorf("got %+v, %v", moves, err)
	}
}

// The placement on the target is decided for the target, and claimed before the copy begins.
func TestField_K1_PlacementIsDecidedForTheTarget(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G").follow(obey)
	vm := r.create(oneNode("vm", 3, 4*topology.GiB))
	r.join("b", "nodes:4 cores:4 memory:8G").follow(obey)
	if _, err := r.admin.Cordon(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // only node 3 is left
		v := oneNode(fmt.Sprintf("other%d", i), 4, topology.GiB)
		v.Spec.Limits.Nodes = topology.SetOf(topology.NodeID(i))
		r.create(v)
	}
	got, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{})
	if err != nil || got.Migration == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	placed := got.Migration.Placement
	nodes, err := r.admin.Nodes(t.Context(), "b")
	if err != nil || !placed.Nodes.Equal(topology.SetOf[topology.NodeID](3)) {
		t.Fatalf("got %+v, %v", placed, err)
	}
	for _, n := range nodes.Nodes {
		if placed.Nodes.Contains(n.Node) && (n.VCPUs != 3 || n.Promised != 4*topology.GiB) {
			t.Errorf("node %d of the target: %+v", n.Node, n)
		}
	}
	if now, err := r.admin.VM(t.Context(), "vm"); err != nil || !now.Placement.Nodes.Equal(vm.Placement.Nodes) {
		t.Errorf("the source's room: %+v, %v", now.Placement, err)
	}
}

// reported makes a host report a VM of the fleet as it runs there.
func (h *fakeHost) reported(vm *fleetapi.VM, change func(c *inventory.Config)) {
	g := inventory.Guest{Name: vm.Name, State: "running", Managed: true, Spec: &vm.Spec, Placement: &vm.Placement,
		Config: inventory.Config{VCPUs: vm.Spec.VCPUs, Memory: vm.Spec.Memory}}
	change(&g.Config)
	h.inv.Guests = append(h.inv.Guests, g)
	h.report()
}

// What cannot arrive is refused before anything is claimed or copied, and a dry run says so.
func TestField_K2_RefusedBeforeItBegins(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	a.follow(obey)
	vm := r.create(oneNode("vm", 4, 4*topology.GiB))
	local := r.create(oneNode("local", 2, topology.GiB))
	r.join("small", "nodes:2 cores:2 memory:8G")
	ask := func(name, to string) error {
		_, err := r.admin.MigrateVM(t.Context(), name, fleetapi.VMMigrate{To: to}, fleetapi.Change{DryRun: true})
		return err
	}
	if err := ask(vm.Name, "small"); problemType(err) != fleetapi.ProblemNoHost {
		t.Errorf("nodes that are too small: %v", err)
	}
	if err := ask(vm.Name, "none"); problemType(err) != fleetapi.ProblemNotFound {
		t.Errorf("a host that does not exist: %v", err)
	}
	if err := ask("local", "small"); err != nil {
		t.Errorf("a VM that can migrate: %v", err)
	}
	a.reported(&local, func(c *inventory.Config) { c.SharedStorage = new(false) })
	if err := ask("local", "small"); problemType(err) != fleetapi.ProblemConflict {
		t.Errorf("a disk of the source alone: %v", err)
	}
	if got, err := r.admin.VM(t.Context(), vm.Name); err != nil || got.Migration != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The options of a migration travel with the record to both hosts and are shown; what no host can do is refused
// before anything is claimed.
func TestField_K2_OptionsOfAMigration(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	a.follow(obey)
	vm := r.create(oneNode("vm", 2, topology.GiB))
	a.reported(&vm, func(c *inventory.Config) { c.SharedStorage = new(false) })
	seen := make(chan fleet.MigrationOptions, 100)
	r.join("b", "nodes:2 cores:4 memory:8G").follow(func(v fleet.VM) *fleet.VMStatus {
		if v.Migration != nil {
			select {
			case seen <- v.Migration.Options:
			default:
			}
		}
		return nil
	})
	ask := func(o fleet.MigrationOptions, dry bool) (fleetapi.VM, error) {
		return r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b", MigrationOptions: o},
			fleetapi.Change{DryRun: dry})
	}
	for _, o := range []fleet.MigrationOptions{
		{MaxDowntime: -1}, {MaxDowntime: 2_000_001}, {MaxDowntime: 50, PostCopy: true},
		{PostCopy: true, CopyStorage: true},
	} {
		var p *fleetapi.Problem
		if _, err := ask(o, false); !errors.As(err, &p) || p.Status != http.StatusUnprocessableEntity {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := ask(fleet.MigrationOptions{PostCopy: true}, true); problemType(err) != fleetapi.ProblemConflict {
		t.Errorf("a disk of the source alone, not copied: %v", err)
	}
	want := fleet.MigrationOptions{MaxDowntime: 50, CopyStorage: true}
	if got, err := ask(want, true); err != nil || got.Migration == nil || got.Migration.Options != want {
		t.Errorf("a dry run: %+v, %v", got.Migration, err)
	}
	if got, err := ask(want, false); err != nil || got.Migration == nil || got.Migration.Options != want {
		t.Fatalf("got %+v, %v", got.Migration, err)
	}
	if got := <-seen; got != want {
		t.Errorf("the target is asked for %+v", got)
	}
	if _, err := ask(want, false); err != nil {
		t.Errorf("asked for again: %v", err)
	}
	if _, err := ask(fleet.MigrationOptions{CopyStorage: true}, false); problemType(err) != fleetapi.ProblemConflict {
		t.Errorf("other options for a migration that has begun: %v", err)
	}
	moves, err := r.admin.Moves(t.Context(), "vm", 10, "")
	if err != nil || len(moves.Moves) != 1 || moves.Moves[0].Options != want {
		t.Errorf("got %+v, %v", moves, err)
	}
}

// A device of the host that is assigned to a VM keeps it there, with the reason; a drain says so as well.
func TestField_K3_AssignedDevices(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	a.follow(obey)
	vm := r.create(oneNode("vm", 2, topology.GiB))
	a.reported(&vm, func(c *inventory.Config) { c.Devices = []string{"0000:3b:00.0"} })
	r.join("b", "nodes:2 cores:4 memory:8G")
	_, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{}, fleetapi.Change{})
	if problemType(err) != fleetapi.ProblemConflict || !strings.Contains(err.Error(), "0000:3b:00.0") {
		t.Errorf("got %v", err)
	}
	if _, err := r.admin.Drain(t.Context(), "a", fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the VM says why the drain leaves it", func() bool {
		got, err := r.admin.VM(t.Context(), "vm")
		return err == nil && strings.Contains(got.Stays, "0000:3b:00.0") && got.Host == "a" && got.Migration == nil
	})
	if _, err := r.admin.Uncordon(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.admin.VM(t.Context(), "vm"); err != nil || got.Stays != "" {
		t.Errorf("after the drain: got %q, %v", got.Stays, err)
	}
}

// A drain migrates VMs with the options that it was asked for with: here, with disks that are on its host alone.
func TestField_K3_DrainWithOptions(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	a.follow(obey)
	vm := r.create(oneNode("vm", 2, topology.GiB))
	a.reported(&vm, func(c *inventory.Config) { c.SharedStorage = new(false) })
	r.join("b", "nodes:2 cores:4 memory:8G")
	var p *fleetapi.Problem
	if _, err := r.admin.Drain(t.Context(), "a", fleet.MigrationOptions{PostCopy: true, CopyStorage: true}); !errors.As(
		err, &p) || p.Status != http.StatusUnprocessableEntity {
		t.Errorf("options that exclude each other: %v", err)
	}
	if _, err := r.admin.Drain(t.Context(), "a", fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the VM says why the drain leaves it", func() bool {
		got, err := r.admin.VM(t.Context(), "vm")
		return err == nil && strings.Contains(got.Stays, "storage") && got.Migration == nil
	})
	want := fleet.MigrationOptions{CopyStorage: true}
	h, err := r.admin.Drain(t.Context(), "a", want)
	if err != nil || h.DrainOptions != want {
		t.Fatalf("got %+v, %v", h.DrainOptions, err)
	}
	r.eventually("the VM migrates with its disks", func() bool {
		got, err := r.admin.VM(t.Context(), "vm")
		return err == nil && got.Migration != nil && got.Migration.Options == want && got.Stays == ""
	})
	if h, err := r.admin.Uncordon(t.Context(), "a"); err != nil || h.DrainOptions != (fleet.MigrationOptions{}) {
		t.Errorf("after the drain: got %+v, %v", h.DrainOptions, err)
	}
}

// A VM that hands CPUs over stays on its host, with the reason; a drain says so as well.
func TestMigrateVM_AMirroredVMStays(t *testing.T) {
	r := newUnstartedRig(t)
	r.setup.policy = policy.Policy{Handoff: policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("1-7")}}
	r.start()
	r.join("a", "nodes:2 cores:4 memory:8G").follow(obey)
	asked := vmOf("vm", 0, topology.GiB)
	asked.Spec.CPU.Sharing = guest.SharingHandoff
	r.create(asked)
	r.eventually("it runs", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.State == fleetapi.VMRunning
	})
	r.join("b", "nodes:2 cores:4 memory:8G")
	_, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{})
	if problemType(err) != fleetapi.ProblemConflict || !strings.Contains(err.Error(), guest.ErrMirrored.Error()) {
		t.Errorf("got %v", err)
	}
	if _, err := r.admin.Drain(t.Context(), "a", fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the VM says why the drain leaves it", func() bool {
		got, err := r.admin.VM(t.Context(), "vm")
		return err == nil && strings.Contains(got.Stays, guest.ErrMirrored.Error()) && got.Host == "a" &&
			got.Migration == nil
	})
}

// The record names the target only once the target has verified the VM; what it measured is shown.
func TestField_K4_VerifiedAfterTheMigration(t *testing.T) {
	r := fieldRig(t)
	verified := make(chan struct{})
	follow := func(host string) func(vm fleet.VM) *fleet.VMStatus {
		return func(vm fleet.VM) *fleet.VMStatus {
			s := migrates(vm, host)
			if vm.Migration != nil && host == "b" && vm.Migration.Ready != nil {
				select {
				case <-verified:
				case <-t.Context().Done():
				}
			}
			if vm.Migration == nil && host == "b" {
				s.Placement = vm.Placement // measured
			}
			return s
		}
	}
	r.join("a", "nodes:2 cores:4 memory:8G").follow(follow("a"))
	r.create(oneNode("vm", 2, topology.GiB))
	r.join("b", "nodes:2 cores:4 memory:8G").follow(follow("b"))
	began, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{})
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("the source has sent the VM", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Status != nil && vm.Status.Migration != nil &&
			vm.Status.Migration.Phase == fleet.MigrationGone
	})
	if vm, err := r.admin.VM(t.Context(), "vm"); err != nil || vm.Host != "a" {
		t.Errorf("before it is verified: host %s, %v", vm.Host, err)
	}
	close(verified)
	r.eventually("b has it, measured", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "b" && vm.Status != nil &&
			vm.Status.Placement.Nodes.Equal(began.Migration.Placement.Nodes)
	})
}

// Nodes, their room and their loads, and cells with their nodes, are documents of the API.
func TestField_P1_TheAPIHasNodesAndCells(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	v := vmOf("vm", 4, 4*topology.GiB)
	v.Spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
	r.create(v)
	p, err := r.admin.Placement(t.Context(), "vm")
	if err != nil || len(p.Placement.Cells) != 2 || p.Placement.Cells[0].Nodes.Equal(p.Placement.Cells[1].Nodes) {
		t.Errorf("got %+v, %v", p, err)
	}
	n, err := r.admin.Nodes(t.Context(), "a")
	if err != nil || len(n.Nodes) != 2 || n.Nodes[0].CPUs.Len() != 4 || n.Nodes[1].Promised != 2*topology.GiB {
		t.Errorf("got %+v, %v", n, err)
	}
}

// A user asks for a shape, without a name of a node or host, and sees only the own projects.
func TestField_Q1_UsersAskForShapes(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	r.create(vmOf("other", 1, topology.GiB))
	ann := r.member("ann", "shop", fleetapi.Quota{})
	v := vmOf("vm", 4, 4*topology.GiB)
	v.Project = "shop"
	v.Spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
	vm, err := ann.CreateVM(t.Context(), v, fleetapi.Change{})
	if err != nil || vm.Placement.Nodes.Len() != 2 {
		t.Fatalf("got %+v, %v", vm, err)
	}
	if vms, err := ann.VMs(t.Context(), fleetapi.Filter{}); err != nil || len(vms) != 1 {
		t.Errorf("got %+v, %v", vms, err)
	}
	if _, err := ann.VM(t.Context(), "other"); problemType(err) != fleetapi.ProblemNotFound {
		t.Errorf("a VM of another project: %v", err)
	}
	if _, err := ann.Inventory(t.Context(), "a"); problemType(err) != fleetapi.ProblemRole {
		t.Errorf("the inventory of a host: %v", err)
	}
	h, err := ann.History(t.Context(), "", 100, "")
	if err != nil || slices.ContainsFunc(h.Entries, func(e fleetapi.HistoryEntry) bool { return e.VM == "other" }) ||
		!slices.ContainsFunc(h.Entries, func(e fleetapi.HistoryEntry) bool { return e.VM == "vm" && e.By == "ann" }) {
		t.Errorf("got %+v, %v", h, err)
	}
}

// member makes a project with an operator, and returns the operator's client.
func (r *rig) member(user, project string, q fleetapi.Quota) *fleetapi.Client {
	r.t.Helper()
	if _, err := r.admin.PutProject(r.t.Context(), project, fleetapi.ProjectEdit{Quota: q}); err != nil {
		r.t.Fatal(err)
	}
	edit := fleetapi.UserEdit{Role: fleetapi.Operator, Projects: []string{project}}
	if _, err := r.admin.PutUser(r.t.Context(), user, edit); err != nil {
		r.t.Fatal(err)
	}
	token, err := r.admin.CreateToken(r.t.Context(), user, fleetapi.TokenCreate{})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.client(token.Secret)
}

// Exclusive CPUs and huge pages have limits of their own, apart from vCPUs and memory.
func TestField_Q2_QuotasOfExclusiveCPUsAndHugePages(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:8 memory:16G")
	ann := r.member("ann", "shop", fleetapi.Quota{VCPUs: 16, Exclusive: 2, Memory: 16 * topology.GiB,
		HugePages: 2 * topology.GiB})
	for _, c := range []struct {
		name   string
		change func(s *guest.Spec)
		want   fleetapi.ProblemType
	}{
		{"shared", func(*guest.Spec) {}, ""},
		{"exclusive", func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }, ""},
		{"exclusive2", func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }, fleetapi.ProblemQuota},
		{"huge", func(s *guest.Spec) { s.PageSize, s.Memory = 2*topology.MiB, 3*topology.GiB }, fleetapi.ProblemQuota},
		{"small", func(s *guest.Spec) { s.Memory = 3 * topology.GiB }, ""},
	} {
		v := vmOf(c.name, 2, topology.GiB)
		v.Project = "shop"
		c.change(&v.Spec)
		if _, err := ann.CreateVM(t.Context(), v, fleetapi.Change{}); problemType(err) != c.want {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// grouped asks for a VM of a group.
func grouped(name string, a fleet.Affinity) fleetapi.VMCreate {
	v := oneNode(name, 1, topology.GiB)
	a.Group = "g"
	v.Affinity = a
	return v
}

func TestField_Q3_GroupsOfHosts(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	r.join("b", "nodes:2 cores:4 memory:8G")
	apart := fleet.Affinity{Hosts: fleet.Differ}
	first, second := r.create(grouped("one", apart)), r.create(grouped("two", apart))
	if first.Host == second.Host {
		t.Errorf("both are on %s", first.Host)
	}
	if vm := r.dryRun(grouped("three", apart)); vm.Host != "" {
		t.Errorf("a third one goes to %s", vm.Host)
	}
	for i := range 3 {
		v := grouped(fmt.Sprintf("near%d", i), fleet.Affinity{Hosts: fleet.Same})
		v.Affinity.Group = "near"
		if vm := r.create(v); i > 0 && vm.Host != r.hostOf("near0") {
			t.Errorf("near%d is on %s", i, vm.Host)
		}
	}
}

func (r *rig) hostOf(vm string) string {
	r.t.Helper()
	got, err := r.admin.VM(r.t.Context(), vm)
	if err != nil {
		r.t.Fatal(err)
	}
	return got.Host
}

func TestField_Q4_GroupsOfNodes(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	apart := fleet.Affinity{Nodes: fleet.Differ}
	first, second := r.create(grouped("one", apart)), r.create(grouped("two", apart))
	if first.Placement.Nodes.Equal(second.Placement.Nodes) {
		t.Errorf("both are on nodes %v", first.Placement.Nodes)
	}
	if vm := r.dryRun(grouped("three", apart)); vm.Host != "" {
		t.Errorf("a third one goes to nodes %v", vm.Placement.Nodes)
	}
	near := func(name string) fleetapi.VMCreate {
		v := grouped(name, fleet.Affinity{Nodes: fleet.Same})
		v.Affinity.Group = "near"
		return v
	}
	if a, b := r.create(near("near1")), r.create(near("near2")); !a.Placement.Nodes.Equal(b.Placement.Nodes) {
		t.Errorf("nodes %v and %v", a.Placement.Nodes, b.Placement.Nodes)
	}
}

// A VM that is started again elsewhere gets nodes as if it were new, or waits.
func TestField_R1_RestartElsewhereHonoursNodes(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	v := oneNode("vm", 4, 4*topology.GiB)
	v.Spec.CPU.Binding = guest.CPUExclusive
	r.create(v)
	r.join("small", "nodes:4 cores:2 memory:8G")
	r.silence("a")
	r.eventually("a is unreachable", func() bool {
		h, err := r.admin.Host(t.Context(), "a")
		return err == nil && h.State == fleetapi.HostUnreachable
	})
	if _, err := r.admin.DeclareDead(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm waits: small has the CPUs, and no node has them", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "" && vm.State == fleetapi.VMPending
	})
	r.join("b", "nodes:2 cores:4 memory:8G")
	r.eventually("vm is on a node of b", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "b" && vm.Placement.Nodes.Len() == 1 &&
			vm.Placement.Reservations[0].Exclusive.Len() == 4
	})
}

// Room for a failed host's VMs is that of nodes: totals do not count.
func TestField_R2_FailoverRoomOfNodes(t *testing.T) {
	r := fieldRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	r.create(oneNode("vm", 4, 4*topology.GiB))
	r.join("b", "nodes:4 cores:2 memory:8G") // 8 CPUs, and no node has 4
	headroom := func() fleetapi.HostHeadroom {
		h, err := r.admin.Headroom(t.Context())
		if err != nil || len(h.Hosts) < 2 || h.Hosts[0].Host != "a" {
			t.Fatalf("got %+v, %v", h, err)
		}
		return h.Hosts[0]
	}
	if h := headroom(); len(h.Missing) != 1 || h.Missing[0].VM != "vm" || !h.Proven {
		t.Errorf("got %+v", h)
	}
	r.join("c", "nodes:2 cores:4 memory:8G")
	if h := headroom(); len(h.Missing) > 0 || h.VMs != 1 {
		t.Errorf("got %+v", h)
	}
}
