package server

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func migrating(ready bool, cancel string) fleet.VM {
	vm := fleet.VM{Name: "vm", Host: "a", Generation: 3, Run: fleet.Running,
		Migration: &fleet.Migration{To: "b", Began: began, Cancel: cancel}}
	if ready {
		vm.Migration.Ready = &fleet.Arrival{URI: "qemu://b"}
	}
	return vm
}

func part(host string, phase fleet.MigrationPhase) *fleet.VMStatus {
	if phase == "" {
		return nil
	}
	return &fleet.VMStatus{Name: "vm", Host: host, Generation: 3, Phase: fleet.PhaseRunning,
		Migration: &fleet.MigrationStatus{Began: began, Phase: phase, Arrival: &fleet.Arrival{URI: "qemu://b"}}}
}

func TestSettle_MigrationStepByStep(t *testing.T) {
	const ready = true
	for _, test := range []struct {
		name           string
		vm             fleet.VM
		source, target fleet.MigrationPhase
		f              facts
		want           string // host of the VM, then the migration
	}{
		{"nothing yet", migrating(false, ""), "", "", facts{}, "a waits"},
		{"prepared", migrating(false, ""), "", fleet.MigrationPrepared, facts{}, "a ready"},
		{"prepared again", migrating(ready, ""), "", fleet.MigrationPrepared, facts{}, "a waits"},
		{"copying", migrating(ready, ""), fleet.MigrationCopying, fleet.MigrationPrepared, facts{}, "a waits"},
		{"gone, not arrived", migrating(ready, ""), fleet.MigrationGone, fleet.MigrationPrepared, facts{}, "a cancelled"},
		{"gone, asked", migrating(ready, "x"), fleet.MigrationGone, fleet.MigrationPrepared, facts{}, "a waits"},
		{"ended on the way", migrating(ready, "x"), fleet.MigrationGone, fleet.MigrationGivenBack, facts{}, "a ended"},
		{"arrived", migrating(ready, ""), fleet.MigrationGone, fleet.MigrationArrived, facts{}, "b ended"},
		{"arrived, source undecided", migrating(ready, ""), fleet.MigrationUndecided, fleet.MigrationArrived, facts{},
			"b ended"},
		{"arrived although cancelled", migrating(ready, "x"), fleet.MigrationUndecided, fleet.MigrationArrived,
			facts{}, "b ended"},
		{"both say that they run it", migrating(ready, ""), fleet.MigrationStays, fleet.MigrationArrived, facts{},
			"a cancelled"},
		{"both say so still", migrating(ready, "x"), fleet.MigrationStays, fleet.MigrationArrived, facts{}, "a waits"},
		{"refused at once", migrating(false, ""), "", fleet.MigrationRefused, facts{}, "a ended"},
		{"stays", migrating(ready, ""), fleet.MigrationStays, fleet.MigrationPrepared, facts{}, "a cancelled"},
		{"undecided", migrating(ready, ""), fleet.MigrationUndecided, fleet.MigrationPrepared, facts{}, "a cancelled"},
		{"cancelled, target has it still", migrating(ready, "x"), fleet.MigrationStays, fleet.MigrationPrepared,
			facts{}, "a waits"},
		{"cancelled, source copies still", migrating(ready, "x"), fleet.MigrationCopying, fleet.MigrationGivenBack,
			facts{}, "a waits"},
		{"given back", migrating(ready, "x"), fleet.MigrationStays, fleet.MigrationGivenBack, facts{}, "a ended"},
		{"given back, source undecided", migrating(ready, "x"), fleet.MigrationUndecided, fleet.MigrationGivenBack,
			facts{}, "a ended"},
		{"never began", migrating(false, "x"), "", fleet.MigrationGivenBack, facts{}, "a ended"},
		{"target dead", migrating(ready, ""), "", "", facts{targetDead: true}, "a cancelled"},
		{"target dead, cancelled", migrating(ready, "x"), fleet.MigrationStays, "", facts{targetDead: true}, "a ended"},
		{"target dead after it arrived", migrating(ready, "x"), fleet.MigrationGone, fleet.MigrationArrived,
			facts{targetDead: true}, "a ended"},
		{"target dead, source gone", migrating(ready, ""), fleet.MigrationGone, "", facts{targetDead: true},
			"a cancelled"},
		{"target dead, source copies", migrating(ready, "x"), fleet.MigrationCopying, "", facts{targetDead: true},
			"a waits"},
		{"source dead", migrating(ready, ""), "", fleet.MigrationPrepared, facts{sourceDead: true}, "a cancelled"},
		{"source dead, arrived", migrating(ready, ""), "", fleet.MigrationArrived, facts{sourceDead: true}, "b ended"},
		{"source dead, given back", migrating(ready, "x"), "", fleet.MigrationGivenBack, facts{sourceDead: true},
			"a ended"},
		{"target silent", migrating(false, ""), "", "", facts{now: began.Add(time.Hour)}, "a cancelled"},
		{"copies for long", migrating(ready, ""), fleet.MigrationCopying, fleet.MigrationPrepared,
			facts{now: began.Add(time.Hour)}, "a waits"},
	} {
		f := test.f
		f.source, f.target = part("a", test.source), part("b", test.target)
		if f.now.IsZero() {
			f.now = began
		}
		if got := outcome(&test.vm, settle(test.vm, f)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func outcome(before *fleet.VM, s settled) string {
	switch after := s.vm.Migration; {
	case !s.changed:
		return s.vm.Host + " waits"
	case s.vm.Generation != before.Generation+1:
		return "the generation does not change"
	case after == nil:
		return s.vm.Host + " ended"
	case after.Cancel != before.Migration.Cancel:
		return s.vm.Host + " cancelled"
	}
	return s.vm.Host + " ready"
}

// Whatever the hosts report, in any order, the record never says that a host has the VM while the other one may run it.
func TestSettle_NeverTwoHosts(t *testing.T) {
	phases := []fleet.MigrationPhase{"", fleet.MigrationPrepared, fleet.MigrationCopying, fleet.MigrationGone,
		fleet.MigrationArrived,
		fleet.MigrationStays, fleet.MigrationUndecided, fleet.MigrationGivenBack, fleet.MigrationRefused}
	rapid.Check(t, func(t *rapid.T) {
		vm := migrating(rapid.Bool().Draw(t, "ready"), rapid.SampledFrom([]string{"", "x"}).Draw(t, "cancel"))
		source, target := rapid.SampledFrom(phases).Draw(t, "source"), rapid.SampledFrom(phases).Draw(t, "target")
		f := facts{source: part("a", source), target: part("b", target),
			now: began.Add(time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "later")))}
		if old := rapid.Bool().Draw(t, "old"); old && f.target != nil { // of an earlier migration
			f.target.Migration.Began = began.Add(-time.Hour)
			target = ""
		}
		after := settle(vm, f)
		if after.vm.Migration != nil {
			return
		}
		switch after.vm.Host {
		case "b":
			if target != fleet.MigrationArrived {
				t.Fatalf("on the target, which says %q", target)
			}
		case "a":
			if target != fleet.MigrationGivenBack && target != fleet.MigrationRefused {
				t.Fatalf("ended on the source, and the target says %q", target)
			}
		default:
			t.Fatalf("on host %q", after.vm.Host)
		}
	})
}

func TestStateOf_SaysUnknownRatherThanOld(t *testing.T) {
	vm := fleet.VM{Name: "vm", Host: "a", Generation: 2, Run: fleet.Running}
	at := func(generation int64, phase fleet.Phase) *fleet.VMStatus {
		return &fleet.VMStatus{Name: "vm", Host: "a", Generation: generation, Phase: phase}
	}
	for _, test := range []struct {
		status    *fleet.VMStatus
		reachable bool
		want      fleetapi.VMState
	}{
		{nil, true, fleetapi.VMWorking},
		{at(1, fleet.PhaseRunning), true, fleetapi.VMWorking},
		{at(2, fleet.PhaseRunning), true, fleetapi.VMRunning},
		{at(2, fleet.PhaseRunning), false, fleetapi.VMUnknown},
		{at(2, fleet.PhaseStopped), true, fleetapi.VMStopped},
		{at(2, fleet.PhaseFailed), true, fleetapi.VMFailed},
		{at(2, fleet.PhaseGone), true, fleetapi.VMWorking},
	} {
		if got := fleetapi.StateOf(&vm, test.status, test.reachable); got != test.want {
			t.Errorf("%+v, reachable %v: got %s, want %s", test.status, test.reachable, got, test.want)
		}
	}
	if got := fleetapi.StateOf(&fleet.VM{}, nil, true); got != fleetapi.VMPending {
		t.Errorf("without a host: got %s", got)
	}
}

func TestExceeds_NamesEachLimit(t *testing.T) {
	quota := fleetapi.Quota{VCPUs: 10, Memory: 8 << 30}
	if over := exceeds(quota, fleetapi.Quota{VCPUs: 8, Memory: 4 << 30}, fleetapi.Quota{VCPUs: 2, Memory: 4 << 30,
		VMs: 1}); over != "" {
		t.Errorf("got %q", over)
	}
	if over := exceeds(quota, fleetapi.Quota{VCPUs: 9}, fleetapi.Quota{VCPUs: 2, Memory: 9 << 30}); over !=
		"vCPUs: 9 of 10 in use, 2 more asked for; memory: 0 B of 8 GiB in use, 9 GiB more asked for" {
		t.Errorf("got %q", over)
	}
	if over := exceeds(fleetapi.Quota{VCPUs: 1}, fleetapi.Quota{VCPUs: 9}, fleetapi.Quota{VMs: 1}); over != "" {
		t.Errorf("a limit that was lowered refuses what does not need it: %q", over)
	}
}

// A host that moves a VM between its nodes takes the claim with it: the room that the VM left is free, and the
// room that it has is not.
func TestServer_ClaimFollowsTheHostsOwnMoves(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	vm := r.create(oneNode("vm", 3, 4*topology.GiB))
	from := vm.Placement.Reservations[0].Node
	moved := vm.Placement
	moved.Nodes = topology.SetOf(1 - from)
	moved.Reservations = slices.Clone(moved.Reservations)
	moved.Reservations[0].Node = 1 - from
	report := func(generation int64, p guest.Placement) *fleetapi.Problem {
		return a.try("PUT", "/agent/v1/vms/vm/status", fleet.VMStatus{Name: "vm", Host: "a", Generation: generation,
			Phase: fleet.PhaseRunning, Placement: p}, nil)
	}
	// What is about an older record, or about a node that the host does not have, changes nothing.
	nowhere := moved
	nowhere.Reservations = slices.Clone(moved.Reservations)
	nowhere.Reservations[0].Node = 7
	if p := report(vm.Generation, nowhere); p == nil || p.Type != fleetapi.ProblemInvalid {
		t.Errorf("a node that does not exist: %v", p)
	}
	if p := report(vm.Generation-1, moved); p != nil {
		t.Error(p)
	}
	if now, err := r.admin.VM(t.Context(), "vm"); err != nil || !now.Placement.Nodes.Equal(vm.Placement.Nodes) {
		t.Errorf("got %+v, %v", now.Placement, err)
	}
	if p := report(vm.Generation, moved); p != nil {
		t.Fatal(p)
	}
	r.eventually("the claim follows", func() bool {
		now, err := r.admin.VM(t.Context(), "vm")
		return err == nil && now.Placement.Nodes.Equal(moved.Nodes) && now.Generation == vm.Generation+1
	})
	n, err := r.admin.Nodes(t.Context(), "a")
	if err != nil || n.Nodes[from].Promised != 0 || n.Nodes[1-from].Promised != 4*topology.GiB {
		t.Errorf("got %+v, %v", n, err)
	}
	if other := r.create(oneNode("other", 4, topology.GiB)); !other.Placement.Nodes.Equal(topology.SetOf(from)) {
		t.Errorf("the room that it left is not used: nodes %v", other.Placement.Nodes)
	}
}
