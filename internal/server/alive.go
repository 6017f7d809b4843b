package server

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	"github.com/numavisor/numavisor/internal/server/store"
)

// silence is how long a host may say nothing before it is unreachable.
const silence = 3 * agentapi.LoadsEvery

// aliveness maintains the keys of the hosts that are connected to this server. They have the server's
// lease: if the server stops, its hosts become unreachable unless they connect to another one.
type aliveness struct {
	server *Server

	mu    sync.Mutex
	heard map[string]time.Time
	lease store.LeaseID
	mine  map[string]int64 // revisions of the keys that this server wrote
	self  int64            // revision of this server's own key
	wake  chan struct{}
	// renewed is when the store last wrote for this server; under mu.
	renewed time.Time
}

func newAliveness(s *Server) *aliveness {
	return &aliveness{server: s, heard: map[string]time.Time{}, mine: map[string]int64{}, renewed: time.Now(),
		wake: make(chan struct{}, 1)}
}

// hear notes that a host has sent a message.
func (a *aliveness) hear(host string) {
	a.mu.Lock()
	_, known := a.heard[host]
	a.heard[host] = time.Now() // monotonic: a jump of the clock does not count
	a.mu.Unlock()
	if !known {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// hears reports whether a host is connected to this server.
func (a *aliveness) hears(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.heard[host]
	return known && time.Since(at) <= silence
}

// isolated reports whether the store has not written for this server for so long that its lease has ended.
func (a *aliveness) isolated() bool { return a.unconfirmed() > silence }

// unconfirmed is the time since the store last wrote for this server.
func (a *aliveness) unconfirmed() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.renewed)
}

// run renews the lease and the keys until ctx ends.
func (a *aliveness) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var renewed time.Time
	for {
		if time.Since(renewed) >= silence/3 || a.lease == 0 {
			if a.renew(ctx) {
				renewed = time.Now()
				a.mu.Lock()
				a.renewed = renewed
				a.mu.Unlock()
			}
		}
		if a.lease != 0 {
			a.step(ctx)
		}
		select {
		case <-tick.C:
		case <-a.wake:
		case <-ctx.Done():
			return
		}
	}
}

// renew renews the lease, or makes one.
func (a *aliveness) renew(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, silence/3)
	defer cancel()
	if a.lease != 0 {
		err := a.server.Store.Renew(ctx, a.lease)
		if !errors.Is(err, store.ErrNotFound) {
			return err == nil
		}
		a.lease = 0
		clear(a.mine) // the keys have ended with the lease
		a.self = 0
	}
	lease, err := a.server.Store.Lease(ctx, silence)
	if err != nil {
		return false
	}
	a.lease = lease
	return true
}

// step writes the keys of hosts that were heard, and deletes those of silent ones.
func (a *aliveness) step(ctx context.Context) {
	a.mu.Lock()
	heard := maps.Clone(a.heard)
	for host, at := range heard {
		if time.Since(at) > silence {
			delete(a.heard, host)
		}
	}
	a.mu.Unlock()
	now, self := map[string]int64{}, false
	a.server.cache.read(func(st *state) {
		self = a.self != 0 && st.servers[a.server.Name].revision != 0
		for host := range heard {
			now[host] = st.keys[store.Alive+host]
		}
	})
	t := &transaction{}
	if !self {
		value, _ := json.Marshal(peer{a.server.Address})
		t.Put = append(t.Put, store.Put{Key: store.Servers + a.server.Name, Value: value, Lease: a.lease})
	}
	for _, host := range slices.Sorted(maps.Keys(heard)) {
		if len(t.Put)+len(t.Delete) >= store.MaxKeys/2 {
			break // the others follow with the next tick
		}
		key := store.Alive + host
		switch silent := time.Since(heard[host]) > silence; {
		case silent && a.mine[host] != 0 && now[host] == a.mine[host]:
			t.require(key, a.mine[host])
			t.remove(key)
			delete(a.mine, host)
		case silent:
			delete(a.mine, host) // it has connected to another server
		case now[host] == 0 || a.mine[host] == 0:
			t.Put = append(t.Put, store.Put{Key: key, Value: []byte("{}"), Lease: a.lease})
		}
	}
	if len(t.Put)+len(t.Delete) == 0 {
		return
	}
	revision, err := a.server.commit(ctx, t)
	if err != nil {
		a.server.Log.Warn("the hosts that were heard were not recorded", "error", err)
		return
	}
	for _, p := range t.Put {
		if host, is := strings.CutPrefix(p.Key, store.Alive); is {
			a.mine[host] = revision
		} else {
			a.self = revision
		}
	}
}
