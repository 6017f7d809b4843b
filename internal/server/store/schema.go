package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// root is the prefix of all records.
const root = "/numavisor/"

// Migration brings the records of one prefix from a schema to the next one.
type Migration struct {
	Prefix string
	// Change returns the new value of a record; nil: it is deleted.
	Change func(Record) ([]byte, error)
}

// schema is the record at the key Schema.
type schema struct {
	Version int `json:"version"`
	// Done is the last key that the migration from Version has changed.
	Done string `json:"done,omitempty"`
}

// NewerSchemaError means that a newer program has changed the records to a schema that
// this one does not know.
type NewerSchemaError struct{ Found, Known int }

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the records have schema %d, and this program knows schemas up to %d: start the newer version "+
		"again, or restore a backup of the older one", e.Found, e.Known)
}

// migrations lead from schema 1 to the present one: the first to schema 2, and so on.
func migrations() []Migration { return nil }

// Prepare makes sure that the records have the schema of this program: it writes the schema of an
// empty store, and migrates an older one. Servers call it when they start.
//
// Servers that start at the same time may all call it. Each transaction changes some records and
// the note of how far the migration is, so each record is changed once, also if a server is killed
// meanwhile. A server of the version before may still run: a migration must not change
// records in a way that this version cannot read.
func Prepare(ctx context.Context, s Store) error { return Migrate(ctx, s, migrations()) }

// Migrate is Prepare with other migrations than the program's.
func Migrate(ctx context.Context, s Store, all []Migration) error {
	for {
		done, err := migrate(ctx, s, all)
		conflict := &ConflictError{}
		switch {
		case errors.As(err, &conflict): // another server, or a user, was faster
		case err != nil:
			return fmt.Errorf("prepare the records: %w", err)
		case done:
			return nil
		}
	}
}

// migrate makes the next migration, if there is one to make.
func migrate(ctx context.Context, s Store, all []Migration) (done bool, err error) {
	r, err := s.Get(ctx, Schema)
	if errors.Is(err, ErrNotFound) && !errors.Is(err, ErrStale) {
		return false, first(ctx, s, len(all)+1)
	}
	if err != nil {
		return false, err
	}
	var at schema
	if err := json.Unmarshal(r.Value, &at); err != nil || at.Version < 1 {
		return false, fmt.Errorf("record %s is no schema: %q", Schema, r.Value)
	}
	switch known := len(all) + 1; {
	case at.Version > known:
		return false, &NewerSchemaError{at.Version, known}
	case at.Version == known:
		return true, nil
	}
	return false, changeAll(ctx, s, r, at, all[at.Version-1])
}

// first writes the schema of an empty store.
func first(ctx context.Context, s Store, version int) error {
	records, _, err := s.List(ctx, root)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Key == Schema { // another server was faster
			return nil
		}
	}
	if len(records) > 0 {
		return fmt.Errorf("there are records, such as %s, but no schema: they are not Numavisor's, or a backup was "+
			"restored in part", records[0].Key)
	}
	var txn Txn
	err = putSchema(&txn, Record{Key: Schema}, schema{Version: version})
	if err == nil {
		_, err = s.Commit(ctx, txn)
	}
	return err
}

func putSchema(txn *Txn, was Record, now schema) error {
	value, err := json.Marshal(now)
	txn.If = append(txn.If, Condition{Key: Schema, Revision: was.Revision})
	txn.Put = append(txn.Put, Put{Key: Schema, Value: value})
	return err
}

// changeAll makes the transactions of one migration, and the last one with the new version.
func changeAll(ctx context.Context, s Store, note Record, at schema, m Migration) error {
	records, _, err := s.List(ctx, m.Prefix)
	if err != nil {
		return err
	}
	for len(records) > 0 && records[0].Key <= at.Done {
		records = records[1:]
	}
	for {
		txn, n, err := batch(records, m)
		if err != nil {
			return fmt.Errorf("to schema %d: %w", at.Version+1, err)
		}
		if n == 0 {
			at = schema{Version: at.Version + 1}
		} else {
			at.Done = records[n-1].Key
		}
		if err := putSchema(&txn, note, at); err != nil {
			return err
		}
		note.Revision, err = s.Commit(ctx, txn)
		if err != nil || n == 0 {
			return err
		}
		records = records[n:]
	}
}

// batch changes the first records, as many as one transaction can hold, and returns their number.
func batch(records []Record, m Migration) (txn Txn, n int, err error) {
	size := 0
	for n < len(records) && n < MaxKeys-1 {
		r := records[n]
		value, err := m.Change(r)
		if err != nil {
			return Txn{}, 0, fmt.Errorf("record %s: %w", r.Key, err)
		}
		if size += 2*len(r.Key) + len(value); n > 0 && size > MaxSize/2 {
			break
		}
		txn.If = append(txn.If, Condition{Key: r.Key, Revision: r.Revision})
		if value == nil {
			txn.Delete = append(txn.Delete, r.Key)
		} else {
			txn.Put = append(txn.Put, Put{Key: r.Key, Value: value})
		}
		n++
	}
	return txn, n, nil
}
