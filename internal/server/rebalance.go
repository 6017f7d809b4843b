package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

const (
	// planEvery is how often a server looks for hosts that cannot relieve their VMs.
	planEvery = 30 * time.Second
	// writeEvery is how often an unchanged plan is written, so that readers see that it is recent.
	writeEvery = 5 * time.Minute
	// mostPlanned bounds each list of a stored plan.
	mostPlanned = 500
	// longestPause bounds the pause after failed migrations of a VM.
	longestPause = 24 * time.Hour
)

// rebalancer migrates VMs away from hosts that cannot relieve them. Only the leader does so: the other servers
// relay the loads of their hosts to it.
type rebalancer struct {
	*Server
	balance policy.Balance
	local   map[string]balance.Past // of the last plan
	id      string                  // of this server's plan
	lease   store.LeaseID           // the plan ends with it
	written fleetapi.Plan
}

// rebalance plans and begins migrations until ctx ends.
func (s *Server) rebalance(ctx context.Context) {
	every := cmp.Or(s.PlanEvery, planEvery)
	r := &rebalancer{Server: s, balance: s.Policy.WithDefaults().Balance, id: auth.NewToken().ID}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.leader.Leads() {
			r.stop(ctx)
			continue
		}
		if err := r.round(ctx, every); err != nil && ctx.Err() == nil {
			s.Log.Warn("the hosts' balance was not planned", "error", err)
		}
	}
}

// stop withdraws the plan of a server that does not lead any more.
func (r *rebalancer) stop(ctx context.Context) {
	if r.lease != 0 {
		_ = r.Store.Revoke(ctx, r.lease) // else it ends by itself
	}
	r.lease, r.local = 0, nil
}

// round makes a plan, and begins its migrations.
func (r *rebalancer) round(ctx context.Context, every time.Duration) error {
	found, err := r.plan(ctx)
	if err != nil {
		return err
	}
	shown := r.show(&found)
	for i := range found.Migrations {
		if m := &found.Migrations[i]; !m.Advised {
			r.report("migrate", m.VM, r.begin(ctx, m))
		}
	}
	return r.write(ctx, shown, every)
}

// plan decides which VMs should migrate.
func (r *rebalancer) plan(ctx context.Context) (migrate.Plan, error) {
	most := r.balance.MigrateModeOf("", true)
	if most == policy.ModeOff || len(r.local) == 0 && !r.loads.pressed(r.balance) {
		r.local = nil
		return migrate.Plan{}, nil
	}
	r.surveying.Lock()
	defer r.surveying.Unlock()
	of, err := r.survey(ctx, true)
	if err != nil {
		return migrate.Plan{}, err
	}
	now := r.Now()
	q := migrate.Request{Fleet: of.fleet, Now: now, VMs: of.vms, Local: r.local, Running: of.running, Limits: r.Limits}
	moves, err := r.storedMoves(ctx)
	if err != nil {
		return migrate.Plan{}, err
	}
	remember(&q, moves, r.balance)
	p, err := migrate.Rebalance(q)
	if err == nil {
		r.local = p.Local
	}
	return p, err
}

// remember adds what followed from earlier migrations: cooldowns, and pauses after failures.
func remember(q *migrate.Request, moves []fleetapi.Move, b policy.Balance) {
	failures := map[string]int{}
	for i := range moves {
		m := &moves[i]
		age := q.Now.Sub(m.Ended)
		switch {
		case age >= balance.Remembered(b):
		case m.Outcome == fleetapi.MoveArrived:
			q.History = append(q.History, migrate.Migrated{VM: m.VM, From: m.From, To: m.To, At: m.Ended})
			delete(failures, m.VM)
		default:
			vm, known := q.VMs[m.VM]
			if !known {
				continue
			}
			pause := min(longestPause, time.Duration(b.Cooldown)<<min(failures[m.VM], 16))
			failures[m.VM]++
			vm.NotBefore = m.Ended.Add(pause)
			q.VMs[m.VM] = vm
		}
	}
}

// pressed reports whether any VM of this server's hosts may be degraded.
func (l *loads) pressed(b policy.Balance) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.by {
		for _, vm := range h.vms {
			if migrate.Pressed(b, &vm.GuestLoad) {
				return true
			}
		}
	}
	return false
}

// show describes a plan for the API.
func (r *rebalancer) show(p *migrate.Plan) fleetapi.Plan {
	out := fleetapi.Plan{Mode: r.balance.MigrateModeOf("", true), Migrations: []fleetapi.PlannedMigration{},
		Blocked: []fleetapi.BlockedVM{}}
	for i := range p.Migrations[:min(len(p.Migrations), mostPlanned)] {
		m := &p.Migrations[i]
		out.Migrations = append(out.Migrations, fleetapi.PlannedMigration{VM: m.VM, From: m.From, To: m.To,
			Nodes: m.Placement.Nodes, Advised: m.Advised, Relieves: m.Relieves,
			Saves: m.Benefit.AccessCPUs + m.Benefit.WaitCPUs, Why: m.Why,
			Price: fleetapi.Price{Bytes: m.Price.Bytes, Took: m.Price.Took, Downtime: m.Price.Downtime,
				CPUSeconds: m.Price.CPUSeconds}})
	}
	for _, b := range p.Blocked[:min(len(p.Blocked), mostPlanned)] {
		out.Blocked = append(out.Blocked, fleetapi.BlockedVM{VM: b.VM, Host: b.Host, Kind: string(b.Kind),
			Until: b.Until, Why: cut(b.Why)})
	}
	out.Omitted = len(p.Migrations) + len(p.Blocked) - len(out.Migrations) - len(out.Blocked)
	return out
}

// begin begins a migration of a plan, if its reasons still hold.
func (r *rebalancer) begin(ctx context.Context, m *migrate.Migration) error {
	_, err := r.attemptPlacing(ctx, func(st *state, t *transaction) error {
		at := st.vmOf(m.VM)
		vm := at.value
		if at.revision == 0 || vm.Host != m.From || settledVM(&vm) != nil || vm.Run != fleet.Running ||
			st.keys[store.Alive+vm.Host] == 0 || len(st.migrating) >= r.mostAtOnce(st) {
			return errNothing
		}
		why, err := r.migrate(t, st, &vm, fleet.Migration{To: m.To, Why: m.Why})
		if err != nil {
			return err
		}
		vm.Generation++
		t.touch(store.Balancing, st.keys[store.Balancing]) // two servers that believe to lead keep the limit
		t.require(store.VMs+m.VM, at.revision)
		t.put(store.VMs+m.VM, vm)
		t.put(store.Reasons+m.VM, why)
		r.audit(t, &rest.Call{Operation: fleetapi.Operation{ID: "balance"}}, fleetapi.AboutVM, m.VM,
			fleetapi.HideSecrets(at.value), fleetapi.HideSecrets(vm))
		return nil
	})
	if err == nil {
		r.Log.Info("a migration relieves a host", "vm", m.VM, "from", m.From, "to", m.To, "relieves", m.Relieves)
	}
	return err
}

// mostAtOnce returns how many migrations may run at once.
func (r *rebalancer) mostAtOnce(st *state) int { return r.Limits.WithDefaults(len(st.hosts)).Fleet }

// write stores the plan for all servers to show, if it has changed.
func (r *rebalancer) write(ctx context.Context, p fleetapi.Plan, every time.Duration) error {
	p.Made = r.written.Made
	now := r.Now().UTC().Truncate(time.Second)
	if r.lease != 0 {
		if err := r.Store.Renew(ctx, r.lease); errors.Is(err, store.ErrNotFound) {
			r.lease = 0
		} else if err != nil {
			return unavailable(err)
		}
	}
	if r.lease != 0 && now.Sub(p.Made) < writeEvery && same(p, r.written) {
		return nil
	}
	if r.lease == 0 {
		lease, err := r.Store.Lease(ctx, max(3*every, time.Minute))
		if err != nil {
			return unavailable(err)
		}
		r.lease = lease
	}
	p.Made = now
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	t := &transaction{}
	t.Put = append(t.Put, store.Put{Key: store.Plans + r.id, Value: data, Lease: r.lease})
	if _, err := r.commit(ctx, t); err != nil {
		return err
	}
	r.written = p
	return nil
}

// Plan implements rest.Service. While the lead changes there may be two plans.
func (s *Server) Plan(ctx context.Context, _ rest.Call) (fleetapi.Plan, error) {
	records, _, err := s.Store.List(ctx, store.Plans)
	if err != nil && !errors.Is(err, store.ErrStale) {
		return fleetapi.Plan{}, unavailable(err)
	}
	out := fleetapi.Plan{Mode: s.Policy.WithDefaults().Balance.MigrateModeOf("", true),
		Migrations: []fleetapi.PlannedMigration{}, Blocked: []fleetapi.BlockedVM{}}
	for _, r := range records {
		var p fleetapi.Plan
		if err := json.Unmarshal(r.Value, &p); err != nil {
			s.Log.Error("a record was ignored", "key", r.Key, "error", err)
			continue
		}
		if p.Made.After(out.Made) {
			out.Made = p.Made
		}
		out.Migrations = append(out.Migrations, p.Migrations...)
		out.Blocked = append(out.Blocked, p.Blocked...)
		out.Omitted += p.Omitted
	}
	slices.SortStableFunc(out.Blocked, func(a, b fleetapi.BlockedVM) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.VM, b.VM))
	})
	return out, nil
}
