package leader

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

func TestCandidate_OneLeadsAndIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		log := slog.New(slog.DiscardHandler)
		a, b := New(s, log), New(s, log)
		var all sync.WaitGroup
		ctxA, stopA := context.WithCancel(t.Context())
		ctxB, stopB := context.WithCancel(t.Context())
		all.Go(func() { a.Run(ctxA) })
		time.Sleep(time.Second)
		all.Go(func() { b.Run(ctxB) })
		time.Sleep(time.Minute)
		if !a.Leads() || b.Leads() {
			t.Errorf("a leads: %v, b leads: %v; want a alone", a.Leads(), b.Leads())
		}
		s.LoseQuorum(true)
		time.Sleep(3 * renewEvery)
		if a.Leads() || b.Leads() {
			t.Errorf("without a quorum a leads: %v, b leads: %v; want none", a.Leads(), b.Leads())
		}
		s.LoseQuorum(false)
		time.Sleep(leaseTime + 2*renewEvery)
		if a.Leads() == b.Leads() {
			t.Errorf("a leads: %v, b leads: %v; want one", a.Leads(), b.Leads())
		}
		stopA()
		time.Sleep(2 * renewEvery)
		if !b.Leads() {
			t.Error("b does not replace a")
		}
		stopB()
		all.Wait()
	})
}

// unanswered is a store whose first transaction is made and not answered, as on a slow network.
type unanswered struct {
	store.Store
	once sync.Once
}

func (u *unanswered) Commit(ctx context.Context, t store.Txn) (revision int64, err error) {
	revision, err = u.Store.Commit(ctx, t)
	u.once.Do(func() { err = store.ErrUnavailable })
	return revision, err
}

// A candidate whose transaction was made without an answer renews the lease of the leader's key: if it did not know
// that it leads, nobody would.
func TestCandidate_LeadsIfItsTransactionWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		log := slog.New(slog.DiscardHandler)
		a, b := New(&unanswered{Store: s}, log), New(s, log)
		var all sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		all.Go(func() { a.Run(ctx) })
		time.Sleep(time.Second)
		all.Go(func() { b.Run(ctx) })
		time.Sleep(time.Minute)
		if a.Leads() == b.Leads() {
			t.Errorf("a leads: %v, b leads: %v; want one", a.Leads(), b.Leads())
		}
		stop()
		all.Wait()
	})
}
