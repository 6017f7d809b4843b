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
	reports  map[string]*reportRecord
	vms      map[string]*vmRecord
	statuses map[string][]statusRecord // by VM: of its host, and of those that it was on or migrates to
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
		hosts: map[string]record[fleet.Host]{}, reports: map[string]*reportRecord{},
		vms: map[string]*vmRecord{}, statuses: map[string][]statusRecord{},
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
	if e.Revision <= s.revisionOf(e.Key) {
		s.noteEcho(e.Key, c)
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

// noteEcho notes a change that the state has since this server made it. Its revision is new: hosts compare those of
// their desired states.
func (s *state) noteEcho(key string, c *change) {
	if name, is := strings.CutPrefix(key, store.VMs); is {
		for _, host := range s.vms[name].hosts() {
			c.desired[host] = true
		}
	}
	if rest, is := strings.CutPrefix(key, store.Remains); is {
		host, _, _ := strings.Cut(rest, "/")
		c.desired[host] = true
	}
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
	next, err := updated(record[fleet.Report]{revision: orZero(before).revision}, e)
	switch {
	case err != nil:
		return err
	case next.revision == 0:
		delete(s.reports, host)
	default:
		s.reports[host] = s.parts.ofReport(next.value, next.revision)
	}
	return nil
}

// vm returns the record of a VM.
func (s *state) vm(name string) (record[fleet.VM], bool) {
	if at := s.vms[name]; at != nil {
		return record[fleet.VM]{at.value(), at.revision}, true
	}
	return record[fleet.VM]{}, false
}

// vmOf is vm without saying whether there is one: its revision is 0 then.
func (s *state) vmOf(name string) record[fleet.VM] {
	at, _ := s.vm(name)
	return at
}

// statusAt returns the record of what a host reports of a VM; nil: nothing.
func (s *state) statusAt(vm, host string) *statusRecord {
	all := s.statuses[vm]
	for i := range all {
		if all[i].host == host {
			return &all[i]
		}
	}
	return nil
}

// statusOf returns what a host reports of a VM; nil: nothing.
func (s *state) statusOf(vm, host string) *record[fleet.VMStatus] {
	if at := s.statusAt(vm, host); at != nil {
		return &record[fleet.VMStatus]{at.value(), at.revision}
	}
	return nil
}

func (s *state) setStatus(vm, host string, e *store.Event) error {
	before := orZero(s.statusAt(vm, host)).revision
	next, err := updated(record[fleet.VMStatus]{revision: before}, e)
	if err != nil || next.revision == before {
		return err
	}
	all := make([]statusRecord, 0, len(s.statuses[vm])+1) // readers may have the old list
	for _, at := range s.statuses[vm] {
		if at.host != host {
			all = append(all, at)
		}
	}
	if next.revision != 0 {
		next.value.Host = host // as in the key
		if at := s.vms[vm]; at != nil {
			vm = at.name // its memory is the record's
		}
		next.value.Name = vm
		all = append(all, s.parts.ofStatus(next.value, next.revision))
	}
	if s.statuses[vm] = slices.Clip(all); len(all) == 0 {
		delete(s.statuses, vm)
	}
	return nil
}

func (s *state) applyVM(name string, e *store.Event, c *change) error {
	before := s.vms[name]
	after, err := s.nextVM(name, before, e)
	if err != nil {
		return err
	}
	delete(s.vms, name)
	if after != nil {
		name = after.name // its memory is the record's
		s.vms[name] = after
	}
	c.vms[name] = true
	for _, h := range before.hosts() {
		delete(s.on[h], name)
		c.hosts[h], c.desired[h] = true, true
	}
	for _, h := range after.hosts() {
		if s.on[h] == nil {
			s.on[h] = map[string]bool{}
		}
		s.on[h][name] = true
		c.hosts[h], c.desired[h] = true, true
	}
	s.use(before, -1)
	s.use(after, 1)
	mark(s.pending, name, after != nil && after.host == "" && !after.rest.Delete)
	mark(s.migrating, name, after != nil && after.migration != nil)
	if (before != nil) != (after != nil) {
		s.rename(name, after != nil)
	}
	return nil
}

// nextVM returns the record of a VM after an event; nil: there is none.
func (s *state) nextVM(name string, before *vmRecord, e *store.Event) (*vmRecord, error) {
	next, err := updated(record[fleet.VM]{revision: orZero(before).revision}, e)
	if err != nil || next.revision == 0 {
		return nil, err
	}
	if next.value.Name != name {
		next.value.Name = strings.Clone(name) // as in the key
	}
	return s.parts.ofVM(next.value, next.revision), nil
}

// use adds a VM to what its project uses, or removes it.
func (s *state) use(r *vmRecord, sign int) {
	if r == nil {
		return
	}
	share := shareOf(r.rest) // the spec is all that it reads
	s.used[r.rest.Project] = plus(s.used[r.rest.Project], share, sign)
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

// take applies the events of one transaction: those of the watch in order, and those of this server's own transactions
// once the store has answered. An answer may come long after the watch has brought the events and later ones: a record
// that another server has deleted since would then return, and stay.
func (c *cache) take(revision int64, events []store.Event, watched bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !watched && revision <= c.state.revision {
		return
	}
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
	if strings.HasPrefix(key, store.Repeats) {
		return // they are not in the state
	}
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
		return orZero(s.vms[name]).revision
	}
	if name, ok := of(store.Reports); ok {
		return orZero(s.reports[name]).revision
	}
	if name, ok := of(store.Servers); ok {
		return s.servers[name].revision
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
		return orZero(s.statusAt(vm, host)).revision
	}
	if rest, ok := of(store.Remains); ok {
		host, vm, _ := strings.Cut(rest, "/")
		return s.remains[onHost{vm, host}].revision
	}
	return s.keys[key]
}

// follow fills the state from a store and follows its changes until ctx ends.
func (c *cache) follow(ctx context.Context, from store.Store, ready func()) {
	for ctx.Err() == nil {
		revision, err := c.load(ctx, from)
		if err == nil {
			ready()
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

// loaded are the records of a state. Reports refer to the records of VMs.
var loaded = []string{store.VMs, store.Statuses, store.Hosts, store.Alive, store.Claims, store.Reports, store.Remains,
	store.Projects, store.Users, store.Joins, store.Servers, store.Usage, store.Groups, store.Balancing}

// load replaces the state by what the store has.
func (c *cache) load(ctx context.Context, from store.Store) (int64, error) {
	fresh, what := newState(), newChange(0)
	revision, err := from.Scan(ctx, loaded, func(records []store.Record) error {
		for i := range records {
			if err := fresh.apply(&store.Event{Record: records[i]}, &what); err != nil {
				c.log.Error("a record was ignored", "error", err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	fresh.revision, what.revision, what.tokens = revision, revision, true
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
