// Package leader chooses one of a fleet's servers for the work that one alone should do. Leadership ends
// with a lease, so a server that stops is replaced. It saves work and is no guarantee: two
// servers may both believe for a moment that they lead, and their transactions remain safe.
package leader

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
)

const (
	leaseTime  = 6 * time.Second
	renewEvery = 2 * time.Second
)

// Candidate is a server that may lead.
type Candidate struct {
	store store.Store
	log   *slog.Logger
	leads atomic.Bool
}

// New makes a candidate. Run makes it stand.
func New(s store.Store, log *slog.Logger) *Candidate { return &Candidate{store: s, log: log} }

// Leads reports whether the candidate leads, as far as it knows.
func (c *Candidate) Leads() bool { return c.leads.Load() }

// Run stands until ctx ends, and then gives leadership up.
func (c *Candidate) Run(ctx context.Context) {
	var lease store.LeaseID
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		lease = c.step(ctx, lease)
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.leads.Store(false)
			if lease != 0 {
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewEvery)
				_ = c.store.Revoke(last, lease) // else it ends by itself
				cancel()
			}
			return
		}
	}
}

// step renews the lease, or makes one and tries to lead.
func (c *Candidate) step(ctx context.Context, lease store.LeaseID) store.LeaseID {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	if lease != 0 {
		if c.store.Renew(ctx, lease) != nil {
			c.leads.Store(false)
			return 0 // the key ends with the lease, and then anybody may lead
		}
	}
	if lease == 0 {
		made, err := c.store.Lease(ctx, leaseTime)
		if err != nil {
			return 0
		}
		lease = made
	}
	if c.leads.Load() {
		return lease
	}
	value := fmt.Appendf(nil, `{"lease":"%x"}`, lease)
	_, err := c.store.Commit(ctx, store.Txn{
		If:  []store.Condition{{Key: store.Leader}},
		Put: []store.Put{{Key: store.Leader, Value: value, Lease: lease}},
	})
	if err == nil || c.holds(ctx, value) {
		c.log.Info("this server leads")
		c.leads.Store(true)
	}
	return lease
}

// holds reports whether the leader's key is the candidate's: a transaction without an answer may have been made.
func (c *Candidate) holds(ctx context.Context, value []byte) bool {
	r, err := c.store.Get(ctx, store.Leader)
	return err == nil && bytes.Equal(r.Value, value)
}
