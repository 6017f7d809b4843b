package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
)

// outbox holds the latest report and statuses until the server has them. A newer value
// replaces one that was not sent.
type outbox struct {
	mu       *sync.Mutex
	wake     chan struct{}
	latest   *fleet.Report
	digest   [sha256.Size]byte // of the last report that was to be sent
	pending  bool              // latest is not sent yet
	statuses map[string]fleet.VMStatus
	unsent   map[string]bool
	sequence int64  // of the last status; see beginSequence
	repeated string // the VM whose status repeatOne sent again last
}

func newOutbox() outbox {
	return outbox{mu: new(sync.Mutex), wake: make(chan struct{}, 1), statuses: map[string]fleet.VMStatus{},
		unsent: map[string]bool{}}
}

func (o *outbox) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// report sends a report if it differs from the last one.
func (o *outbox) report(r fleet.Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of := digest(r.Inventory)
	if o.latest != nil && of == o.digest {
		o.latest = &r // the one to repeat
		return
	}
	o.latest, o.digest, o.pending = &r, of, true
	o.ring()
}

// status sends a status if it differs from the last one.
func (o *outbox) status(s fleet.VMStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.statuses[s.Name]; ok && sameStatus(last, s) {
		return
	}
	o.sequence++
	s.Sequence = o.sequence
	o.statuses[s.Name], o.unsent[s.Name] = s, true
	o.ring()
}

// retain forgets the statuses of other VMs.
func (o *outbox) retain(these map[string]fleet.VMStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := func(name string) bool { _, ok := these[name]; return !ok }
	maps.DeleteFunc(o.statuses, func(name string, _ fleet.VMStatus) bool { return gone(name) })
	maps.DeleteFunc(o.unsent, func(name string, _ bool) bool { return gone(name) })
}

// repeat sends everything again: the server may be another one.
func (o *outbox) repeat() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = o.latest != nil
	for name := range o.statuses {
		o.unsent[name] = true
	}
	o.ring()
}

// repeatOne sends one status again, of all VMs in turn, and returns how many there are.
func (o *outbox) repeatOne() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := slices.Sorted(maps.Keys(o.statuses))
	if len(names) == 0 {
		return 0
	}
	i, found := slices.BinarySearch(names, o.repeated)
	if found {
		i++
	}
	o.repeated = names[i%len(names)]
	o.unsent[o.repeated] = true
	o.ring()
	return len(names)
}

// next returns one value to send; both are nil if there is none.
func (o *outbox) next() (r *fleet.Report, s *fleet.VMStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending {
		o.pending = false
		return o.latest, nil
	}
	if names := slices.Sorted(maps.Keys(o.unsent)); len(names) > 0 {
		delete(o.unsent, names[0])
		status := o.statuses[names[0]]
		return nil, &status
	}
	return nil, nil
}

// back takes a value back that could not be sent, unless there is a newer one.
func (o *outbox) back(r *fleet.Report, s *fleet.VMStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r != nil {
		o.pending = true
	}
	if s != nil {
		if _, wanted := o.statuses[s.Name]; wanted {
			o.unsent[s.Name] = true
		}
	}
}

// repeatStatuses sends each status again in the course of RepeatEvery, one at a time: a server that has lost one gets
// it again, although nothing changes and the connection stays.
func (a *Agent) repeatStatuses(ctx context.Context) {
	most := min(a.RepeatEvery, time.Minute)       // the next VM may come at any time
	for wait := rand.N(most); ctx.Err() == nil; { //nolint:gosec // no secret; hosts start at the same time
		sleep(ctx, wait)
		wait = min(most, a.RepeatEvery/time.Duration(max(1, a.outbox.repeatOne())))
	}
}

// sendAll sends reports and statuses as they change, and tries again after an error.
func (a *Agent) sendAll(ctx context.Context, c *connection) {
	for ctx.Err() == nil {
		r, s := a.outbox.next()
		var err error
		switch {
		case r != nil:
			err = c.send(ctx, http.MethodPut, "/agent/v1/report", r, nil)
		case s != nil:
			err = c.send(ctx, http.MethodPut, "/agent/v1/vms/"+url.PathEscape(s.Name)+"/status", s, nil)
			a.Log.Debug("reported a VM", "vm", s.Name, "phase", s.Phase, "generation", s.Generation,
				"sequence", s.Sequence, "migration", phaseOf(s.Migration), "server", c.server(), "error", err)
		default:
			select {
			case <-ctx.Done():
			case <-a.outbox.wake:
			}
			continue
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		var refused *RefusedError
		if errors.As(err, &refused) && s != nil && refused.Status == http.StatusNotFound {
			continue // the VM is not in the fleet any more
		}
		a.Log.Debug("the fleet's server did not take a report", "error", err)
		a.outbox.back(r, s)
		wait := a.LeastWait
		if refused != nil {
			wait = max(wait, min(10*time.Second, a.MostWait))
		}
		sleep(ctx, wait)
	}
}

// phaseOf returns the phase of a part of a migration; empty: there is none.
func phaseOf(m *fleet.MigrationStatus) fleet.MigrationPhase {
	if m == nil {
		return ""
	}
	return m.Phase
}
