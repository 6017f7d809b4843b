package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
)

// record is a value with the revision that it was read at.
type record[T any] struct {
	value    T
	revision int64
}

// project is a project as it is stored.
type project struct {
	Quota fleetapi.Quota `json:"quota,omitzero"`
}

// user is a user as it is stored.
type user struct {
	Role     fleetapi.Role `json:"role"`
	Projects []string      `json:"projects,omitempty"`
	Tokens   []storedToken `json:"tokens,omitempty"`
}

// storedToken is a token of a user, without its secret.
type storedToken struct {
	fleetapi.Token
	Hash string `json:"hash"`
}

// onHost names a VM's record that belongs to a host.
type onHost struct{ vm, host string }

// state is all records that a server decides on, as of one revision of the store. Its
// maps are complete: an absent key has no record.
type state struct {
	revision int64
	hosts    map[string]record[fleet.Host]
	reports  map[string]record[fleet.Report]      // nothing in them is changed in place
	vms      map[string]*record[fleet.VM]         // never changed in place: the scheduler shares them
	statuses map[string][]*record[fleet.VMStatus] // by VM: of its host, and of those that it was on or migrates to
	remains  map[onHost]record[fleet.VM]
	projects map[string]record[project]
	users    map[string]record[user]
	joins    map[string]record[join]
	servers  map[string]record[peer]
	used     map[string]fleetapi.Quota // by project
	// keys has the revisions of claims, usage, groups, alive and balancing.
	keys map[string]int64
	// on has the VMs that each host has to know of.
	on map[string]map[string]bool
	// pending are the VMs that wait for a host, migrating those with a migration, draining the hosts that are drained.
	pending, migrating, draining map[string]bool
	parts                        parts // of all records
	// deleted has the revisions of recent deletions, so that an older change that the
	// watch brings later is ignored.
	deleted map[string]int64
	// names are sorted names by prefix; absent: to be made, under namesMu. Those of VMs change in place.
	namesMu sync.Mutex
	names   map[string][]string
}

func newState() *state {
	return &state{
		hosts: map[string]record[fleet.Host]{}, reports: map[string]record[fleet.Report]{},
		vms: map[string]*record[fleet.VM]{}, statuses: map[string][]*record[fleet.VMStatus]{},
		remains:  map[onHost]record[fleet.VM]{},
		projects: map[string]record[project]{}, users: map[string]record[user]{},
		joins: map[string]record[join]{}, servers: map[string]record[peer]{},
		used: map[string]fleetapi.Quota{}, keys: map[string]int64{},
		on:      map[string]map[string]bool{},
		pending: map[string]bool{}, migrating: map[string]bool{}, draining: map[string]bool{},
		deleted: map[string]int64{}, names: map[string][]string{},
	}
}

// change is what a change of the store concerns.
type change struct {
	revision int64
	hosts    map[string]bool // whose summary or inventory may differ
	desired  map[string]bool // whose desired state may differ
	vms      map[string]bool
	tokens   bool
}

func newChange(revision int64) change {
	return change{revision: revision, hosts: map[string]bool{}, desired: map[string]bool{}, vms: map[string]bool{}}
}

// apply brings the state up to date with an event. It ignores events that it has seen.
func (s *state) apply(e *store.Event, c *change) error {
	if e.Revision <= s.deleted[e.Key] {
		return nil
	}
	if e.Deleted {
		s.deleted[e.Key] = e.Revision
	}
	name := e.Key[strings.LastIndexByte(e.Key, '/')+1:]
	under := func(prefix string) bool { return strings.HasPrefix(e.Key, prefix) }
	switch {
	case under(store.Hosts):
		delete(s.names, store.Hosts)
		c.hosts[name], c.desired[name] = true, true // a stream of a host that was removed ends
		err := set(s.hosts, name, e)
		mark(s.draining, name, s.hosts[name].value.Draining)
		return err
	case under(store.Reports):
		c.hosts[name] = true
		return s.setReport(name, e)
	case under(store.VMs):
		return s.applyVM(name, e, c)
	case under(store.Statuses), under(store.Remains):
		return s.applyOnHost(e, c)
	case under(store.Projects):
		delete(s.names, store.Projects)
		return set(s.projects, name, e)
	case under(store.Users):
		delete(s.names, store.Users)
		c.tokens = true
		return set(s.users, name, e)
	case under(store.Joins):
		return set(s.joins, name, e)
	case under(store.Servers):
		return set(s.servers, name, e)
	case under(store.Alive):
		c.hosts[name] = true
		s.setKey(e)
	case under(store.Claims), under(store.Usage), under(store.Groups), under(store.Balancing):
		s.setKey(e)
	}
	return nil
}

func (s *state) setKey(e *store.Event) {
	switch {
	case e.Revision < s.keys[e.Key]:
	case e.Deleted:
		delete(s.keys, e.Key)
	default:
		s.keys[e.Key] = e.Revision
	}
}

func set[K comparable, T any](m map[K]record[T], key K, e *store.Event) error {
	next, err := updated(m[key], e)
	switch {
	case err != nil:
		return err
	case next.revision == 0:
		delete(m, key)
	default:
		m[key] = next
	}
	return nil
}

// updated returns a record after an event; its revision is 0 if there is none.
func updated[T any](r record[T], e *store.Event) (record[T], error) {
	if e.Revision <= r.revision {
		return r, nil
	}
	if e.Deleted {
		return record[T]{}, nil
	}
	next := record[T]{revision: e.Revision}
	if err := json.Unmarshal(e.Value, &next.value); err != nil {
		return r, fmt.Errorf("record %s cannot be read: %w", e.Key, err)
	}
	return next, nil
}

func (s *state) setReport(host string, e *store.Event) error {
	before := s.reports[host]
	if err := set(s.reports, host, e); err != nil {
		return err
	}
	if at := s.reports[host]; at.revision > before.revision {
		s.parts.ofReport(&at.value, s.vms)
		s.reports[host] = at
	}
	return nil
}

// vm returns the record of a VM.
func (s *state) vm(name string) (record[fleet.VM], bool) {
	if at := s.vms[name]; at != nil {
		return *at, true
	}
	return record[fleet.VM]{}, false
}

// vmOf is vm without saying whether there is one: its revision is 0 then.
func (s *state) vmOf(name string) record[fleet.VM] {
	at, _ := s.vm(name)
	return at
}

// statusOf returns what a host reports of a VM; nil: nothing. It is never changed in place.
func (s *state) statusOf(vm, host string) *record[fleet.VMStatus] {
	for _, at := range s.statuses[vm] {
		if at.value.Host == host {
			return at
		}
	}
	return nil
}

func (s *state) setStatus(vm, host string, e *store.Event) error {
	before := s.statusOf(vm, host)
	next, err := updated(*orZero(before), e)
	if err != nil {
		return err
	}
	next.value.Host = host // as in the key
	if next.revision > orZero(before).revision {
		s.parts.ofStatus(&next.value)
	}
	all := s.statuses[vm]
	of := func(at *record[fleet.VMStatus]) bool { return at == before }
	switch {
	case next.revision != 0 && before != nil:
		all[slices.IndexFunc(all, of)] = &next
	case next.revision != 0:
		s.statuses[vm] = append(slices.Clip(all), &next)
	case before != nil && len(all) == 1:
		delete(s.statuses, vm)
	case before != nil:
		s.statuses[vm] = slices.DeleteFunc(all, of)
	}
	return nil
}

func (s *state) applyVM(name string, e *store.Event, c *change) error {
	before, known := s.vm(name)
	c.vms[name] = true
	hostsOf := func(vm *fleet.VM) (out []string) {
		if vm.Host != "" {
			out = append(out, vm.Host)
		}
		if vm.Migration != nil {
			out = append(out, vm.Migration.To)
		}
		return out
	}
	after, err := updated(before, e)
	if err != nil {
		return err
	}
	has := after.revision != 0
	if has && after.revision != before.revision {
		s.parts.ofVM(&after.value)
		s.vms[name] = &after
	} else if !has {
		delete(s.vms, name)
	}
	for _, h := range hostsOf(&before.value) {
		delete(s.on[h], name)
		c.hosts[h], c.desired[h] = true, true
	}
	if known {
		s.used[before.value.Project] = plus(s.used[before.value.Project], shareOf(&before.value), -1)
	}
	if has {
		s.used[after.value.Project] = plus(s.used[after.value.Project], shareOf(&after.value), 1)
	}
	for _, h := range hostsOf(&after.value) {
		if s.on[h] == nil {
			s.on[h] = map[string]bool{}
		}
		s.on[h][name] = true
		c.hosts[h], c.desired[h] = true, true
	}
	mark(s.pending, name, has && after.value.Host == "" && !after.value.Delete)
	mark(s.migrating, name, has && after.value.Migration != nil)
	if known != has {
		s.rename(name, has)
	}
	return nil
}

// mark puts a name into a set, or removes it.
func mark(set map[string]bool, name string, is bool) {
	if is {
		set[name] = true
	} else {
		delete(set, name)
	}
}

// rename adds a VM's name to the sorted ones, or removes it. There are too many to sort them after each change.
func (s *state) rename(vm string, has bool) {
	names, made := s.names[store.VMs]
	if !made {
		return
	}
	i, found := slices.BinarySearch(names, vm)
	switch {
	case has && !found:
		s.names[store.VMs] = slices.Insert(names, i, vm)
	case !has && found:
		s.names[store.VMs] = slices.Delete(names, i, i+1)
	}
}

func (s *state) applyOnHost(e *store.Event, c *change) error {
	rest, isStatus := strings.CutPrefix(e.Key, store.Statuses)
	first, second, _ := strings.Cut(rest, "/")
	if isStatus { // by VM and host
		c.vms[first] = true
		return s.setStatus(first, second, e)
	}
	first, second, _ = strings.Cut(strings.TrimPrefix(e.Key, store.Remains), "/") // by host and VM
	c.hosts[first], c.desired[first] = true, true
	return set(s.remains, onHost{second, first}, e)
}

func statusKey(vm, host string) string  { return store.Statuses + vm + "/" + host }
func remainsKey(host, vm string) string { return store.Remains + host + "/" + vm }

// sorted returns the names of a kind of records. Those of VMs are only valid while the state is locked.
func (s *state) sorted(prefix string) []string {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	names, made := s.names[prefix]
	if made {
		return names
	}
	switch prefix {
	case store.Hosts:
		names = slices.Sorted(maps.Keys(s.hosts))
	case store.VMs:
		names = slices.Sorted(maps.Keys(s.vms))
	case store.Projects:
		names = slices.Sorted(maps.Keys(s.projects))
	case store.Users:
		names = slices.Sorted(maps.Keys(s.users))
	}
	s.names[prefix] = names
	return names
}

// cache has the state of the store, and wakes those who wait for changes.
type cache struct {
	mu      sync.RWMutex
	state   *state
	ready   bool
	changed chan struct{} // closed by the next change
	// listeners are called with each change, under mu.
	listeners []func(*state, change)
	log       *slog.Logger
}

func newCache(log *slog.Logger) *cache {
	return &cache{state: newState(), changed: make(chan struct{}), log: log}
}

// read calls a function with the state, which it must not change. It must not keep references to maps. Readers do not
// wait for each other: with many hosts they would stand in line more than they read.
func (c *cache) read(f func(*state)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f(c.state)
}

// take applies the events of one transaction.
func (c *cache) take(revision int64, events []store.Event, watched bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what := newChange(revision)
	for i := range events {
		if err := c.state.apply(&events[i], &what); err != nil {
			c.log.Error("a record was ignored", "error", err)
		}
	}
	if watched { // all changes up to it are known
		c.state.revision = max(c.state.revision, revision)
		maps.DeleteFunc(c.state.deleted, func(_ string, at int64) bool { return at <= revision })
	}
	c.announce(what)
}

func (c *cache) announce(what change) {
	for _, listen := range c.listeners {
		listen(c.state, what)
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait returns once the state has changed after a revision, or after a time.
func (c *cache) wait(ctx context.Context, after int64, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		c.mu.RLock()
		now, changed := c.state.revision, c.changed
		c.mu.RUnlock()
		if now > after {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// waitFor returns once the state has the change of a key that a transaction conflicted with, or
// after a time.
func (c *cache) waitFor(ctx context.Context, key string, t *transaction, most time.Duration) {
	assumed := int64(0)
	for _, condition := range t.If {
		if condition.Key == key {
			assumed = condition.Revision
		}
	}
	end := time.Now().Add(most)
	for time.Now().Before(end) && ctx.Err() == nil {
		var now, at int64
		c.read(func(st *state) { now, at = st.revisionOf(key), st.revision })
		if now != assumed {
			return
		}
		c.wait(ctx, at, min(50*time.Millisecond, time.Until(end)))
	}
}

// revisionOf returns the revision of a key; 0: it does not exist, or only the store knows it.
func (s *state) revisionOf(key string) int64 {
	of := func(prefix string) (string, bool) { return strings.CutPrefix(key, prefix) }
	if name, ok := of(store.VMs); ok {
		return s.vmOf(name).revision
	}
	if name, ok := of(store.Hosts); ok {
		return s.hosts[name].revision
	}
	if name, ok := of(store.Projects); ok {
		return s.projects[name].revision
	}
	if name, ok := of(store.Users); ok {
		return s.users[name].revision
	}
	if name, ok := of(store.Joins); ok {
		return s.joins[name].revision
	}
	if rest, ok := of(store.Statuses); ok {
		vm, host, _ := strings.Cut(rest, "/")
		return orZero(s.statusOf(vm, host)).revision
	}
	if rest, ok := of(store.Remains); ok {
		host, vm, _ := strings.Cut(rest, "/")
		return s.remains[onHost{vm, host}].revision
	}
	return s.keys[key]
}

// follow fills the state from a store and follows its changes until ctx ends.
func (c *cache) follow(ctx context.Context, from store.Store, loaded func()) {
	for ctx.Err() == nil {
		revision, err := c.load(ctx, from)
		if err == nil {
			loaded()
			for changes := range from.Watch(ctx, store.All, revision) {
				if err = changes.Err; err == nil {
					c.take(changes.Revision, changes.Events, true)
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("the store is read again", "reason", err)
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// retryEvery is the pause before the store is read again.
const retryEvery = 500 * time.Millisecond

// load replaces the state by what the store has.
func (c *cache) load(ctx context.Context, from store.Store) (int64, error) {
	records, revision, err := from.List(ctx, store.All)
	if err != nil {
		return 0, err
	}
	fresh, what := newState(), newChange(revision)
	fresh.revision, what.tokens = revision, true
	for _, vms := range []bool{true, false} { // reports refer to the records of VMs
		for _, r := range records {
			if strings.HasPrefix(r.Key, store.VMs) != vms {
				continue
			}
			if err := fresh.apply(&store.Event{Record: r}, &what); err != nil {
				c.log.Error("a record was ignored", "error", err)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.state.hosts { // some may have gone meanwhile
		what.hosts[name], what.desired[name] = true, true
	}
	for name := range c.state.vms {
		what.vms[name] = true
	}
	c.state, c.ready = fresh, true
	c.announce(what)
	return revision, nil
}
