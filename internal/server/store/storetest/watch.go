package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/server/store"
)

// patience is how long a test waits for changes before it fails.
const patience = 20 * time.Second

// receive returns the next changes of a watch.
func receive(t *testing.T, watch <-chan store.Changes) store.Changes {
	t.Helper()
	select {
	case c, ok := <-watch:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return c
	case <-time.After(patience):
		t.Fatal("the watch shows nothing")
	}
	return store.Changes{}
}

// summary writes changes as "name=value" and "name deleted".
func (f fixture) summary(c store.Changes) string {
	var b strings.Builder
	for _, e := range c.Events {
		name := strings.TrimPrefix(e.Key, f.prefix)
		if e.Deleted {
			fmt.Fprintf(&b, "%s deleted, ", name)
		} else {
			fmt.Fprintf(&b, "%s=%s, ", name, e.Value)
		}
		if e.Revision != c.Revision {
			fmt.Fprintf(&b, "of revision %d, not %d", e.Revision, c.Revision)
		}
	}
	if c.Err != nil {
		fmt.Fprintf(&b, "error %v", c.Err)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

func (f fixture) wantChanges(t *testing.T, watch <-chan store.Changes, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, f.summary(receive(t, watch)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the changes (-want +got):\n%s", diff)
	}
}

func watchOrder(t *testing.T, f fixture) {
	t.Helper()
	begin := f.put(t, "a", "0")
	watch, part := f.Watch(t.Context(), f.prefix, begin), f.Watch(t.Context(), f.key("b"), begin)
	f.put(t, "a", "1")
	f.commit(t, store.Txn{
		Put:    []store.Put{{Key: f.key("c"), Value: []byte("2")}, {Key: f.key("b/1"), Value: []byte("2")}},
		Delete: []string{f.key("a"), f.key("absent")},
	})
	_, _ = f.Commit(t.Context(), store.Txn{If: []store.Condition{{Key: f.key("a"), Revision: begin}},
		Put: []store.Put{{Key: f.key("a"), Value: []byte("never")}}})
	last := f.put(t, "b", "3")
	f.wantChanges(t, watch, "a=1", "c=2, b/1=2, a deleted")
	f.wantChanges(t, part, "b/1=2")
	if c := receive(t, watch); c.Revision != last || f.summary(c) != "b=3" {
		t.Errorf("%d: %s; want %d: b=3", c.Revision, f.summary(c), last)
	}
	f.wantChanges(t, part, "b=3")
}

func watchPast(t *testing.T, f fixture) {
	t.Helper()
	_, begin := f.all(t)
	first := f.put(t, "a", "1")
	second := f.put(t, "a", "2")
	f.commit(t, store.Txn{Delete: []string{f.key("a")}})
	f.wantChanges(t, f.Watch(t.Context(), f.prefix, begin), "a=1", "a=2", "a deleted")
	f.wantChanges(t, f.Watch(t.Context(), f.prefix, first), "a=2", "a deleted")
	late := f.Watch(t.Context(), f.prefix, second)
	f.wantChanges(t, late, "a deleted")
	f.put(t, "b", "1")
	f.wantChanges(t, late, "b=1")
}

// watchesMissNothing lets writers change keys while watches begin at lists: each list
// and what its watch shows afterwards lead to the same records, in ascending revisions.
func watchesMissNothing(t *testing.T, f fixture) {
	t.Helper()
	const writers, each, watches = 4, 40, 6
	var write, watch sync.WaitGroup
	for w := range writers {
		write.Go(func() {
			draw := rand.New(rand.NewPCG(uint64(w), 3))
			for i := range each {
				txn := store.Txn{}
				for _, n := range draw.Perm(8)[:1+draw.IntN(3)] {
					if draw.IntN(3) == 0 {
						txn.Delete = append(txn.Delete, f.key(n))
					} else {
						txn.Put = append(txn.Put, store.Put{Key: f.key(n), Value: fmt.Append(nil, w, i)})
					}
				}
				if _, err := f.Commit(t.Context(), txn); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range watches {
		watch.Go(func() {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			f.follow(t)
		})
	}
	write.Wait()
	f.put(t, "end", "") // the watches end here
	watch.Wait()
}

// follow lists the records and applies what a watch shows to them, until the key "end".
func (f fixture) follow(t *testing.T) {
	t.Helper()
	values, last := f.all(t)
	if _, ok := values["end"]; ok {
		return // the writers were faster
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for c := range f.Watch(ctx, f.prefix, last) {
		if c.Err != nil || c.Revision <= last || len(c.Events) == 0 {
			t.Errorf("%d after %d: %s", c.Revision, last, f.summary(c))
			return
		}
		last = c.Revision
		for _, e := range c.Events {
			if name := strings.TrimPrefix(e.Key, f.prefix); e.Deleted {
				delete(values, name)
			} else {
				values[name] = string(e.Value)
			}
		}
		if _, ok := values["end"]; ok {
			break
		}
	}
	want, _ := f.all(t)
	if !maps.Equal(values, want) {
		t.Errorf("a list and the changes since:\n%v\nthe records:\n%v", values, want)
	}
}

// slowWatch reads nothing from a watch until much has happened.
func slowWatch(t *testing.T, f fixture) {
	t.Helper()
	const changes = 300
	watch := f.Watch(t.Context(), f.prefix, f.put(t, "a", "begin"))
	value := strings.Repeat("x", 5000)
	for i := range changes {
		f.put(t, "a", fmt.Sprint(i, " ", value))
	}
	for i := range changes {
		c := receive(t, watch)
		if want := fmt.Sprintf("a=%d %s", i, value); f.summary(c) != want {
			t.Fatalf("change %d is %.40s", i, f.summary(c))
		}
	}
}

func watchEnds(t *testing.T, f fixture) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	begin := f.put(t, "a", "0")
	read, unread := f.Watch(ctx, f.prefix, begin), f.Watch(ctx, f.prefix, begin)
	f.put(t, "a", "1")
	f.wantChanges(t, read, "a=1")
	cancel()
	for _, watch := range []<-chan store.Changes{read, unread} {
		closed := time.After(patience)
		for open := true; open; {
			select {
			case c, ok := <-watch:
				if open = ok; c.Err != nil {
					t.Errorf("a watch that its owner ended shows the error %v", c.Err)
				}
			case <-closed:
				t.Fatal("the watch does not end")
			}
		}
	}
}

func compaction(t *testing.T, f fixture) {
	t.Helper()
	compactor, ok := f.Store.(Compactor)
	if !ok {
		t.Fatalf("%T has no method Compact", f.Store)
	}
	old := f.put(t, "a", "1")
	live := f.Watch(t.Context(), f.prefix, old)
	f.put(t, "a", "2")
	f.put(t, "b", "2")
	f.wantChanges(t, live, "a=2", "b=2")
	last := f.put(t, "a", "3")
	f.wantChanges(t, live, "a=3")
	if err := compactor.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	watch := f.Watch(t.Context(), f.prefix, old)
	if c := receive(t, watch); !errors.Is(c.Err, store.ErrCompacted) {
		t.Errorf("a watch from before the compaction: %s", f.summary(c))
	}
	if _, open := <-watch; open {
		t.Error("a watch goes on after its error")
	}
	f.wantAll(t, map[string]string{"a": "3", "b": "2"})
	f.put(t, "a", "4")
	f.wantChanges(t, live, "a=4") // a watch that is up to date goes on
	f.wantChanges(t, f.Watch(t.Context(), f.prefix, last), "a=4")
}
