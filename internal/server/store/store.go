// Package store keeps the records of a fleet. Etcd implements it for servers (package
// etcd), a map for tests (package memory); package storetest is the suite that both pass.
//
// Each write is a transaction on the revisions that it was computed from: a decision that
// was made from state that has changed since is refused as a whole (ConflictError), and its
// author decides again.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Record is a stored value.
type Record struct {
	Key   string
	Value []byte
	// Revision is that of the transaction that wrote the value. Revisions of a store
	// ascend with each transaction.
	Revision int64
}

// Txn is a transaction: if all conditions hold, all changes are made.
type Txn struct {
	If     []Condition
	Put    []Put
	Delete []string
}

// Validate checks that a transaction writes each of its keys once, and is within the bounds.
func (t Txn) Validate() error {
	size, seen := 0, map[string]bool{}
	write := func(key string, value []byte) error {
		size += len(key) + len(value)
		switch {
		case key == "":
			return errors.New("a transaction writes a record without a key")
		case seen[key]:
			return fmt.Errorf("a transaction writes %s twice", key)
		}
		seen[key] = true
		return nil
	}
	for _, p := range t.Put {
		if err := write(p.Key, p.Value); err != nil {
			return err
		}
	}
	for _, key := range t.Delete {
		if err := write(key, nil); err != nil {
			return err
		}
	}
	for _, c := range t.If {
		size += len(c.Key)
	}
	if size > MaxSize {
		return fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, size, MaxSize)
	}
	if keys := max(len(seen), len(t.If)); keys > MaxKeys {
		return fmt.Errorf("%w: %d keys of at most %d", ErrTooLarge, keys, MaxKeys)
	}
	return nil
}

// Condition requires that a key has not been written since a revision.
type Condition struct {
	Key      string
	Revision int64 // of its record; 0: the key must not exist
}

// Put writes a value.
type Put struct {
	Key   string
	Value []byte
	Lease LeaseID // the key is deleted when the lease ends; 0: none
}

// LeaseID identifies a lease.
type LeaseID int64

// Event is a change of a key.
type Event struct {
	Record  // of a deletion: the key and the revision
	Deleted bool
}

// Errors of a store.
var (
	// ErrNotFound means that the key has no value.
	ErrNotFound = errors.New("not found")
	// ErrCompacted means that the store does not have the events after the revision any
	// more: list again, and watch from there.
	ErrCompacted = errors.New("the history after this revision was compacted")
	// ErrUnavailable means that the store cannot write now, for example without a quorum.
	// It is not known whether a transaction that failed so was made.
	ErrUnavailable = errors.New("the store is not available")
	// ErrStale comes with records: Get and List return them as the server that was asked knows
	// them, since it cannot confirm now that they are current. A caller that only shows
	// records can show these and say so. For all others it is an ErrUnavailable.
	ErrStale = fmt.Errorf("%w: the records may be old", ErrUnavailable)
	// ErrTooLarge means that a transaction exceeds MaxSize or MaxKeys.
	ErrTooLarge = errors.New("the transaction is too large")
)

// Bounds of a transaction. Clusters of etcd accept them with their default configuration.
const (
	MaxSize = 1 << 20 // bytes of keys and values
	MaxKeys = 128     // of each: conditions; puts and deletions
)

// ConflictError means that a condition of a transaction did not hold; nothing was changed.
type ConflictError struct {
	Key string // one of those that changed
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s was changed meanwhile: read it again and decide again", e.Key)
}

// Store is the state of a fleet. It is safe for concurrent use. Calls end with their context.
// Receivers of a record do not change the bytes of its value.
type Store interface {
	// Get returns the record of a key, or ErrNotFound.
	Get(ctx context.Context, key string) (Record, error)
	// Look is Get as the member that is asked knows the record, which may be old: it waits for no write and no quorum.
	Look(ctx context.Context, key string) (Record, error)
	// List returns the records of a prefix, ascending by key, all as of one revision.
	List(ctx context.Context, prefix string) (records []Record, revision int64, err error)
	// Scan calls take with the records of some prefixes, some at a time: prefix after prefix, ascending by key, all as
	// of one revision, which it returns. It does not have all of them in memory at the same time. The error is that of
	// take, or is ErrCompacted if it took longer than the history is retained.
	Scan(ctx context.Context, prefixes []string, take func([]Record) error) (revision int64, err error)
	// Commit makes a transaction and returns its revision; one without changes returns the
	// store's. The error is a *ConflictError if a condition does not hold, and wraps
	// ErrNotFound if a lease has ended. To delete a key that does not exist is no change.
	Commit(ctx context.Context, t Txn) (revision int64, err error)
	// Watch sends the changes of a prefix after a revision, in order, until ctx ends or the
	// watch fails; then it closes the channel. The last message has the reason if it failed.
	Watch(ctx context.Context, prefix string, after int64) <-chan Changes
	// Lease makes a lease that ends when it was not renewed for the time, which is at least 2
	// seconds; it may end a second or two later.
	Lease(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// Renew renews a lease; ErrNotFound if it has ended.
	Renew(ctx context.Context, id LeaseID) error
	// Revoke ends a lease and deletes its keys; ErrNotFound if it has ended.
	Revoke(ctx context.Context, id LeaseID) error
}

// Changes are the changes of one transaction, or the error that ended a watch.
type Changes struct {
	Revision int64
	Events   []Event
	Err      error
}
