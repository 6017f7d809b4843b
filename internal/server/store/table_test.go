package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

type thing struct {
	Size  int64            `json:"size"`
	Note  string           `json:"note,omitempty"`
	Part  part             `json:"part,omitzero"`
	Parts []part           `json:"parts,omitempty"`
	Named map[string]int64 `json:"named,omitempty"`
}

type part struct {
	A string `json:"a,omitempty"`
}

func TestTable_WritesWhatWasReadLast(t *testing.T) {
	s := memory.New(memory.Options{})
	things := store.TableOf[thing]("/things/")
	made, err := things.Put(t.Context(), s, store.Item[thing]{Name: "b", Value: thing{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	conflict := &store.ConflictError{}
	if _, err := things.Put(t.Context(), s, store.Item[thing]{Name: "b"}); !errors.As(err, &conflict) {
		t.Errorf("a second item that is new: %v", err)
	}
	made.Value.Size = 2
	changed, err := things.Put(t.Context(), s, made)
	if err != nil || changed.Revision <= made.Revision {
		t.Errorf("revision %d after %d: %v", changed.Revision, made.Revision, err)
	}
	if _, err := things.Put(t.Context(), s, made); !errors.As(err, &conflict) || conflict.Key != "/things/b" {
		t.Errorf("a change of what is no longer: %v", err)
	}
	if _, err := things.Put(t.Context(), s, store.Item[thing]{Name: "a", Value: thing{Note: "first"}}); err != nil {
		t.Error(err)
	}
	items, revision, err := things.List(t.Context(), s)
	if err != nil || revision <= changed.Revision || len(items) != 2 || items[0].Value.Note != "first" ||
		items[1].Value.Size != 2 {
		t.Errorf("%v, revision %d, %v", items, revision, err)
	}
	var txn store.Txn
	things.Remove(&txn, made)
	if _, err := s.Commit(t.Context(), txn); !errors.As(err, &conflict) {
		t.Errorf("a deletion of what is no longer: %v", err)
	}
	txn = store.Txn{}
	things.Remove(&txn, changed)
	if _, err := s.Commit(t.Context(), txn); err != nil {
		t.Error(err)
	}
	if _, err := things.Get(t.Context(), s, "b"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	for _, name := range []string{"", "a/b"} {
		if _, err := things.Put(t.Context(), s, store.Item[thing]{Name: name}); err == nil {
			t.Errorf("the name %q was accepted", name)
		}
	}
}

func TestTable_KeepsFieldsOfNewerVersions(t *testing.T) {
	const newer = `{"size":9007199254740993,"note":"x","new":{"deep":9007199254740993},"part":{"a":"1","b":"new"},` +
		`"parts":[{"a":"1","b":"of 1"},{"a":"2","b":"of 2"},{"a":"3","b":"of 3"}],"named":{"n":1,"m":2}}`
	for name, c := range map[string]struct {
		change func(*thing)
		want   string
	}{
		"nothing": {func(*thing) {}, newer},
		"plain fields": {func(v *thing) { v.Size, v.Note = 7, "" },
			`{"size":7,"new":{"deep":9007199254740993},"part":{"a":"1","b":"new"},` +
				`"parts":[{"a":"1","b":"of 1"},{"a":"2","b":"of 2"},{"a":"3","b":"of 3"}],"named":{"n":1,"m":2}}`},
		"elements and entries": {func(v *thing) {
			v.Part.A, v.Parts = "5", []part{{A: "3"}, {A: "4"}, {A: "1"}}
			delete(v.Named, "n")
		}, `{"size":9007199254740993,"note":"x","new":{"deep":9007199254740993},"part":{"a":"5","b":"new"},` +
			`"parts":[{"a":"3","b":"of 3"},{"a":"4"},{"a":"1","b":"of 1"}],"named":{"m":2}}`},
	} {
		s := memory.New(memory.Options{})
		things := store.TableOf[thing]("/things/")
		put := store.Put{Key: "/things/a", Value: []byte(newer)}
		if _, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{put}}); err != nil {
			t.Fatal(err)
		}
		item, err := things.Get(t.Context(), s, "a")
		if err != nil || item.Value.Size != 9007199254740993 || len(item.Value.Parts) != 3 {
			t.Fatalf("%+v, %v", item, err)
		}
		c.change(&item.Value)
		if _, err := things.Put(t.Context(), s, item); err != nil {
			t.Fatal(err)
		}
		r, err := s.Get(t.Context(), "/things/a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fields(t, []byte(c.want)), fields(t, r.Value)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestTable_NamesTheRecordThatIsNoJSON(t *testing.T) {
	things := store.TableOf[thing]("/things/")
	for _, text := range []string{`{"size":"large"}`, `{"size":1} {"size":2}`, `{`, `[1]`} {
		s := memory.New(memory.Options{})
		put := store.Put{Key: "/things/a", Value: []byte(text)}
		if _, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{put}}); err != nil {
			t.Fatal(err)
		}
		if _, err := things.Get(t.Context(), s, "a"); err == nil {
			t.Errorf("%s was read", text)
		}
		if _, _, err := things.List(t.Context(), s); err == nil {
			t.Errorf("%s was listed", text)
		}
	}
}

func TestTable_ReturnsOldItemsWithTheError(t *testing.T) {
	s := memory.New(memory.Options{})
	things := store.TableOf[thing]("/things/")
	if _, err := things.Put(t.Context(), s, store.Item[thing]{Name: "a", Value: thing{Size: 3}}); err != nil {
		t.Fatal(err)
	}
	s.LoseQuorum(true)
	item, err := things.Get(context.Background(), s, "a")
	if !errors.Is(err, store.ErrStale) || item.Value.Size != 3 {
		t.Errorf("%+v, %v", item, err)
	}
	if items, _, err := things.List(t.Context(), s); !errors.Is(err, store.ErrStale) || len(items) != 1 {
		t.Errorf("%+v, %v", items, err)
	}
	if _, err := things.Get(t.Context(), s, "b"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an item that does not exist: %v", err)
	}
}

// fields is JSON as a tree without numbers of limited precision.
func fields(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tree
}
