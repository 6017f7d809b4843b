package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Table gives the records of a prefix as values of a type, stored as JSON.
//
// Fields of a record that this program does not know, because a newer version wrote it,
// survive a change by this program: servers of two versions work on one store during an
// upgrade, and refusing such records would stop the older one. The fields of an element of an array
// survive if the element's known fields do not change.
type Table[T any] struct{ prefix string }

// TableOf returns the table of a prefix, such as Hosts.
func TableOf[T any](prefix string) Table[T] { return Table[T]{prefix} }

// Item is a record as a value. An Item that was not read has no Revision: it is new.
type Item[T any] struct {
	Name     string // the key without the table's prefix
	Value    T
	Revision int64
	// unknown is the record as stored, if it has fields that T does not have.
	unknown json.RawMessage
}

// Prefix is that of the table's keys.
func (t Table[T]) Prefix() string { return t.prefix }

// Key is the key of a name.
func (t Table[T]) Key(name string) string { return t.prefix + name }

// Get returns the item of a name, or an error that wraps ErrNotFound. Like Store.Get, it may
// return an item together with ErrStale.
func (t Table[T]) Get(ctx context.Context, s Store, name string) (Item[T], error) {
	if err := checkName(name); err != nil {
		return Item[T]{}, err
	}
	r, err := s.Get(ctx, t.Key(name))
	if err != nil && (!errors.Is(err, ErrStale) || errors.Is(err, ErrNotFound)) {
		return Item[T]{}, err
	}
	item, invalid := t.Decode(r)
	return item, errors.Join(err, invalid)
}

// List returns all items, ascending by name, and the store's revision. Like Store.List, it may
// return them together with ErrStale.
func (t Table[T]) List(ctx context.Context, s Store) ([]Item[T], int64, error) {
	records, revision, err := s.List(ctx, t.prefix)
	if err != nil && !errors.Is(err, ErrStale) {
		return nil, 0, err
	}
	items := make([]Item[T], 0, len(records))
	for _, r := range records {
		item, invalid := t.Decode(r)
		if invalid != nil {
			return nil, 0, invalid
		}
		items = append(items, item)
	}
	return items, revision, err
}

// Decode returns the item of one of the table's records, as in the events of a watch. Of a
// deletion, it has the name and the revision.
func (t Table[T]) Decode(r Record) (Item[T], error) {
	item := Item[T]{Name: strings.TrimPrefix(r.Key, t.prefix), Revision: r.Revision}
	if len(r.Value) == 0 {
		return item, nil
	}
	strict := json.NewDecoder(bytes.NewReader(r.Value))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&item.Value); err == nil {
		if _, err := strict.Token(); errors.Is(err, io.EOF) {
			return item, nil
		}
	}
	var value T
	if err := json.Unmarshal(r.Value, &value); err != nil {
		return Item[T]{}, fmt.Errorf("record %s, revision %d: %w", r.Key, r.Revision, err)
	}
	item.Value, item.unknown = value, bytes.Clone(r.Value)
	return item, nil
}

// Write adds to a transaction that the item is written, if its record is still the one that
// was read.
func (t Table[T]) Write(txn *Txn, item Item[T]) error {
	if err := checkName(item.Name); err != nil {
		return err
	}
	value, err := item.encode()
	if err != nil {
		return fmt.Errorf("record %s: %w", t.Key(item.Name), err)
	}
	txn.If = append(txn.If, Condition{Key: t.Key(item.Name), Revision: item.Revision})
	txn.Put = append(txn.Put, Put{Key: t.Key(item.Name), Value: value})
	return nil
}

// Remove adds to a transaction that the item is deleted, if its record is still the one that
// was read.
func (t Table[T]) Remove(txn *Txn, item Item[T]) {
	txn.If = append(txn.If, Condition{Key: t.Key(item.Name), Revision: item.Revision})
	txn.Delete = append(txn.Delete, t.Key(item.Name))
}

// Put writes one item, if its record is still the one that was read, and returns it with its
// new revision.
func (t Table[T]) Put(ctx context.Context, s Store, item Item[T]) (Item[T], error) {
	var txn Txn
	if err := t.Write(&txn, item); err != nil {
		return item, err
	}
	revision, err := s.Commit(ctx, txn)
	if err != nil {
		return item, err
	}
	item.Revision = revision
	return item, nil
}

// checkName refuses names that would be keys of another table, or none.
func checkName(name string) error {
	if name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is no name of a record: it is empty or contains a slash", name)
	}
	return nil
}

// encode returns the value as JSON, with the unknown fields of the record that it was read from.
func (i Item[T]) encode() ([]byte, error) {
	value, err := json.Marshal(i.Value)
	if err != nil || i.unknown == nil {
		return value, err
	}
	var was T
	if err := json.Unmarshal(i.unknown, &was); err != nil {
		return nil, err
	}
	known, err := json.Marshal(was)
	if err != nil {
		return nil, err
	}
	var trees [3]any
	for i, text := range [][]byte{value, i.unknown, known} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // a float64 would change large integers
		if err := d.Decode(&trees[i]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(merge(trees[0], trees[1], trees[2]))
}

// merge returns a new value with the fields of the stored value that its known part does not have.
func merge(value, stored, known any) any {
	switch stored := stored.(type) {
	case map[string]any:
		to, ok := value.(map[string]any)
		was, same := known.(map[string]any)
		if !ok || !same {
			return value
		}
		for name, field := range stored {
			_, isKnown := was[name]
			_, isSet := to[name]
			switch {
			case isKnown && isSet:
				to[name] = merge(to[name], field, was[name])
			case !isKnown && !isSet:
				to[name] = field
			}
		}
	case []any:
		to, ok := value.([]any)
		was, same := known.([]any)
		if ok && same && len(was) == len(stored) {
			mergeElements(to, stored, was)
		}
	}
	return value
}

// mergeElements pairs the elements whose known fields are equal.
func mergeElements(to, stored, was []any) {
	places := map[string][]int{}
	for i := range was {
		text, _ := json.Marshal(was[i])
		places[string(text)] = append(places[string(text)], i)
	}
	for i := range to {
		text, _ := json.Marshal(to[i])
		if at := places[string(text)]; len(at) > 0 {
			to[i] = merge(to[i], stored[at[0]], was[at[0]])
			places[string(text)] = at[1:]
		}
	}
}
