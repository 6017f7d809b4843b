package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

const (
	// passEvery is how often the leader looks at all VMs, whether something has changed or not.
	passEvery = 5 * time.Second
	// passPause collects changes before a pass.
	passPause = 20 * time.Millisecond
	// mostPending bounds the pending VMs that one pass decides on: the oldest first.
	mostPending = 200
	// drainAtOnce bounds the migrations away from one host at the same time.
	drainAtOnce = 2
	// retryDrain is the pause before a VM of a draining host is tried again.
	retryDrain = 30 * time.Second
	// pruneEvery is how often old audit entries and results of requests are deleted.
	pruneEvery = time.Hour
	mostAudit  = 20000
)

// reconcile does what no single request does: it retries pending VMs, settles what hosts report, drains hosts and
// moves VMs off dead ones. Only the leader does so.
func (s *Server) reconcile(ctx context.Context) {
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	var pruned time.Time
	again := map[string]retry{} // VMs of draining hosts
	seen := seenRepeats{}
	for led := false; ; {
		whole := !led
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			whole = true
		case <-s.wake:
			select {
			case <-time.After(passPause):
			case <-ctx.Done():
				return
			}
		}
		if led = s.leader.Leads(); !led {
			s.touched.take() // the first pass of a server that leads is a whole one
			continue
		}
		s.pass(ctx, again, whole)
		if time.Since(pruned) > pruneEvery {
			pruned = time.Now()
			s.prune(ctx, seen)
		}
	}
}

// touched are the VMs that changes concern: a pass looks at them alone, as there may be 100,000 others.
type touched struct {
	mu  sync.Mutex
	vms map[string]bool
	// all says that there are too many: the next pass is a whole one.
	all bool
}

// mostTouched bounds the VMs in touched.
const mostTouched = 10_000

// noteChange notes the VMs of a change, and those of hosts that were declared dead.
func (t *touched) noteChange(st *state, c change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(c.vms)
	for host := range c.hosts {
		if isDead(st, host) {
			t.add(st.on[host])
		}
	}
}

func (t *touched) add(vms map[string]bool) {
	if len(t.vms)+len(vms) > mostTouched {
		t.vms, t.all = nil, true
	}
	if t.all || len(vms) == 0 {
		return
	}
	if t.vms == nil {
		t.vms = map[string]bool{}
	}
	maps.Copy(t.vms, vms)
}

// note has the next pass look at a VM again.
func (t *touched) note(vm string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(map[string]bool{vm: true})
}

// take returns what was noted since the last call.
func (t *touched) take() (vms map[string]bool, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	vms, all = t.vms, t.all
	t.vms, t.all = nil, false
	return vms, all
}

// work is what a pass found to do.
type work struct {
	settle  []string // VMs
	pending []fleet.VM
	drain   []string
}

// retry is when a VM that a drain could not move is tried again: at a time, or once the record of its host has
// another revision.
type retry struct {
	at   time.Time
	host int64
}

func (r retry) now(host int64) bool { return !r.at.After(time.Now()) || r.host != host }

// pass looks once at the VMs that changes concern; a whole pass looks at all VMs.
func (s *Server) pass(ctx context.Context, again map[string]retry, whole bool) {
	todo := s.find(again, whole)
	for _, name := range todo.settle {
		err := s.settleVM(ctx, name)
		if err != nil {
			s.touched.note(name)
		}
		s.report("settle", name, err)
	}
	for i := range todo.pending {
		s.report("place", todo.pending[i].Name, s.placePending(ctx, todo.pending[i].Name))
	}
	for _, name := range todo.drain {
		if host, err := s.drainVM(ctx, name); err != nil {
			again[name] = retry{time.Now().Add(retryDrain), host}
			s.report("drain", name, err)
		}
	}
	for name, r := range again {
		if time.Now().After(r.at) {
			delete(again, name)
		}
	}
}

func (s *Server) report(what, vm string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.Log.Warn("a VM waits", "to", what, "vm", vm, "error", err)
	}
}

// find lists what is to do.
func (s *Server) find(again map[string]retry, whole bool) (out work) {
	vms, all := s.touched.take()
	if whole || all {
		out.settle = s.unsettled()
	} else {
		s.cache.read(func(st *state) {
			for name := range vms {
				if at := st.vms[name]; at != nil && s.toSettle(st, at) {
					out.settle = append(out.settle, name)
				}
			}
		})
		slices.Sort(out.settle)
	}
	s.cache.read(func(st *state) {
		for name := range st.pending {
			out.pending = append(out.pending, st.vmOf(name).value)
		}
		out.drain = toDrain(st, again)
	})
	slices.SortFunc(out.pending, func(a, b fleet.VM) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	out.pending = out.pending[:min(len(out.pending), mostPending)]
	return out
}

// atOnce is how many VMs are looked at while the state is locked: requests wait meanwhile.
const atOnce = 500

// unsettled returns all VMs that are to be settled.
func (s *Server) unsettled() (out []string) {
	for cursor, more := "", true; more; {
		s.cache.read(func(st *state) {
			names := after(st.sorted(store.VMs), cursor)
			names, more = names[:min(len(names), atOnce)], len(names) > atOnce
			for _, name := range names {
				if s.toSettle(st, st.vms[name]) {
					out = append(out, name)
				}
				cursor = name
			}
		})
	}
	return out
}

// after returns the sorted names that follow one.
func after(names []string, cursor string) []string {
	i, found := slices.BinarySearch(names, cursor)
	if found && cursor != "" {
		i++
	}
	return names[i:]
}

// toSettle reports whether something follows for a VM from what is known of its hosts.
func (s *Server) toSettle(st *state, r *vmRecord) bool {
	if dead := isDead(st, r.host); r.migration == nil && !r.rest.Delete && !dead {
		if at := st.statusAt(r.name, r.host); at == nil || at.placement == r.placement {
			return false // the host has not moved it: most VMs
		}
	}
	v := r.value()
	next := settle(v, factsOf(st, &v, s.Now()))
	return next.changed || next.deleted || isDead(st, v.Host) && v.Migration == nil && !v.Delete
}

// toDrain returns VMs that should leave their hosts now.
func toDrain(st *state, again map[string]retry) (out []string) {
	moving := map[string]int{}
	for name := range st.migrating {
		moving[st.vmOf(name).value.Host]++
	}
	for host := range st.draining {
		if st.keys[store.Alive+host] == 0 {
			continue
		}
		for _, name := range sortedKeys(st.on[host]) {
			v := st.vmOf(name).value
			if v.Host == host && v.Migration == nil && !v.Delete && moving[host] < drainAtOnce &&
				v.Run == fleet.Running && again[name].now(st.hosts[host].revision) {
				moving[host]++
				out = append(out, name)
			}
		}
	}
	return out
}

func isDead(st *state, host string) bool { return st.hosts[host].value.Dead != nil }

func factsOf(st *state, vm *fleet.VM, now time.Time) facts {
	f := facts{now: now, sourceDead: isDead(st, vm.Host)}
	if s := st.statusOf(vm.Name, vm.Host); s != nil {
		f.source = &s.value
	}
	if vm.Migration != nil {
		f.targetDead = isDead(st, vm.Migration.To)
		if s := st.statusOf(vm.Name, vm.Migration.To); s != nil {
			f.target = &s.value
		}
	}
	return f
}

// settleVM carries out what the reports of hosts mean for a VM.
func (s *Server) settleVM(ctx context.Context, name string) error {
	_, err := s.attempt(ctx, func(st *state, t *transaction) error {
		at, ok := st.vm(name)
		if !ok {
			return errNothing
		}
		vm := at.value
		next := settle(vm, factsOf(st, &vm, s.Now()))
		t.require(store.VMs+name, at.revision)
		switch {
		case next.deleted:
			s.deleteRecord(st, t, &vm)
		case next.moved:
			t.touch(store.Claims+vm.Host, st.keys[store.Claims+vm.Host])
			t.put(store.VMs+name, next.vm)
		case next.changed:
			t.put(store.VMs+name, next.vm)
			if next.vm.Migration == nil {
				s.endMigration(st, t, &vm, &next.vm)
			}
		case isDead(st, vm.Host) && vm.Migration == nil && !vm.Delete:
			t.require(store.Hosts+vm.Host, st.hosts[vm.Host].revision) // dead still
			t.touch(store.Claims+vm.Host, st.keys[store.Claims+vm.Host])
			t.put(remainsKey(vm.Host, name), remaining(vm))
			t.put(store.VMs+name, moveOff(vm))
			t.remove(statusKey(name, vm.Host))
		default:
			return errNothing
		}
		return nil
	})
	return err
}

// endMigration settles the claims of both hosts.
func (s *Server) endMigration(st *state, t *transaction, before, after *fleet.VM) {
	hosts := []string{before.Host, before.Migration.To}
	slices.Sort(hosts)
	for _, host := range hosts {
		t.touch(store.Claims+host, st.keys[store.Claims+host])
		if host == after.Host {
			continue
		}
		gone := hasGone(st, before, host)
		t.remove(statusKey(before.Name, host))
		switch {
		case host == before.Host && !gone:
			// It may have a paused copy, which it removes, as this record names another host. It must know that also
			// when the VM has been deleted, or has gone on to a third host.
			t.put(remainsKey(host, before.Name), *after)
		case host == before.Migration.To && isDead(st, host):
			// It may have a copy that runs, and removes it when it comes back.
			t.require(store.Hosts+host, st.hosts[host].revision)
			copied := *after
			copied.Host, copied.Placement = host, before.Migration.Placement
			t.put(remainsKey(host, before.Name), remaining(copied))
		}
	}
	move := ended(moveOf(st, before), after, s.Now().UTC())
	t.put(store.Moves+move.ID, move)
	s.Log.Info("a migration has ended", "vm", before.Name, "from", before.Host, "to", before.Migration.To, "is_on",
		after.Host)
}

// hasGone reports whether a host has said that it has nothing left of a VM that leaves it.
func hasGone(st *state, vm *fleet.VM, host string) bool {
	status := orZero(st.statusOf(vm.Name, host)).value
	return partOf(&status, vm.Migration.Began).Phase == fleet.MigrationGone
}

// deleteRecord removes all records of a VM that its host has removed.
func (s *Server) deleteRecord(st *state, t *transaction, vm *fleet.VM) {
	t.remove(store.VMs + vm.Name)
	t.remove(store.Reasons + vm.Name)
	for _, at := range st.statuses[vm.Name] {
		t.remove(statusKey(vm.Name, at.host))
	}
	if vm.Host != "" {
		t.touch(store.Claims+vm.Host, st.keys[store.Claims+vm.Host])
		if isDead(st, vm.Host) { // its host removes it when it comes back
			t.put(remainsKey(vm.Host, vm.Name), remaining(*vm))
		}
	}
	t.touch(store.Usage+vm.Project, st.keys[store.Usage+vm.Project])
}

// placePending tries to find a host for a VM again.
func (s *Server) placePending(ctx context.Context, name string) error {
	_, err := s.attemptPlacing(ctx, func(st *state, t *transaction) error {
		at, ok := st.vm(name)
		if !ok || at.value.Host != "" || at.value.Delete {
			return errNothing
		}
		vm := at.value
		why, err := s.decideNew(st, t, &vm)
		if err != nil {
			return err
		}
		if same(vm, at.value) {
			return errNothing
		}
		if vm.Host != "" {
			vm.Generation++
		}
		if group := groupOf(&vm); group != "" {
			t.touch(store.Groups+group, st.keys[store.Groups+group])
		}
		t.require(store.VMs+name, at.revision)
		t.put(store.VMs+name, vm)
		t.put(store.Reasons+name, why)
		return nil
	})
	return err
}

// drainVM migrates a VM away from its host, and returns the revision of that host's record. If the migration is
// refused, the VM's record says why.
func (s *Server) drainVM(ctx context.Context, name string) (host int64, err error) {
	var refused *fleetapi.Problem
	_, err = s.attemptPlacing(ctx, func(st *state, t *transaction) error {
		at := st.vmOf(name)
		vm := at.value
		h := st.hosts[vm.Host]
		if at.revision == 0 || vm.Migration != nil || vm.Delete || !h.value.Draining {
			return errNothing
		}
		host, refused = h.revision, nil
		why, err := s.migrate(t, st, &vm, fleet.Migration{Why: "host " + vm.Host + " is drained",
			Options: h.value.DrainOptions})
		if errors.As(err, &refused) {
			*t = transaction{} // what a migration would have claimed
			return stays(t, at, refused.Detail)
		}
		if err != nil {
			return err
		}
		vm.Generation++
		t.require(store.VMs+name, at.revision)
		t.require(store.Hosts+vm.Host, h.revision)
		t.put(store.VMs+name, vm)
		t.put(store.Reasons+name, why)
		s.audit(t, &rest.Call{Operation: fleetapi.Operation{ID: "drain-host"}}, fleetapi.AboutVM, name,
			fleetapi.HideSecrets(at.value), fleetapi.HideSecrets(vm))
		return nil
	})
	if err == nil && refused != nil {
		err = refused
	}
	return host, err
}

// stays records why a drain has not moved a VM.
func stays(t *transaction, at record[fleet.VM], why string) error {
	if at.value.Stays == why {
		return errNothing
	}
	at.value.Stays = why
	t.require(store.VMs+at.value.Name, at.revision)
	t.put(store.VMs+at.value.Name, at.value)
	return nil
}

// prune deletes the oldest entries of the audit, the oldest migrations, and old results of requests.
func (s *Server) prune(ctx context.Context, seen seenRepeats) {
	var keys []string
	entries, _, err := s.Store.List(ctx, store.Audit)
	if err == nil && len(entries) > mostAudit {
		for _, e := range entries[:len(entries)-mostAudit] {
			keys = append(keys, e.Key)
		}
	}
	moves, _, err := s.Store.List(ctx, store.Moves)
	if err == nil && len(moves) > mostMoves {
		for _, m := range moves[:len(moves)-mostMoves] {
			keys = append(keys, m.Key)
		}
	}
	repeats, _, err := s.Store.List(ctx, store.Repeats)
	if err == nil {
		keys = append(keys, seen.expired(repeats, time.Now(), mostRepeats)...)
	}
	s.cache.read(func(st *state) {
		for hash, j := range st.joins {
			if s.Now().After(j.value.Expires) {
				keys = append(keys, store.Joins+hash)
			}
		}
	})
	for part := range slices.Chunk(keys, store.MaxKeys) {
		t := &transaction{}
		for _, key := range part {
			t.remove(key)
		}
		if _, err := s.commit(ctx, t); err != nil {
			s.Log.Warn("old records were not deleted", "error", err)
			return
		}
	}
}
