// Package server is a fleet's server: it serves the REST API and the daemons of hosts, decides on which
// host and nodes each VM goes, and stores all of it by transactions. Several servers may use one
// store at the same time.
//
// Decisions about records are in pure files: settle.go, quota.go, view.go. They are made on the state
// of one revision, and committed only if that state still holds; else the server decides again.
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/leader"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/topology"
)

// Telemetry stores what does not go through consensus.
type Telemetry interface {
	// Due reports whether Report would store what a host took at a time.
	Due(host string, taken time.Time) bool
	// Report stores the loads of a host, which are complete, and the nodes of the fleet's VMs on it, by their names.
	Report(ctx context.Context, host string, l fleet.Loads, placed map[string]topology.NodeSet) error
	// Handler answers queries below /api/v1/, as Prometheus does. It does not authenticate.
	Handler() http.Handler
}

// Options are what a server needs.
type Options struct {
	Store     store.Store
	CA        *auth.CA
	Policy    policy.Policy // of all hosts
	Log       *slog.Logger
	Version   string
	Telemetry Telemetry // nil: loads are only used for decisions
	// Address is what hosts and users connect to, for the join command.
	Address string
	// Names are the names and IP addresses in the server's certificates.
	Names []string
	// Name identifies the server among those of the fleet; empty: Address.
	Name string
	Now  func() time.Time // nil: time.Now
	// Limits bound the migrations that the leader begins by itself.
	Limits migrate.Limits
	// PlanEvery is how often the leader looks for them; 0: 30s.
	PlanEvery time.Duration
	Deadlines Deadlines
}

// Server is one of a fleet's servers.
type Server struct {
	Options
	cache *cache
	sched *scheduler
	// creations are VMs that users create at the same time.
	creations creations
	alive     *aliveness
	loads     *loads
	tokens    *tokens
	events    *broadcast
	leader    *leader.Candidate
	wanted    *wanted
	// touched are the VMs that the reconciler looks at next.
	touched touched
	// surveying is held while a copy of the fleet is made and used: one at a time bounds the memory.
	surveying sync.Mutex
	heartbeat time.Duration // between messages to a host
	wake      chan struct{} // the reconciler has something to do
	stopped   chan struct{} // closed when Run ends
}

var _ rest.Service = (*Server)(nil)

// New makes a server. Run starts it.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Name = cmp.Or(o.Name, o.Address)
	s := &Server{Options: o, cache: newCache(o.Log), wake: make(chan struct{}, 1),
		wanted: newWanted(), heartbeat: agentapi.HeartbeatEvery,
		stopped: make(chan struct{})}
	s.sched = newScheduler(o.Policy)
	s.loads = newLoads()
	s.alive = newAliveness(s)
	s.tokens = &tokens{}
	s.events = newBroadcast()
	s.leader = leader.New(o.Store, o.Log)
	s.cache.listeners = []func(*state, change){
		s.sched.noteChange, s.tokens.noteChange, s.events.noteChange, s.wanted.noteChange,
		s.touched.noteChange,
		func(*state, change) { s.nudge() },
	}
	return s
}

// nudge wakes the reconciler.
func (s *Server) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run follows the store and does the work of a server until ctx ends. It calls ready once the
// state has been read.
func (s *Server) Run(ctx context.Context, ready func()) {
	defer close(s.stopped)
	var group sync.WaitGroup
	var once sync.Once
	group.Go(func() {
		s.cache.follow(ctx, s.Store, func() { once.Do(ready) })
		s.events.close()
	})
	group.Go(func() { s.alive.run(ctx) })
	group.Go(func() { s.sched.refresh(ctx, s.cache, s.loads) })
	group.Go(func() { s.leader.Run(ctx) })
	group.Go(func() { s.reconcile(ctx) })
	group.Go(func() { s.rebalance(ctx) })
	group.Go(func() { s.relay(ctx) })
	group.Wait()
}

// transaction collects the changes of one decision.
type transaction struct {
	store.Txn
	err error
}

// require makes the transaction conditional on the revision of a key.
func (t *transaction) require(key string, revision int64) {
	for _, c := range t.If {
		if c.Key == key {
			return
		}
	}
	t.If = append(t.If, store.Condition{Key: key, Revision: revision})
}

// put writes a value as JSON.
func (t *transaction) put(key string, value any) {
	data, err := json.Marshal(value)
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("encoding %s: %w", key, err)
	}
	t.Put = append(t.Put, store.Put{Key: key, Value: data})
}

func (t *transaction) remove(key string) { t.Delete = append(t.Delete, key) }

// add adds the changes of another decision on the same state. What both touch is written once.
func (t *transaction) add(o *transaction) {
	written := map[string]bool{}
	for _, p := range t.Put {
		written[p.Key] = true
	}
	for _, c := range o.If {
		t.require(c.Key, c.Revision)
	}
	for _, p := range o.Put {
		if !written[p.Key] {
			t.Put = append(t.Put, p)
		}
	}
	t.Delete = append(t.Delete, o.Delete...)
	t.err = errors.Join(t.err, o.err)
}

// size returns the bytes that the transaction writes.
func (t *transaction) size() (n int) {
	for _, p := range t.Put {
		n += len(p.Key) + len(p.Value)
	}
	return n
}

// touch requires the revision of a key that guards a sum, and writes the key.
func (t *transaction) touch(key string, revision int64) {
	for _, p := range t.Put {
		if p.Key == key {
			return
		}
	}
	t.require(key, revision)
	t.Put = append(t.Put, store.Put{Key: key, Value: []byte("{}")})
}

const (
	// attempts bounds how often a change is decided again after a conflict.
	attempts = 30
	// catchUp is how long a server waits for the change that it conflicted with.
	catchUp = 2 * time.Second
	// commitTime limits one transaction.
	commitTime = 10 * time.Second
)

// errNothing means that a decision changes nothing.
var errNothing = errors.New("nothing to change")

// decide makes a change: it calls f with the state, commits what f put into the transaction, and calls f again
// with newer state after a conflict. f returns errNothing if there is nothing to change.
//
// No transaction proves that a refusal, or that nothing is to change, follows from the present state: this server
// may be behind the others. So f is called again with a state that is at least as new as the store was.
func (s *Server) decide(ctx context.Context, f decision) (revision int64, err error) {
	return s.confirmed(ctx, f, s.attempt)
}

// decision puts a change into a transaction on the state.
type decision func(st *state, t *transaction) error

// confirmed is decide with a way to make attempts. It calls confirm between them.
func (s *Server) confirmed(
	ctx context.Context, f decision, attempt func(context.Context, decision) (int64, error),
) (revision int64, err error) {
	var refused *fleetapi.Problem
	unfounded := false
	judged := func(st *state, t *transaction) error {
		err := f(st, t)
		unfounded = errors.Is(err, errNothing) || errors.As(err, &refused)
		return err
	}
	revision, err = attempt(ctx, judged)
	if !unfounded {
		return revision, err
	}
	if unsure := s.confirm(ctx); unsure != nil {
		return 0, unsure
	}
	return attempt(ctx, f)
}

// confirm waits until this server's state is at least as new as the store was when confirm was called.
func (s *Server) confirm(ctx context.Context) error {
	_, revision, err := s.Store.List(ctx, store.Schema)
	known := false
	if err == nil { // store.ErrStale is an error too
		s.cache.wait(ctx, revision-1, catchUp)
		s.cache.read(func(st *state) { known = st.revision >= revision })
	}
	if !known {
		return fleetapi.NewProblem(fleetapi.ProblemUnavailable,
			"this server cannot confirm that its records are current, as it does not reach enough of the others; "+
				"nothing was changed: try again, or ask another server")
	}
	return nil
}

// attempt is decide on the state that this server knows, for work that is repeated anyway.
func (s *Server) attempt(ctx context.Context, f decision) (revision int64, err error) {
	return s.attemptWith(ctx, s.cache.read, f, func(string) {})
}

// attemptWith is attempt with a way to read the state; note gets the key of each conflict.
func (s *Server) attemptWith(
	ctx context.Context, read func(func(*state)), f decision, note func(key string),
) (revision int64, err error) {
	for n := range attempts {
		t := &transaction{}
		read(func(st *state) { err = f(st, t) })
		if errors.Is(err, errNothing) {
			return 0, nil
		}
		if err == nil {
			revision, err = s.commit(ctx, t)
		}
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return revision, err
		}
		note(conflict.Key)
		s.cache.waitFor(ctx, conflict.Key, t, catchUp)
		select { // servers that conflict with each other should not do so again
		case <-time.After(rand.N(time.Duration(n+1) * time.Millisecond)): //nolint:gosec // no secret
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 0, fleetapi.NewProblem(fleetapi.ProblemUnavailable,
		"others have changed the same records all the time; nothing was changed: try again")
}

// commit makes a transaction, and applies it to this server's state at once.
func (s *Server) commit(ctx context.Context, t *transaction) (int64, error) {
	if t.err != nil {
		return 0, t.err
	}
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	if err := s.carry(ctx, t); err != nil {
		return 0, unavailable(err)
	}
	revision, err := s.Store.Commit(ctx, t.Txn)
	if err != nil {
		return 0, unavailable(err)
	}
	var events []store.Event
	for _, p := range t.Put {
		events = append(events, store.Event{Record: store.Record{Key: p.Key, Value: p.Value, Revision: revision}})
	}
	for _, key := range t.Delete {
		events = append(events, store.Event{Record: store.Record{Key: key, Revision: revision}, Deleted: true})
	}
	s.cache.take(revision, events, false)
	return revision, nil
}

// unavailable makes a problem of an error of the store that users should read.
func unavailable(err error) error {
	var conflict *store.ConflictError
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return fleetapi.NewProblem(fleetapi.ProblemUnavailable,
			"the store cannot write now, and a change that was under way may have been made: try again later")
	case errors.Is(err, store.ErrTooLarge):
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	case errors.As(err, &conflict):
		return err // the caller decides again
	}
	return err
}
