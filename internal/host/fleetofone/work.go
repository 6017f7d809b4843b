package fleetofone

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
)

// errTransient is the error of a VM without a stored configuration.
var errTransient = guest.ErrTransient

// errGoesOn means that a change takes longer than its request waits.
var errGoesOn = errors.New("the change goes on")

// work is a change of a VM in progress.
type work struct {
	what  string // "created", "bound", ...
	by    string
	began time.Time
	vm    fleet.VM // that is being created; without a name: the VM exists
	// request identifies the request; nil: it cannot be repeated.
	request *journal.Request
	limit   time.Duration
	// answered: a request was answered before the end of the change, so that only the VM can show a refusal.
	answered bool
	done     chan struct{}
	err      error // once done
}

// text says in words what is in progress.
func (w *work) text() string { return fmt.Sprintf("is being %s by %s", w.what, w.by) }

// failure is a change that failed, or was refused after its request was answered.
type failure struct {
	what    string
	at      time.Time
	err     error
	refused bool // nothing has changed
}

// text says what did not happen, and why.
func (f *failure) text() string { return fmt.Sprintf("it was not %s: %v", f.what, f.err) }

// mostFailures bounds the failures that are remembered.
const mostFailures = 200

// Deadlines of changes. A bind copies memory.
const (
	changeTime = 10 * time.Minute
	bindTime   = 6 * time.Hour
)

func isNoFit(err error) bool {
	var no *place.NoFitError
	return errors.As(err, &no)
}

func isHidden(err error) bool {
	var hidden *operate.HiddenError
	return errors.As(err, &hidden)
}

// mayChange refuses changes of VMs that belong to the fleet of this host.
func (s *Service) mayChange(ctx context.Context, name string) error {
	if s.Fleet == nil || !s.Fleet(name) {
		return nil
	}
	server := "its server"
	if st, err := s.Daemon.Status(ctx); err == nil && st.Fleet != nil {
		server = "its server, " + st.Fleet.Server
	}
	return fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+name+" belongs to the fleet of this host: ask "+server)
}

// begin starts a change of a VM, and waits for its end while the request is patient. The error is errGoesOn if it
// goes on. A request that repeats the one in progress waits with it.
func (s *Service) begin(
	ctx context.Context, c rest.Call, name string, w work, do func(context.Context, *operate.Host) error,
) error {
	if err := s.mayChange(ctx, name); err != nil {
		return err
	}
	host, err := s.hostFor(ctx, c.User.Name)
	if err != nil {
		return err
	}
	w.by, w.began, w.done = c.User.Name, time.Now(), make(chan struct{})
	now, err := s.enter(name, &w)
	if err != nil {
		return err
	}
	if now == &w {
		//nolint:contextcheck // the change outlives its request, and ends with the service
		go s.carryOut(name, now, func(ctx context.Context) error { return do(ctx, host) })
	}
	patience := time.NewTimer(s.Patience)
	defer patience.Stop()
	select {
	case <-now.done:
		return problemOf(now.err)
	case <-patience.C:
		return s.answer(now)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer ends the wait of a request for a change that goes on, unless that has just ended.
func (s *Service) answer(w *work) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.done:
		return problemOf(w.err)
	default:
	}
	w.answered = true
	return errGoesOn
}

// enter records that a change begins. It returns the one in progress that the request repeats, if there is one.
func (s *Service) enter(name string, w *work) (*work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.works[name]
	switch {
	case s.closed || s.ctx.Err() != nil:
		return nil, fleetapi.NewProblem(fleetapi.ProblemUnavailable, "the daemon is stopping")
	case now == nil:
		s.works[name] = w
		s.changes++
		delete(s.failed, name)
		s.workers.Add(1)
		return w, nil
	case now.request != nil && w.request != nil && *now.request == *w.request:
		return now, nil
	}
	return nil, fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+name+" "+now.text()+": wait until that has ended")
}

// carryOut makes a change.
func (s *Service) carryOut(name string, w *work, do func(context.Context) error) {
	defer s.workers.Done()
	ctx, cancel := context.WithTimeout(s.ctx, w.limit)
	defer cancel()
	if err := s.Local.CloseInterrupted(ctx); err != nil {
		s.Log.Warn("interrupted changes have no end in the journal yet", "error", err)
	}
	w.err = do(ctx)
	s.mu.Lock()
	delete(s.works, name)
	s.changes++
	if failed := w.err != nil && failedOnHost(w.err); failed || w.err != nil && w.answered {
		s.Log.Error("a change failed", "vm", name, "what", w.what, "by", w.by, "error", w.err)
		if len(s.failed) >= mostFailures {
			clear(s.failed)
		}
		s.failed[name] = failure{w.what, time.Now(), w.err, !failed}
	}
	close(w.done)
	s.mu.Unlock()
}

// failedOnHost tells failures of the host from refusals, after which nothing has changed.
func failedOnHost(err error) bool {
	var p *fleetapi.Problem
	return errors.As(problemOf(err), &p) && p.Type == fleetapi.ProblemFailed
}
