package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/server/store/storetest"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that waits for it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return memory.New(memory.Options{}) })
}

// TestLease_EndsByTheClock checks the moment, and that a renewal counts from its own time.
func TestLease_EndsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		id, err := s.Lease(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), store.Txn{Put: []store.Put{{Key: "a", Lease: id}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if err := s.Renew(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		if _, err := s.Get(t.Context(), "a"); err != nil {
			t.Errorf("just before its end: %v", err)
		}
		time.Sleep(2 * time.Nanosecond)
		if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("just after its end: %v", err)
		}
	})
}

func TestLoseQuorum_RefusesWritesAndSaysThatReadsMayBeOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		id, err := s.Lease(t.Context(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		put := store.Txn{Put: []store.Put{{Key: "a", Value: []byte("1"), Lease: id}}}
		if _, err := s.Commit(t.Context(), put); err != nil {
			t.Fatal(err)
		}
		s.LoseQuorum(true)
		time.Sleep(7 * time.Second)
		if _, err := s.Commit(t.Context(), put); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a write: %v", err)
		}
		if err := s.Renew(t.Context(), id); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a renewal: %v", err)
		}
		r, err := s.Get(t.Context(), "a")
		if !errors.Is(err, store.ErrStale) || !errors.Is(err, store.ErrUnavailable) || string(r.Value) != "1" {
			t.Errorf("a read: %v, %v", r, err)
		}
		if _, err := s.Get(t.Context(), "b"); !errors.Is(err, store.ErrStale) || !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a read of a key that does not exist: %v", err)
		}
		if records, _, err := s.List(t.Context(), ""); !errors.Is(err, store.ErrStale) || len(records) != 1 {
			t.Errorf("a list: %v, %v", records, err)
		}
		s.LoseQuorum(false)
		time.Sleep(6 * time.Second)
		if _, err := s.Get(t.Context(), "a"); err == nil || errors.Is(err, store.ErrStale) {
			t.Errorf("after the lease has ended with a quorum: %v", err)
		}
	})
}
