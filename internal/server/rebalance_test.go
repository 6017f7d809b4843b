package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// pressed is a fleet whose host a has six busy VMs of 2 vCPUs on two nodes of 4 CPUs, and whose host b is idle.
type pressed struct {
	*rig
	a, b *fakeHost
}

// newPressed makes it. follow says how both hosts carry the desired state out; change changes each VM's guest
// before host a reports it.
func newPressed(
	t *testing.T, p policy.Balance, change func(g *inventory.Guest), follow func(vm fleet.VM, host string) *fleet.VMStatus,
) *pressed {
	t.Helper()
	r := &pressed{rig: newUnstartedRig(t)}
	r.setup.policy = policy.Policy{Overcommit: 2, Count: policy.CountThreads, KeepFree: new(topology.Bytes), Balance: p}
	r.setup.plans = 20 * time.Millisecond
	r.setup.limits = migrate.Limits{Lasts: time.Millisecond}
	r.start()
	r.a = r.join("a", "nodes:2 cores:4 memory:16G")
	r.a.follow(func(vm fleet.VM) *fleet.VMStatus { return follow(vm, "a") })
	for i := range 6 {
		made, err := r.admin.CreateVM(t.Context(), vmOf(fmt.Sprintf("vm%d", i), 2, 2*topology.GiB), fleetapi.Change{})
		if err != nil || made.Host != "a" {
			t.Fatalf("got %+v, %v", made, err)
		}
		g := inventory.Guest{Name: made.Name, State: "running", Managed: true, Spec: &made.Spec,
			Placement: &made.Placement, Can: inventory.Capabilities{MoveMemory: true},
			Config: inventory.Config{VCPUs: 2, Memory: 2 * topology.GiB, SharedStorage: new(true)}}
		g.Seen.MemoryByNode = topology.MemoryByNode{}
		for _, v := range made.Placement.Reservations {
			g.Seen.MemoryByNode[v.Node] = v.Memory
		}
		if change != nil {
			change(&g)
		}
		r.a.inv.Guests = append(r.a.inv.Guests, g)
	}
	r.a.report()
	r.b = r.join("b", "nodes:2 cores:4 memory:16G")
	r.b.follow(func(vm fleet.VM) *fleet.VMStatus { return follow(vm, "b") })
	r.load(1)
	return r
}

// load reports loads: each VM of host a gets two thirds of what it wants.
func (r *pressed) load(number uint64) {
	r.t.Helper()
	busy := fleet.Loads{Number: number, Taken: time.Now()}
	for i := range 6 {
		busy.VMs = append(busy.VMs, fleet.VMLoad{Name: fmt.Sprintf("vm%d", i), GuestLoad: inventory.GuestLoad{
			Window: 30 * time.Second, CPU: 4. / 3, Wait: 2. / 3}})
	}
	idle := fleet.Loads{Number: number, Taken: time.Now()}
	for node := range topology.NodeID(2) {
		busy.Nodes = append(busy.Nodes, fleet.Node{NodeLoad: inventory.NodeLoad{Node: node, CPU: 4, Wait: 2},
			Free: 10 * topology.GiB})
		idle.Nodes = append(idle.Nodes, fleet.Node{NodeLoad: inventory.NodeLoad{Node: node}, Free: 16 * topology.GiB})
	}
	r.a.send("POST", "/agent/v1/loads", busy, nil)
	r.b.send("POST", "/agent/v1/loads", idle, nil)
}

// planned waits for a plan that satisfies f, while the server's clock goes on.
func (r *pressed) planned(what string, f func(p *fleetapi.Plan) bool) fleetapi.Plan {
	r.t.Helper()
	var p fleetapi.Plan
	r.eventually(what, func() bool {
		r.setup.offset.Add(int64(time.Second))
		var err error
		if p, err = r.admin.Plan(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		return f(&p)
	})
	return p
}

// migrates is a daemon that carries migrations out.
func migrates(vm fleet.VM, host string) *fleet.VMStatus {
	m := vm.Migration
	part := func(phase fleet.MigrationPhase, a *fleet.Arrival) *fleet.VMStatus {
		return &fleet.VMStatus{Phase: fleet.PhaseRunning, Downtime: 80 * time.Millisecond, Copied: 3 * topology.GiB,
			Migration: &fleet.MigrationStatus{Began: m.Began, Phase: phase, Arrival: a}}
	}
	switch {
	case m == nil:
		return obey(vm)
	case host == m.To && m.Ready == nil:
		return part(fleet.MigrationPrepared, &fleet.Arrival{URI: "qemu+tls://b/system"})
	case host == m.To:
		return part(fleet.MigrationArrived, nil)
	case m.Ready != nil:
		return part(fleet.MigrationGone, nil)
	}
	return obey(vm)
}

// What a host cannot solve itself, the server solves by a migration to another host, and shows why.
func TestRebalance_MigratesOffAHostThatCannotHelpItself(t *testing.T) {
	r := newPressed(t, policy.Balance{}, nil, migrates)
	var moved fleetapi.Move
	r.planned("a VM has migrated", func(*fleetapi.Plan) bool {
		moves, err := r.admin.Moves(t.Context(), "", 100, "")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(moves.Moves, func(m fleetapi.Move) bool { return m.Outcome == fleetapi.MoveArrived })
		if i >= 0 {
			moved = moves.Moves[i]
		}
		return i >= 0
	})
	if moved.From != "a" || moved.To != "b" || moved.Why == "" || moved.Downtime != 80*time.Millisecond ||
		moved.Copied != 3*topology.GiB || moved.Project != "default" || moved.Ended.Before(moved.Began) {
		t.Errorf("got %+v", moved)
	}
	vm, err := r.admin.VM(t.Context(), moved.VM)
	if err != nil || vm.Host != "b" || vm.Why == nil {
		t.Errorf("got %+v, %v", vm, err)
	}
	audit, err := r.admin.Audit(t.Context(), 100, "")
	if err != nil || !slices.ContainsFunc(audit.Entries, func(e fleetapi.AuditEntry) bool {
		return e.Operation == "balance" && e.Object == "vm "+moved.VM && e.User == "server"
	}) {
		t.Errorf("the audit has no migration by the server: %+v, %v", audit, err)
	}
	// It does not return, and the others of host a are relieved one after the other until it is calm.
	if again, err := r.admin.Moves(t.Context(), moved.VM, 100, ""); err != nil || len(again.Moves) != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}

// What the mode forbids is advised: it stays in the plan, with its reason and price, and is not made.
func TestRebalance_AdvisesAndWaits(t *testing.T) {
	r := newPressed(t, policy.Balance{Migrate: policy.ModeAdvise}, nil, migrates)
	p := r.planned("a plan", func(p *fleetapi.Plan) bool { return len(p.Migrations) > 0 })
	m := p.Migrations[0]
	if !m.Advised || m.From != "a" || m.To != "b" || m.Saves <= 0 || m.Price.Bytes != 2*topology.GiB || m.Why == "" ||
		m.Nodes.IsEmpty() || m.Relieves == "" || p.Mode != policy.ModeAdvise || p.Made.IsZero() {
		t.Errorf("got %+v", p)
	}
	if moves, err := r.admin.Moves(t.Context(), "", 100, ""); err != nil || len(moves.Moves) > 0 {
		t.Errorf("got %+v, %v", moves, err)
	}
	// The operator's word is the ordinary migration.
	if _, err := r.admin.MigrateVM(t.Context(), m.VM, fleetapi.VMMigrate{To: m.To}, fleetapi.Change{}); err != nil {
		t.Error(err)
	}
}

// Why VMs stay is in the plan, and nothing is begun.
func TestRebalance_SaysWhyVMsStay(t *testing.T) {
	for _, c := range []struct {
		want    migrate.Obstacle
		balance policy.Balance
		change  func(g *inventory.Guest)
	}{
		{want: migrate.Storage, change: func(g *inventory.Guest) { g.Config.SharedStorage = new(false) }},
		{want: migrate.Storage, change: func(g *inventory.Guest) { g.Config.SharedStorage = nil }},
		{want: migrate.Devices, change: func(g *inventory.Guest) { g.Config.Devices = []string{"0000:3b:00.0"} }},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			r := newPressed(t, c.balance, c.change, migrates)
			r.planned(string(c.want), func(p *fleetapi.Plan) bool {
				return slices.ContainsFunc(p.Blocked, func(b fleetapi.BlockedVM) bool {
					return b.Kind == string(c.want) && b.Host == "a" && b.Why != ""
				})
			})
			if moves, err := r.admin.Moves(t.Context(), "", 100, ""); err != nil || len(moves.Moves) > 0 {
				t.Errorf("got %+v, %v", moves, err)
			}
		})
	}
}

// A migration that fails is not repeated at once.
func TestRebalance_PausesAfterAFailure(t *testing.T) {
	r := newPressed(t, policy.Balance{Cooldown: policy.Duration(24 * time.Hour)}, nil,
		func(vm fleet.VM, host string) *fleet.VMStatus {
			if m := vm.Migration; m != nil && host == m.To {
				return &fleet.VMStatus{Phase: fleet.PhaseRunning, Migration: &fleet.MigrationStatus{Began: m.Began,
					Phase: fleet.MigrationRefused, Message: "no"}}
			}
			return obey(vm)
		})
	p := r.planned("all VMs pause", func(p *fleetapi.Plan) bool {
		n := 0
		for _, b := range p.Blocked {
			if b.Kind == string(migrate.Cooldown) && !b.Until.IsZero() {
				n++
			}
		}
		return n > 0 && len(p.Migrations) == 0
	})
	moves, err := r.admin.Moves(t.Context(), "", 100, "")
	if err != nil || len(moves.Moves) == 0 {
		t.Fatalf("got %+v, %v", moves, err)
	}
	tried := map[string]bool{}
	for _, m := range moves.Moves {
		if m.Outcome != fleetapi.MoveStayed || m.Message == "" || tried[m.VM] {
			t.Errorf("got %+v; plan: %+v", m, p)
		}
		tried[m.VM] = true
	}
}

func TestHeadroom_OfTheLiveFleet(t *testing.T) {
	r := newPressed(t, policy.Balance{Migrate: policy.ModeOff}, nil, migrates)
	h, err := r.admin.Headroom(t.Context())
	if err != nil || len(h.Hosts) != 2 || h.Hosts[0].Host != "a" || h.Hosts[0].VMs != 6 ||
		len(h.Hosts[0].Missing) > 0 || len(h.Hosts[1].Missing) > 0 {
		t.Fatalf("got %+v, %v", h, err)
	}
	for i := range 4 { // host b is full
		made, err := r.admin.CreateVM(t.Context(), vmOf(fmt.Sprintf("big%d", i), 4, 3*topology.GiB), fleetapi.Change{})
		if err != nil || made.Host == "" {
			t.Fatalf("got %+v, %v", made, err)
		}
	}
	h, err = r.admin.Headroom(t.Context())
	if err != nil || len(h.Hosts[0].Missing) == 0 || h.Hosts[0].Missing[0].Why == "" {
		t.Errorf("got %+v, %v", h, err)
	}
}
