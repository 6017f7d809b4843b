// Package memory is a fleet's state in memory: the store of tests and simulations. It gives
// the guarantees of the one in etcd, except that it forgets all when the program ends.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
)

// history is the number of transactions whose changes a watch can still ask for.
const history = 100_000

// Store is a store in memory. New makes one.
type Store struct {
	after func(time.Duration, func()) (stop func() bool)

	mu        sync.Mutex
	revision  int64
	records   map[string]entry
	log       []store.Changes // ascending by revision
	compacted int64           // the last revision whose changes are not in log
	changed   chan struct{}   // closed by the next transaction
	leases    map[store.LeaseID]*lease
	lastLease store.LeaseID
	alone     bool
}

type entry struct {
	store.Record
	lease store.LeaseID
}

type lease struct {
	ttl  time.Duration
	stop func() bool
	keys map[string]bool
	term int // of renewals: an expiry of an earlier term does nothing
}

// Options are the choices of a store in memory. The zero value is good.
type Options struct {
	// After calls a function after a time, like time.AfterFunc, which is the default. Leases
	// end by it. Tests in a bubble of testing/synctest need none.
	After func(time.Duration, func()) (stop func() bool)
}

// New makes an empty store.
func New(o Options) *Store {
	if o.After == nil {
		o.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	return &Store{
		after: o.After, revision: 1, records: map[string]entry{}, changed: make(chan struct{}),
		leases: map[store.LeaseID]*lease{},
	}
}

// LoseQuorum makes the store behave like a server of etcd that does not reach the others:
// writes fail with ErrUnavailable, and reads return what they find with ErrStale.
func (s *Store) LoseQuorum(lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = lost
}

// Get returns the record of a key.
func (s *Store) Get(ctx context.Context, key string) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.records[key]
	err := s.stale()
	switch {
	case ok:
		return e.Record, err
	case err != nil:
		return store.Record{}, fmt.Errorf("%s: %w: %w", key, store.ErrNotFound, err)
	}
	return store.Record{}, fmt.Errorf("%s: %w", key, store.ErrNotFound)
}

// Look is Get without the assurance of a quorum.
func (s *Store) Look(ctx context.Context, key string) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.records[key]; ok {
		return e.Record, nil
	}
	return store.Record{}, fmt.Errorf("%s: %w", key, store.ErrNotFound)
}

// List returns the records of a prefix.
func (s *Store) List(ctx context.Context, prefix string) ([]store.Record, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.under(prefix), s.revision, s.stale()
}

// under returns the records of a prefix. The caller holds mu.
func (s *Store) under(prefix string) (found []store.Record) {
	for key, e := range s.records {
		if strings.HasPrefix(key, prefix) {
			found = append(found, e.Record)
		}
	}
	slices.SortFunc(found, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
	return found
}

// Scan calls take with the records of some prefixes.
func (s *Store) Scan(ctx context.Context, prefixes []string, take func([]store.Record) error) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	var parts [][]store.Record
	for _, prefix := range prefixes {
		parts = append(parts, slices.Collect(slices.Chunk(s.under(prefix), scanned))...)
	}
	revision, stale := s.revision, s.stale()
	s.mu.Unlock()
	for _, part := range parts {
		if err := take(part); err != nil {
			return 0, err
		}
	}
	return revision, stale
}

// scanned is how many records Scan passes on at a time.
const scanned = 100

func (s *Store) stale() error {
	if s.alone {
		return store.ErrStale
	}
	return nil
}

// Commit makes a transaction.
func (s *Store) Commit(ctx context.Context, t store.Txn) (int64, error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alone {
		return 0, store.ErrUnavailable
	}
	for _, c := range t.If {
		if s.records[c.Key].Revision != c.Revision {
			return 0, &store.ConflictError{Key: c.Key}
		}
	}
	for _, p := range t.Put {
		if p.Lease != 0 && s.leases[p.Lease] == nil {
			return 0, noLease(p.Lease)
		}
	}
	s.apply(t)
	return s.revision, nil
}

func noLease(id store.LeaseID) error {
	return fmt.Errorf("lease %x has ended: %w", int64(id), store.ErrNotFound)
}

// apply makes the changes of a transaction, and tells the watches.
func (s *Store) apply(t store.Txn) {
	changes := store.Changes{Revision: s.revision + 1}
	for _, p := range t.Put {
		r := store.Record{Key: p.Key, Value: bytes.Clone(p.Value), Revision: changes.Revision}
		s.detach(p.Key)
		s.records[p.Key] = entry{r, p.Lease}
		if p.Lease != 0 {
			s.leases[p.Lease].keys[p.Key] = true
		}
		changes.Events = append(changes.Events, store.Event{Record: r})
	}
	for _, key := range t.Delete {
		if _, ok := s.records[key]; !ok {
			continue
		}
		s.detach(key)
		delete(s.records, key)
		changes.Events = append(changes.Events,
			store.Event{Record: store.Record{Key: key, Revision: changes.Revision}, Deleted: true})
	}
	if len(changes.Events) == 0 {
		return
	}
	s.revision = changes.Revision
	s.log = append(s.log, changes)
	if len(s.log) > 2*history {
		s.compact(s.log[len(s.log)-history-1].Revision)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// detach takes a key from the lease that it had.
func (s *Store) detach(key string) {
	if l := s.leases[s.records[key].lease]; l != nil {
		delete(l.keys, key)
	}
}

// Compact forgets the changes of a revision and of those before it.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compact(revision)
	return nil
}

func (s *Store) compact(revision int64) {
	s.log = slices.Clone(s.log[s.position(revision):])
	s.compacted = max(s.compacted, min(revision, s.revision))
}

// position is that of the first changes after a revision.
func (s *Store) position(revision int64) int {
	return sort.Search(len(s.log), func(i int) bool { return s.log[i].Revision > revision })
}

// Watch sends the changes of a prefix after a revision.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) <-chan store.Changes {
	out := make(chan store.Changes)
	go func() {
		defer close(out)
		for {
			batch, more, err := s.next(after)
			if err != nil {
				send(ctx, out, store.Changes{Err: err})
				return
			}
			for _, c := range batch {
				after = c.Revision
				if c = only(c, prefix); len(c.Events) > 0 && !send(ctx, out, c) {
					return
				}
			}
			if len(batch) > 0 {
				continue
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// next returns the changes after a revision and, to wait for if there are none, the channel
// that the next transaction closes.
func (s *Store) next(after int64) ([]store.Changes, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < s.compacted {
		return nil, nil, store.ErrCompacted
	}
	batch := s.log[s.position(after):]
	return batch[:min(len(batch), 1000)], s.changed, nil
}

func send(ctx context.Context, out chan<- store.Changes, c store.Changes) bool {
	select {
	case out <- c:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// only returns the changes of keys of a prefix.
func only(c store.Changes, prefix string) store.Changes {
	c.Events = slices.DeleteFunc(slices.Clone(c.Events), func(e store.Event) bool {
		return !strings.HasPrefix(e.Key, prefix)
	})
	return c
}

// Lease makes a lease.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alone {
		return 0, store.ErrUnavailable
	}
	s.lastLease++
	l := &lease{ttl: ttl, keys: map[string]bool{}}
	s.leases[s.lastLease] = l
	s.schedule(s.lastLease, l)
	return s.lastLease, nil
}

// schedule lets a lease end after its time.
func (s *Store) schedule(id store.LeaseID, l *lease) {
	l.term++
	term := l.term
	l.stop = s.after(l.ttl, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.leases[id] != l || l.term != term:
		case s.alone: // nobody can delete its keys now
			s.schedule(id, l)
		default:
			s.end(id, l)
		}
	})
}

// end ends a lease and deletes its keys.
func (s *Store) end(id store.LeaseID, l *lease) {
	l.stop()
	delete(s.leases, id)
	s.apply(store.Txn{Delete: slices.Sorted(maps.Keys(l.keys))})
}

// Renew renews a lease.
func (s *Store) Renew(ctx context.Context, id store.LeaseID) error {
	return s.withLease(ctx, id, func(l *lease) {
		l.stop()
		s.schedule(id, l)
	})
}

// Revoke ends a lease.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	return s.withLease(ctx, id, func(l *lease) { s.end(id, l) })
}

func (s *Store) withLease(ctx context.Context, id store.LeaseID, do func(*lease)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	switch {
	case s.alone:
		return store.ErrUnavailable
	case l == nil:
		return noLease(id)
	}
	do(l)
	return nil
}
