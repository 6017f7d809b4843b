package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that waits for it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// appended are migrations that show in each record which of them changed it, in order.
func appended(n int) []store.Migration {
	var all []store.Migration
	for i := range n {
		all = append(all, store.Migration{Prefix: store.VMs, Change: func(r store.Record) ([]byte, error) {
			if strings.HasSuffix(r.Key, "7") && i == 1 {
				return nil, nil
			}
			return fmt.Appendf(nil, "%s%d", r.Value, i+2), nil
		}})
	}
	return all
}

func fill(t *testing.T, s store.Store, records int) {
	t.Helper()
	for i := range records {
		put(t, s, fmt.Sprintf("%s%04d", store.VMs, i), "1")
	}
	put(t, s, store.Hosts+"a", "1")
}

func put(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	txn := store.Txn{Put: []store.Put{{Key: key, Value: []byte(value)}}}
	if _, err := s.Commit(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
}

// wantMigrated checks that each record was changed by each migration once.
func wantMigrated(t *testing.T, s store.Store, records int) {
	t.Helper()
	vms, _, err := s.List(t.Context(), store.VMs)
	if err != nil || len(vms) != records-records/10 {
		t.Fatalf("%d records, %v", len(vms), err)
	}
	for _, r := range vms {
		if string(r.Value) != "123" {
			t.Errorf("%s is %q", r.Key, r.Value)
		}
	}
	if r, err := s.Get(t.Context(), store.Hosts+"a"); err != nil || string(r.Value) != "1" {
		t.Errorf("a record of another prefix: %q, %v", r.Value, err)
	}
}

func TestMigrate_ChangesEachRecordOnce(t *testing.T) {
	for _, records := range []int{0, 10, 1000} {
		s := memory.New(memory.Options{})
		if err := store.Migrate(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		fill(t, s, records)
		var starters sync.WaitGroup
		for range 4 {
			starters.Go(func() {
				if err := store.Migrate(t.Context(), s, appended(2)); err != nil {
					t.Error(err)
				}
			})
		}
		starters.Wait()
		wantMigrated(t, s, records)
	}
}

// failing is a store whose commits fail from a number on, before or after they are made.
type failing struct {
	*memory.Store
	left int
	made bool
}

func (f *failing) Commit(ctx context.Context, t store.Txn) (int64, error) {
	if f.left--; f.left >= 0 {
		return f.Store.Commit(ctx, t)
	}
	if f.made {
		if _, err := f.Store.Commit(ctx, t); err != nil {
			return 0, err
		}
	}
	return 0, store.ErrUnavailable
}

func TestMigrate_GoesOnAfterAnInterruption(t *testing.T) {
	const records = 500
	for commits := range 12 {
		for _, made := range []bool{false, true} {
			s := memory.New(memory.Options{})
			if err := store.Migrate(t.Context(), s, nil); err != nil {
				t.Fatal(err)
			}
			fill(t, s, records)
			err := store.Migrate(t.Context(), &failing{Store: s, left: commits, made: made}, appended(2))
			if commits < 8 && !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("after %d commits: %v", commits, err)
			}
			if err := store.Migrate(t.Context(), s, appended(2)); err != nil {
				t.Fatal(err)
			}
			wantMigrated(t, s, records)
		}
	}
}

func TestMigrate_RefusesWhatItDoesNotKnow(t *testing.T) {
	s := memory.New(memory.Options{})
	if err := store.Migrate(t.Context(), s, appended(2)); err != nil {
		t.Fatal(err)
	}
	newer := &store.NewerSchemaError{}
	err := store.Migrate(t.Context(), s, appended(1))
	if !errors.As(err, &newer) || newer.Found != 3 || newer.Known != 2 {
		t.Errorf("a newer schema: %v", err)
	}
	for name, make := range map[string]func(store.Store){
		"records without a schema": func(s store.Store) { put(t, s, store.VMs+"a", "{}") },
		"no JSON":                  func(s store.Store) { put(t, s, store.Schema, "?") },
		"no version":               func(s store.Store) { put(t, s, store.Schema, "{}") },
	} {
		s := memory.New(memory.Options{})
		make(s)
		if err := store.Migrate(t.Context(), s, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	broken := appended(1)
	broken[0].Change = func(store.Record) ([]byte, error) { return nil, errors.New("broken") }
	s = memory.New(memory.Options{})
	if err := store.Prepare(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	put(t, s, store.VMs+"a", "{}")
	if err := store.Migrate(t.Context(), s, broken); err == nil || !strings.Contains(err.Error(), store.VMs+"a") {
		t.Errorf("a record that cannot be migrated: %v", err)
	}
}
