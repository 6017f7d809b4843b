// Package storetest is the suite that each implementation of a fleet's store passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/server/store"
)

// Compactor is a store whose history a test can bound: the changes of a revision and of
// those before it are forgotten.
type Compactor interface {
	Compact(ctx context.Context, revision int64) error
}

// Run runs the suite. The store may have records under other prefixes than /storetest/.
func Run(t *testing.T, open func(*testing.T) store.Store) {
	t.Helper()
	s := open(t)
	t.Run("parallel", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, fixture){
			"get and put":                      getAndPut,
			"a look":                           looks,
			"conflicts":                        conflicts,
			"a conflict changes nothing":       atomic,
			"transactions that are no good":    refused,
			"no changes":                       noChanges,
			"lists":                            lists,
			"a big list is of one revision":    bigList,
			"a scan has all prefixes in order": scans,
			"a big scan is of one revision":    bigScan,
			"writers at once":                  counter,
			"readers see whole transactions":   wholeTransactions,
			"a watch shows changes in order":   watchOrder,
			"a watch begins in the past":       watchPast,
			"watches miss nothing":             watchesMissNothing,
			"a watch ends with its context":    watchEnds,
			"leases end":                       leasesEnd,
			"leases are renewed and revoked":   renewAndRevoke,
			"a later write takes a key away":   leaseLoses,
			"calls end with their context":     contexts,
			"what is written does not change":  aliases,
			"a slow watch misses nothing":      slowWatch,
			"a transaction of the most keys":   mostKeys,
			"random transactions, as in a map": random,
			"values of all kinds":              values,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				prefix := "/storetest/" + strings.ReplaceAll(name, " ", "-") + "/"
				test(t, fixture{Store: s, prefix: prefix})
			})
		}
	})
	t.Run("compaction", func(t *testing.T) { compaction(t, fixture{Store: s, prefix: "/storetest/compaction/"}) })
}

// fixture is the store and the prefix of the keys of one test.
type fixture struct {
	store.Store
	prefix string
}

func (f fixture) key(name any) string { return f.prefix + fmt.Sprint(name) }

// put writes one value and returns its revision.
func (f fixture) put(t *testing.T, name any, value string) int64 {
	t.Helper()
	return f.commit(t, store.Txn{Put: []store.Put{{Key: f.key(name), Value: []byte(value)}}})
}

func (f fixture) commit(t *testing.T, txn store.Txn) int64 {
	t.Helper()
	revision, err := f.Commit(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// all returns the values of the test's keys, and the store's revision.
func (f fixture) all(t *testing.T) (map[string]string, int64) {
	t.Helper()
	records, revision, err := f.List(t.Context(), f.prefix)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, r := range records {
		values[strings.TrimPrefix(r.Key, f.prefix)] = string(r.Value)
	}
	return values, revision
}

func (f fixture) wantAll(t *testing.T, want map[string]string) {
	t.Helper()
	got, _ := f.all(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the records (-want +got):\n%s", diff)
	}
}

// looks reads what this process has written itself: the member that it asks has that.
func looks(t *testing.T, f fixture) {
	t.Helper()
	if r, err := f.Look(t.Context(), f.key("a")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a key that does not exist: %v, %v", r, err)
	}
	revision := f.put(t, "a", "1")
	if r, err := f.Look(t.Context(), f.key("a")); err != nil || string(r.Value) != "1" || r.Revision != revision {
		t.Errorf("got %+v, %v, revision %d is expected", r, err, revision)
	}
}

func getAndPut(t *testing.T, f fixture) {
	t.Helper()
	if r, err := f.Get(t.Context(), f.key("a")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a key that does not exist: %v, %v", r, err)
	}
	first := f.put(t, "a", "1")
	second := f.put(t, "a", "")
	r, err := f.Get(t.Context(), f.key("a"))
	if err != nil || r.Key != f.key("a") || len(r.Value) != 0 || r.Revision != second || second <= first {
		t.Errorf("%v, %v after the revisions %d and %d", r, err, first, second)
	}
	gone := f.commit(t, store.Txn{Delete: []string{f.key("a")}})
	if _, err := f.Get(t.Context(), f.key("a")); !errors.Is(err, store.ErrNotFound) || gone <= second {
		t.Errorf("after the deletion in revision %d: %v", gone, err)
	}
}

func conflicts(t *testing.T, f fixture) {
	t.Helper()
	first := f.put(t, "a", "1")
	absent := f.key("absent")
	for name, c := range map[string]struct {
		conditions []store.Condition
		conflict   string
	}{
		"holds":          {[]store.Condition{{Key: f.key("a"), Revision: first}, {Key: absent}}, ""},
		"older":          {[]store.Condition{{Key: f.key("a"), Revision: first - 1}}, f.key("a")},
		"newer":          {[]store.Condition{{Key: f.key("a"), Revision: first + 1000}}, f.key("a")},
		"exists":         {[]store.Condition{{Key: f.key("a")}}, f.key("a")},
		"does not exist": {[]store.Condition{{Key: absent, Revision: first}}, absent},
		"second of two":  {[]store.Condition{{Key: f.key("a"), Revision: first}, {Key: absent, Revision: 1}}, absent},
		"no longer as it was": {[]store.Condition{{Key: f.key("b"), Revision: f.put(t, "b", "1")},
			{Key: f.key("b"), Revision: first}}, f.key("b")},
	} {
		_, err := f.Commit(t.Context(), store.Txn{If: c.conditions,
			Put: []store.Put{{Key: f.key("of " + name), Value: []byte("x")}}})
		conflict := &store.ConflictError{}
		if err != nil && !errors.As(err, &conflict) || conflict.Key != c.conflict {
			t.Errorf("%s: error %v", name, err)
		}
	}
	f.wantAll(t, map[string]string{"a": "1", "b": "1", "of holds": "x"})
}

func atomic(t *testing.T, f fixture) {
	t.Helper()
	first := f.put(t, "a", "1")
	f.put(t, "b", "1")
	txn := store.Txn{
		If:     []store.Condition{{Key: f.key("a"), Revision: first + 1}},
		Put:    []store.Put{{Key: f.key("a"), Value: []byte("2")}, {Key: f.key("c"), Value: []byte("2")}},
		Delete: []string{f.key("b")},
	}
	if _, err := f.Commit(t.Context(), txn); err == nil {
		t.Error("a transaction with a condition that does not hold was made")
	}
	f.wantAll(t, map[string]string{"a": "1", "b": "1"})
	txn.If[0].Revision = first
	revision := f.commit(t, txn)
	f.wantAll(t, map[string]string{"a": "2", "c": "2"})
	for _, name := range []string{"a", "c"} {
		if r, err := f.Get(t.Context(), f.key(name)); err != nil || r.Revision != revision {
			t.Errorf("%s: %v, %v; the transaction's revision is %d", name, r, err, revision)
		}
	}
}

func refused(t *testing.T, f fixture) {
	t.Helper()
	f.put(t, "a", "1")
	many := store.Txn{}
	for i := range store.MaxKeys + 1 {
		many.Put = append(many.Put, store.Put{Key: f.key(i)})
	}
	for name, c := range map[string]struct {
		txn  store.Txn
		want error
	}{
		"no key":         {store.Txn{Put: []store.Put{{Value: []byte("x")}}}, nil},
		"put twice":      {store.Txn{Put: []store.Put{{Key: f.key("b")}, {Key: f.key("b")}}}, nil},
		"put and delete": {store.Txn{Put: []store.Put{{Key: f.key("b")}}, Delete: []string{f.key("b")}}, nil},
		"too large": {store.Txn{Put: []store.Put{{Key: f.key("b"), Value: make([]byte, store.MaxSize)}}},
			store.ErrTooLarge},
		"too many":      {many, store.ErrTooLarge},
		"no such lease": {store.Txn{Put: []store.Put{{Key: f.key("b"), Lease: 4711}}}, store.ErrNotFound},
	} {
		if _, err := f.Commit(t.Context(), c.txn); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	f.wantAll(t, map[string]string{"a": "1"})
}

func noChanges(t *testing.T, f fixture) {
	t.Helper()
	revision := f.put(t, "a", "1")
	for name, txn := range map[string]store.Txn{
		"empty":                    {},
		"only a condition":         {If: []store.Condition{{Key: f.key("a"), Revision: revision}}},
		"nothing there to delete":  {Delete: []string{f.key("b")}},
		"a condition on something": {If: []store.Condition{{Key: f.key("b")}}, Delete: []string{f.key("c")}},
	} {
		if r, err := f.Commit(t.Context(), txn); err != nil || r < revision {
			t.Errorf("%s: revision %d, error %v", name, r, err)
		}
	}
	if r, err := f.Get(t.Context(), f.key("a")); err != nil || r.Revision != revision {
		t.Errorf("%v, %v", r, err)
	}
}

func lists(t *testing.T, f fixture) {
	t.Helper()
	if records, revision, err := f.List(t.Context(), f.key("none")); err != nil || len(records) > 0 || revision < 1 {
		t.Errorf("an empty list: %v, revision %d, error %v", records, revision, err)
	}
	for _, name := range []string{"b/2", "a", "b/10", "b", "c", "b/1"} {
		f.put(t, name, name)
	}
	last := f.commit(t, store.Txn{Delete: []string{f.key("c")}})
	records, revision, err := f.List(t.Context(), f.key("b/"))
	var names []string
	for _, r := range records {
		names = append(names, strings.TrimPrefix(r.Key, f.prefix))
	}
	if want := []string{"b/1", "b/10", "b/2"}; err != nil || revision < last || !slices.Equal(names, want) {
		t.Errorf("%q, revision %d, error %v; want %q", names, revision, err, want)
	}
}

// scanned returns what a scan passes on.
func (f fixture) scanned(t *testing.T, prefixes ...string) (records []store.Record, revision int64, err error) {
	t.Helper()
	revision, err = f.Scan(t.Context(), prefixes, func(part []store.Record) error {
		records = append(records, part...)
		return nil
	})
	return records, revision, err
}

func scans(t *testing.T, f fixture) {
	t.Helper()
	if records, revision, err := f.scanned(t, f.key("none")); err != nil || len(records) > 0 || revision < 1 {
		t.Errorf("an empty scan: %v, revision %d, error %v", records, revision, err)
	}
	for _, name := range []string{"b/2", "a/1", "c/1", "b/10"} {
		f.put(t, name, name)
	}
	last := f.commit(t, store.Txn{Delete: []string{f.key("c/1")}})
	records, revision, err := f.scanned(t, f.key("c/"), f.key("b/"), f.key("a/"))
	var names []string
	for _, r := range records {
		names = append(names, strings.TrimPrefix(r.Key, f.prefix)+" "+string(r.Value))
	}
	want := []string{"b/10 b/10", "b/2 b/2", "a/1 a/1"}
	if err != nil || revision < last || !slices.Equal(names, want) {
		t.Errorf("%q, revision %d, error %v; want %q", names, revision, err, want)
	}
	enough := errors.New("enough")
	if _, err := f.Scan(t.Context(), []string{f.prefix}, func([]store.Record) error { return enough }); !errors.Is(err,
		enough) {
		t.Errorf("a scan that its caller ends: %v", err)
	}
}

// bigList lists large sets while others write them.
func bigList(t *testing.T, f fixture) {
	t.Helper()
	bigSets(t, f, func() ([]store.Record, int64, error) { return f.List(t.Context(), f.prefix) })
}

// bigScan scans the same, which it sorts.
func bigScan(t *testing.T, f fixture) {
	t.Helper()
	bigSets(t, f, func() ([]store.Record, int64, error) {
		records, revision, err := f.scanned(t, f.key("04"), f.key("03"), f.key("02"), f.key("01"), f.key("00"))
		slices.SortStableFunc(records, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
		return records, revision, err
	})
}

// bigSets writes two large sets at once, many times, while it reads all of them.
func bigSets(t *testing.T, f fixture, read func() ([]store.Record, int64, error)) {
	t.Helper()
	const sets = 50
	value := strings.Repeat("x", 1000)
	for i := range sets {
		txn := store.Txn{}
		for j := range 100 {
			txn.Put = append(txn.Put, store.Put{Key: f.key(fmt.Sprintf("%03d/%03d", i, j)), Value: []byte(value)})
		}
		f.commit(t, txn)
	}
	both := func(i int) error { // the first and the last key always change at once
		n := fmt.Append(nil, i)
		_, err := f.Commit(t.Context(), store.Txn{Put: []store.Put{
			{Key: f.key("000/000"), Value: n}, {Key: f.key(fmt.Sprintf("%03d/099", sets-1)), Value: n}}})
		return err
	}
	if err := both(0); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writer.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := both(i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 10 {
		records, revision, err := read()
		if err != nil || len(records) != 100*sets {
			t.Fatalf("%d records, error %v", len(records), err)
		}
		first, last := records[0], records[len(records)-1]
		sorted := slices.IsSortedFunc(records, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
		same := first.Revision == last.Revision && string(first.Value) == string(last.Value)
		if !same || last.Revision > revision || !sorted {
			t.Fatalf("of revision %d: first %d, last %d, sorted: %v", revision, first.Revision, last.Revision, sorted)
		}
	}
}

// counter lets writers add to one number: each sum is computed from what was read.
func counter(t *testing.T, f fixture) {
	t.Helper()
	const writers, each = 8, 10
	f.put(t, "n", "0")
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				f.addOne(t, f.key("n"))
			}
		})
	}
	all.Wait()
	f.wantAll(t, map[string]string{"n": fmt.Sprint(writers * each)})
}

func (f fixture) addOne(t *testing.T, key string) {
	t.Helper()
	for {
		r, err := f.Get(t.Context(), key)
		if err != nil {
			t.Error(err)
			return
		}
		var n int
		_, _ = fmt.Sscan(string(r.Value), &n)
		_, err = f.Commit(t.Context(), store.Txn{If: []store.Condition{{Key: key, Revision: r.Revision}},
			Put: []store.Put{{Key: key, Value: []byte(fmt.Sprint(n + 1))}}})
		if err == nil {
			return
		}
		if conflict := (*store.ConflictError)(nil); !errors.As(err, &conflict) {
			t.Error(err)
			return
		}
	}
}

// wholeTransactions moves an amount between keys: each list shows the same sum.
func wholeTransactions(t *testing.T, f fixture) {
	t.Helper()
	const keys = 5
	txn := store.Txn{}
	for i := range keys {
		txn.Put = append(txn.Put, store.Put{Key: f.key(i), Value: []byte("100")})
	}
	f.commit(t, txn)
	var all sync.WaitGroup
	for w := range 3 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 20 {
				f.transfer(t, random.IntN(keys), random.IntN(keys))
			}
		})
	}
	for range 20 {
		values, _ := f.all(t)
		sum := 0
		for _, v := range values {
			var n int
			_, _ = fmt.Sscan(v, &n)
			sum += n
		}
		if sum != 100*keys {
			t.Errorf("the sum is %d: %v", sum, values)
		}
	}
	all.Wait()
}

// transfer moves one from a key to another, unless another writer was faster.
func (f fixture) transfer(t *testing.T, from, to int) {
	t.Helper()
	if from == to {
		return
	}
	txn := store.Txn{}
	for i, d := range []int{-1, 1} {
		key := f.key([]int{from, to}[i])
		r, err := f.Get(t.Context(), key)
		if err != nil {
			t.Error(err)
			return
		}
		var n int
		_, _ = fmt.Sscan(string(r.Value), &n)
		txn.If = append(txn.If, store.Condition{Key: key, Revision: r.Revision})
		txn.Put = append(txn.Put, store.Put{Key: key, Value: []byte(fmt.Sprint(n + d))})
	}
	conflict := (*store.ConflictError)(nil)
	if _, err := f.Commit(t.Context(), txn); err != nil && !errors.As(err, &conflict) {
		t.Error(err)
	}
}

func leasesEnd(t *testing.T, f fixture) {
	t.Helper()
	watch := f.Watch(t.Context(), f.prefix, f.put(t, "other", "stays"))
	began := time.Now() // the lease begins before the call returns, and writing its keys takes time
	id, err := f.Lease(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f.commit(t, store.Txn{Put: []store.Put{{Key: f.key("a"), Value: []byte("1"), Lease: id},
		{Key: f.key("b"), Value: []byte("1"), Lease: id}}})
	gone := map[string]bool{}
	for c := range watch {
		for _, e := range c.Events {
			if e.Deleted {
				gone[e.Key] = true
			}
		}
		if c.Err != nil || len(gone) == 2 {
			break
		}
	}
	if took := time.Since(began); took < 1900*time.Millisecond || took > 30*time.Second {
		t.Errorf("the keys of a lease of 2 s ended after %v", took)
	}
	f.wantAll(t, map[string]string{"other": "stays"})
	if err := f.Renew(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("renewing a lease that has ended: %v", err)
	}
	if err := f.Revoke(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("revoking a lease that has ended: %v", err)
	}
}

func renewAndRevoke(t *testing.T, f fixture) {
	t.Helper()
	id, err := f.Lease(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f.commit(t, store.Txn{Put: []store.Put{{Key: f.key("a"), Value: []byte("1"), Lease: id}}})
	for range 5 {
		time.Sleep(500 * time.Millisecond)
		if err := f.Renew(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	f.wantAll(t, map[string]string{"a": "1"})
	if err := f.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	f.wantAll(t, map[string]string{})
}

// leaseLoses writes a key of a lease again, without one and with another.
func leaseLoses(t *testing.T, f fixture) {
	t.Helper()
	var ids [2]store.LeaseID
	for i := range ids {
		var err error
		if ids[i], err = f.Lease(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"free", "moved"} {
		f.commit(t, store.Txn{Put: []store.Put{{Key: f.key(name), Value: []byte("1"), Lease: ids[0]}}})
	}
	f.put(t, "free", "2")
	f.commit(t, store.Txn{Put: []store.Put{{Key: f.key("moved"), Value: []byte("2"), Lease: ids[1]}}})
	if err := f.Revoke(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	f.wantAll(t, map[string]string{"free": "2", "moved": "2"})
	if err := f.Revoke(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	f.wantAll(t, map[string]string{"free": "2"})
}

func contexts(t *testing.T, f fixture) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := f.Get(ctx, f.key("a")); return err },
		"list":   func() error { _, _, err := f.List(ctx, f.prefix); return err },
		"commit": func() error { _, err := f.Commit(ctx, store.Txn{Put: []store.Put{{Key: f.key("a")}}}); return err },
		"lease":  func() error { _, err := f.Lease(ctx, time.Minute); return err },
		"renew":  func() error { return f.Renew(ctx, 1) },
		"revoke": func() error { return f.Revoke(ctx, 1) },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	f.wantAll(t, map[string]string{})
}

func aliases(t *testing.T, f fixture) {
	t.Helper()
	value := []byte("before")
	f.commit(t, store.Txn{Put: []store.Put{{Key: f.key("a"), Value: value}}})
	copy(value, "after!")
	f.wantAll(t, map[string]string{"a": "before"})
}

func mostKeys(t *testing.T, f fixture) {
	t.Helper()
	txn, want := store.Txn{}, map[string]string{}
	for i := range store.MaxKeys {
		name := fmt.Sprintf("%03d", i)
		txn.If = append(txn.If, store.Condition{Key: f.key(name)})
		txn.Put = append(txn.Put, store.Put{Key: f.key(name), Value: []byte("x")})
		want[name] = "x"
	}
	f.commit(t, txn)
	f.wantAll(t, want)
	big := store.Put{Key: f.key("big"), Value: make([]byte, store.MaxSize-len(f.key("big")))}
	if _, err := f.Commit(t.Context(), store.Txn{Put: []store.Put{big}}); err != nil {
		t.Errorf("a value of the most bytes: %v", err)
	}
}

// values reads what it has written, by a read, a list and a watch.
func values(t *testing.T, f fixture) {
	t.Helper()
	watch := f.Watch(t.Context(), f.prefix, f.put(t, "before", ""))
	draw := rand.New(rand.NewPCG(9, 9))
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(draw.Uint32())
	}
	for name, value := range map[string]string{
		"empty": "", "zero": "\x00", "large": strings.Repeat("numa ", 100_000), "noise": string(noise),
		"gzip": "\x1f\x8b", "like gzip": "\x1f\x8b\x08 and so on",
	} {
		f.put(t, name, value)
		r, err := f.Get(t.Context(), f.key(name))
		if c := receive(t, watch); err != nil || string(r.Value) != value || string(c.Events[0].Value) != value {
			t.Errorf("%s: read %.20q, watched %.20q, %v", name, r.Value, c.Events[0].Value, err)
		}
		if all, _ := f.all(t); all[name] != value {
			t.Errorf("%s: listed %.20q", name, all[name])
		}
	}
}

// random makes random transactions and compares with a map what is left.
func random(t *testing.T, f fixture) {
	t.Helper()
	draw := rand.New(rand.NewPCG(7, 7))
	want, revisions := map[string]string{}, map[string]int64{}
	for i := range 200 {
		txn, holds := store.Txn{}, true
		after := maps.Clone(want)
		for _, n := range draw.Perm(10)[:1+draw.IntN(4)] {
			name := fmt.Sprint(n)
			switch revision := revisions[name]; draw.IntN(4) {
			case 0:
				txn.Put = append(txn.Put, store.Put{Key: f.key(name), Value: []byte(fmt.Sprint(i))})
				after[name] = fmt.Sprint(i)
			case 1:
				txn.Delete = append(txn.Delete, f.key(name))
				delete(after, name)
			case 2:
				txn.If = append(txn.If, store.Condition{Key: f.key(name), Revision: revision})
			case 3:
				wrong := draw.Int64N(2) * 3
				txn.If = append(txn.If, store.Condition{Key: f.key(name), Revision: revision + wrong})
				holds = holds && wrong == 0
			}
		}
		revision, err := f.Commit(t.Context(), txn)
		if holds != (err == nil) {
			t.Fatalf("transaction %d, whose conditions hold: %v: error %v", i, holds, err)
		}
		if !holds {
			continue
		}
		for _, p := range txn.Put {
			revisions[strings.TrimPrefix(p.Key, f.prefix)] = revision
		}
		for _, key := range txn.Delete {
			delete(revisions, strings.TrimPrefix(key, f.prefix))
		}
		want = after
	}
	f.wantAll(t, want)
}
