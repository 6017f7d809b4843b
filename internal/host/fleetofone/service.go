// Package fleetofone does the operations of the fleet's API for one host, without a server: the daemon serves them
// on its socket. Changes are those of package operate, which commands on the host use as well: both have the same
// claims, the same journal and the same intents, and see the same VMs. The package has no records of its own.
package fleetofone

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// Daemon is the daemon whose host is served.
type Daemon interface {
	Status(ctx context.Context) (status.Status, error)
	// Inventory returns the host as last observed, with loads.
	Inventory(ctx context.Context) (inventory.Host, error)
	// Policy returns the policy in force.
	Policy(ctx context.Context) (policy.Policy, error)
}

// Options are the parameters of a service. Fields without a comment must be set.
type Options struct {
	// Local is what changes act on; each has its user, and the policy in force.
	Local  *operate.Host
	Daemon Daemon
	// Machines makes the machines of new VMs, and Types are those that it can make; empty: kvm and qemu.
	Machines operate.Machines
	Types    []string
	// Fleet reports whether a VM belongs to the fleet that the host has joined; nil: it has joined none.
	Fleet func(vm string) bool
	// User names who sent a request; nil: root.
	User func(ctx context.Context) string
	// Roster identifies the running guests at little cost; nil: events come when the host is observed anyway.
	Roster  func() string
	Version string
	Log     *slog.Logger

	// Grace is how long a VM has to power off when it is stopped; 0: 30 s.
	Grace time.Duration
	// Patience is how long a request waits for the end of its change; 0: 20 s. Then the answer says that the change
	// goes on.
	Patience time.Duration
	// Every is the time between two looks for events; 0: 1 s.
	Every time.Duration
}

// Service answers for one host.
type Service struct {
	Options
	ctx    context.Context // ends changes in progress
	sight  sight
	made   origins
	served func() (http.Handler, error)

	mu      sync.Mutex
	works   map[string]*work // by VM
	failed  map[string]failure
	changes uint64 // counts those that began and those that ended
	closed  bool
	workers sync.WaitGroup
}

var _ rest.HostService = (*Service)(nil)

// New makes a service whose changes end with ctx. Wait waits for them.
func New(ctx context.Context, o Options) *Service {
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.Patience = cmp.Or(o.Patience, 20*time.Second)
	o.Every = cmp.Or(o.Every, time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.User == nil {
		o.User = func(context.Context) string { return "root" }
	}
	if len(o.Types) == 0 {
		o.Types = []string{inventory.MachineKVM, inventory.MachineQEMU}
	}
	host := *o.Local
	host.Loads = o.Daemon.Inventory
	o.Local = &host
	s := &Service{Options: o, ctx: ctx, sight: newSight(), works: map[string]*work{}, failed: map[string]failure{}}
	//nolint:contextcheck // each request has its own
	s.served = sync.OnceValues(func() (http.Handler, error) {
		defer debug.FreeOSMemory() // making the routes leaves 8 MiB of garbage, as much as the daemon's heap
		return rest.HostHandler(s, o.Log)
	})
	return s
}

// Wait refuses further changes, and waits for the end of those in progress: the context has ended.
func (s *Service) Wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.workers.Wait()
}

// ServeHTTP answers requests. The routes are made for the first one: most daemons never get any.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, err := s.served()
	if err != nil {
		s.Log.Error("the API is not served", "error", err)
		http.Error(w, "the API is not served: the daemon's log has the reason", http.StatusInternalServerError)
		return
	}
	h.ServeHTTP(w, r)
}

// Authenticate implements rest.HostService. All that may open the socket may do everything.
func (s *Service) Authenticate(ctx context.Context, _ string) (*fleetapi.User, error) {
	return &fleetapi.User{Name: s.User(ctx), Role: fleetapi.Admin, Projects: []string{fleetapi.AllProjects}}, nil
}

// Info implements rest.HostService.
func (s *Service) Info() fleetapi.ServerInfo {
	return fleetapi.ServerInfo{Version: s.Version, API: "v1"}
}

// hostFor returns the host for a change by a user.
func (s *Service) hostFor(ctx context.Context, user string) (*operate.Host, error) {
	host := *s.Local
	host.By = user
	var err error
	if host.Policy, err = s.Daemon.Policy(ctx); err != nil {
		return nil, unavailable(err)
	}
	return &host, nil
}

func unavailable(err error) error {
	return fleetapi.NewProblem(fleetapi.ProblemUnavailable, err.Error())
}

// sight is the last observation of the host, as long as requests wait for one.
type sight struct {
	one     chan struct{} // held while the host is observed
	waiting *atomic.Int32 // requests
	began   time.Time
	host    *inventory.Host
}

func newSight() sight { return sight{one: make(chan struct{}, 1), waiting: new(atomic.Int32)} }

// look observes the host after it was asked to, so that each request sees what came before it. Requests at the same
// time share an observation, and do not change it.
func (s *Service) look(ctx context.Context) (*inventory.Host, error) {
	asked := time.Now()
	s.sight.waiting.Add(1)
	select {
	case s.sight.one <- struct{}{}:
	case <-ctx.Done():
		s.sight.waiting.Add(-1)
		return nil, ctx.Err()
	}
	defer func() {
		if s.sight.waiting.Add(-1) == 0 {
			s.sight.host, s.sight.began = nil, time.Time{} // a large host's is large
		}
		<-s.sight.one
	}()
	if s.sight.began.After(asked) {
		return s.sight.host, nil
	}
	ctx, cancel := context.WithTimeout(ctx, operate.ObserveTime)
	defer cancel()
	began := time.Now()
	h, err := s.Local.ObserveLoads(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	s.sight.host, s.sight.began = &h, began
	return &h, nil
}

// complete is look, and refuses a host of which a hypervisor hides VMs: unseen is not absent.
func (s *Service) complete(ctx context.Context) (*inventory.Host, error) {
	h, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := operate.RoomIsKnown(h); err != nil {
		return nil, unavailable(err)
	}
	return h, nil
}

// find returns a VM of the host.
func (s *Service) find(ctx context.Context, name string) (*inventory.Host, *inventory.Guest, error) {
	h, err := s.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	if g, ok := h.Guest(name); ok {
		return h, g, nil
	}
	return h, nil, problemOf(operate.Missing(*h, name))
}

// refusals are the problems by which errors of package operate are answered.
func refusals() map[error]fleetapi.ProblemType {
	return map[error]fleetapi.ProblemType{
		operate.ErrNoGuest: fleetapi.ProblemNotFound, operate.ErrExists: fleetapi.ProblemExists,
		operate.ErrBusy: fleetapi.ProblemConflict, operate.ErrNotOurs: fleetapi.ProblemConflict,
		operate.ErrRuns:   fleetapi.ProblemConflict,
		operate.ErrUnseen: fleetapi.ProblemUnavailable, operate.ErrPlacement: fleetapi.ProblemNoHost,
		operate.ErrMachine: fleetapi.ProblemInvalid, errTransient: fleetapi.ProblemConflict,
		context.Canceled: fleetapi.ProblemUnavailable, context.DeadlineExceeded: fleetapi.ProblemUnavailable,
	}
}

// problemOf returns an error as users should read it: they may read all of the host's.
func problemOf(err error) error {
	var p *fleetapi.Problem
	if err == nil || errors.As(err, &p) {
		return err
	}
	kind := fleetapi.ProblemFailed
	for reason, as := range refusals() {
		if errors.Is(err, reason) {
			kind = as
		}
	}
	switch {
	case isNoFit(err):
		kind = fleetapi.ProblemNoHost
	case isHidden(err):
		kind = fleetapi.ProblemUnavailable
	}
	return fleetapi.NewProblem(kind, err.Error())
}
