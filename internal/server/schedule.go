package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server/store"
)

// scheduler has the hosts as package schedule sees them, in step with the state.
type scheduler struct {
	// turn serializes this server's decisions that are stored, up to their commit: the next one sees the room
	// that this one takes. It is locked before mu.
	turn sync.Mutex
	// mu protects the fleet. It is held while a decision is computed, never during a call of the store: dry runs
	// wait for no commit. It is locked before the state.
	mu     sync.Mutex
	policy policy.Policy
	fleet  *schedule.Fleet
	basis  map[string]basis
	state  *state // that the fleet looks hosts up in; nil: no decision is made
	loads  *loads

	dirtyMu sync.Mutex
	dirty   map[string]bool // hosts that changed since
	loaded  map[string]bool // hosts whose loads alone changed since
}

// basis is what the fleet's knowledge of a host was computed from.
type basis struct{ claims, host int64 }

func newScheduler(p policy.Policy) *scheduler {
	s := &scheduler{policy: p, fleet: newFleet(p), basis: map[string]basis{}, dirty: map[string]bool{},
		loaded: map[string]bool{}}
	s.fleet.LookUp(s.look)
	return s
}

func newFleet(p policy.Policy) *schedule.Fleet {
	f, _ := schedule.New(nil, p, schedule.Weights{}) // it fails only for hosts that are given twice
	return f
}

// look returns the inventory of a host in the state that the present decision is made on.
func (s *scheduler) look(host string) *inventory.Host {
	if s.state == nil {
		return nil
	}
	h := seenHost(s.state, host, s.loads)
	return h.Inventory
}

// see lets the fleet look hosts up in a state. The caller holds mu, and the state's lock until it has called done.
func (s *scheduler) see(st *state, l *loads) (done func()) {
	s.state, s.loads = st, l
	return func() { s.state = nil }
}

func (s *scheduler) noteChange(_ *state, c change) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	for name := range c.hosts {
		s.dirty[name] = true
	}
}

// noteHost records that a host has changed: the next decision must know it.
func (s *scheduler) noteHost(host string) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.dirty[host] = true
}

// noteLoads records that the loads of a host have changed.
func (s *scheduler) noteLoads(host string) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.loaded[host] = true
}

// take returns hosts that changed: all of them, and with them at most a number of those whose loads alone changed.
func (s *scheduler) take(mostLoaded int) []string {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	out := slices.Collect(maps.Keys(s.dirty))
	clear(s.dirty)
	return s.takeLoaded(out, mostLoaded)
}

// takeSome returns at most a number of hosts that changed, whatever has changed of them.
func (s *scheduler) takeSome(most int) (out []string) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	for host := range s.dirty {
		if len(out) == most {
			break
		}
		out = append(out, host)
		delete(s.dirty, host)
	}
	return s.takeLoaded(out, most-len(out))
}

// takeLoaded adds hosts whose loads changed. The caller holds dirtyMu.
func (s *scheduler) takeLoaded(out []string, most int) []string {
	for host := range s.loaded {
		if most == 0 {
			break
		}
		out = append(out, host)
		delete(s.loaded, host)
		most--
	}
	return out
}

const (
	// loadsAtOnce bounds the hosts that a request brings up to date because of their loads alone: the reports of
	// 2,000 hosts would hold it up.
	loadsAtOnce = 10
	// refreshEvery is how often the loads of all hosts are brought up to date, hostsAtOnce at a time.
	refreshEvery = 100 * time.Millisecond
	hostsAtOnce  = 20
)

// update brings the fleet in step with the state. The caller holds mu, and the state's lock until it has called
// done.
func (s *scheduler) update(st *state, l *loads) (done func()) {
	for _, name := range s.take(loadsAtOnce) {
		s.set(seenHost(st, name, l))
	}
	return s.see(st, l)
}

// refresh brings the fleet up to date until ctx ends, so that decisions find little to do.
func (s *scheduler) refresh(ctx context.Context, of *cache, l *loads) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for s.refreshSome(of, l) && ctx.Err() == nil {
		}
	}
}

// refreshSome brings some hosts up to date, and reports whether there may be others.
func (s *scheduler) refreshSome(of *cache, l *loads) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.takeSome(hostsAtOnce)
	all := make([]seen, 0, len(names))
	of.read(func(st *state) {
		for _, name := range names {
			all = append(all, seenHost(st, name, l))
		}
	})
	for _, h := range all { // what has changed meanwhile is noted again
		s.set(h)
	}
	return len(names) == hostsAtOnce
}

// readPlacing calls a function with the state and the fleet in step with it.
func (s *Server) readPlacing(f func(*state)) {
	s.sched.mu.Lock()
	defer s.sched.mu.Unlock()
	s.cache.read(func(st *state) {
		defer s.sched.update(st, s.loads)()
		f(st)
	})
}

// attemptPlacing is attempt for decisions about the room of hosts.
func (s *Server) attemptPlacing(ctx context.Context, f decision) (revision int64, err error) {
	s.sched.turn.Lock()
	defer s.sched.turn.Unlock()
	return s.attemptWith(ctx, s.readPlacing, f, func(string) {})
}

// decidePlacing is decide for decisions about the room of hosts. f stores nothing in a dry run.
func (s *Server) decidePlacing(ctx context.Context, dryRun bool, f decision) (revision int64, err error) {
	if !dryRun {
		return s.confirmed(ctx, f, s.attemptPlacing)
	}
	return s.confirmed(ctx, f, func(ctx context.Context, f decision) (int64, error) {
		return s.attemptWith(ctx, s.readPlacing, f, func(string) {})
	})
}

// seen is what the state says about a host.
type seen struct {
	schedule.Host // without an inventory: the fleet does not have the host
	groups        map[string]string
	basis         basis
}

func seenHost(st *state, name string, l *loads) (out seen) {
	_, has := st.hosts[name]
	if _, reported := st.reports[name]; !has || !reported {
		out.Name = name
		return out
	}
	out.Host, out.groups = hostOf(st, name, l, false)
	out.basis = basis{st.keys[store.Claims+name], st.hosts[name].revision}
	return out
}

func (s *scheduler) set(h seen) {
	if h.Inventory == nil {
		s.fleet.RemoveHost(h.Name)
		delete(s.basis, h.Name)
		return
	}
	s.fleet.Set(h.Host, h.groups)
	s.basis[h.Name] = h.basis
}

// hostOf returns a host for decisions, and the groups of its VMs. See guestRecord.value for whole; specs and placements
// of the fleet's VMs have no names.
func hostOf(st *state, name string, l *loads, whole bool) (schedule.Host, map[string]string) {
	h := st.hosts[name].value
	claimed, groups := map[string]claimedVM{}, map[string]string{}
	for vm := range st.on[name] {
		r := st.vms[vm]
		placement := r.placement
		if r.host != name { // it migrates to this host
			placement = &r.migration.Placement
		}
		claimed[vm] = claimedVM{&r.rest.Spec, placement}
		if group := groupOf(r.rest); group != "" {
			groups[vm] = group
		}
	}
	inv := inventoryOf(st.reports[name].inventory(whole), claimed, l.of(name))
	return schedule.Host{Name: name, Rack: h.Rack, Preference: h.Preference,
		Cordoned: h.Cordoned || h.Draining || h.Dead != nil, Unreachable: st.keys[store.Alive+name] == 0,
		Inventory: inv}, groups
}

// groupOf returns a VM's group. Projects do not share groups.
func groupOf(vm *fleet.VM) string {
	if vm.Affinity.Group == "" {
		return ""
	}
	return vm.Project + "/" + vm.Affinity.Group
}

// wish is what a decision about a VM asks for.
type wish struct {
	vm   *fleet.VM
	host string // the only host allowed; empty: any
	// fresh says that the VM's present room is free: it is placed again. Else it is
	// reserved in addition, as for a migration.
	fresh bool
	// can is what the VM's hypervisor can do with it while it runs; of VMs that are to migrate.
	can *inventory.Capabilities
}

// place decides on the host and nodes of a VM, and makes the transaction depend on it. Its callers are
// called by readPlacing.
func (s *scheduler) place(w wish, t *transaction) (*schedule.Decision, error) {
	request := schedule.Request{Spec: w.vm.Spec, Machine: w.vm.Machine.Type, Affinity: w.vm.Affinity, Host: w.host}
	request.Affinity.Group = groupOf(w.vm)
	switch running := w.vm.Host != "" && w.vm.Placement.Guest != ""; {
	case running && w.can != nil:
		request.Spec = adopt.Elsewhere(w.vm.Spec, &w.vm.Placement, *w.can)
	case running:
		request.Spec = adopt.Fixed(w.vm.Spec, &w.vm.Placement)
	}
	if w.fresh && w.vm.Host != "" {
		if s.fleet.Remove(w.vm.Host, w.vm.Name) == nil {
			defer s.noteHost(w.vm.Host) // the fleet has it again with the next update
		}
	}
	d, err := s.fleet.Decide(request)
	if err != nil {
		return nil, err
	}
	at := s.basis[d.Host]
	t.touch(store.Claims+d.Host, at.claims)
	t.require(store.Hosts+d.Host, at.host)
	return d, nil
}

// whyOf describes a decision for the API.
func whyOf(d *schedule.Decision, now time.Time) *fleetapi.Why {
	why := &fleetapi.Why{Summary: d.Why.Place.Summary, Text: d.Text(), Decided: now, Cost: d.Why.Cost,
		Fitted: d.Why.Fitted}
	why.Excluded, why.Next = excludedOf(d.Why.Excluded), nextOf(d.Why.Next)
	why.Terms = show.Terms(&d.Why.Place)
	return why
}

func excludedOf(list []schedule.Excluded) []fleetapi.Excluded {
	var out []fleetapi.Excluded
	for _, x := range list {
		out = append(out, fleetapi.Excluded{Reason: string(x.Reason), Hosts: x.Hosts})
	}
	return out
}

func nextOf(list []schedule.Next) []fleetapi.NextHost {
	var out []fleetapi.NextHost
	for _, n := range list {
		out = append(out, fleetapi.NextHost{Host: n.Host, Cost: n.Cost, Behind: string(n.Behind), Refused: n.Refused})
	}
	return out
}

// noHost returns the refusal in an error; nil if it is another error.
func noHost(err error) *schedule.NoHostError {
	var none *schedule.NoHostError
	if errors.As(err, &none) {
		return none
	}
	return nil
}

// settleOn gives a VM the host and the placement of a decision.
func settleOn(vm *fleet.VM, d *schedule.Decision) {
	vm.Host, vm.Placement, vm.Pending = d.Host, d.Placement, ""
}
