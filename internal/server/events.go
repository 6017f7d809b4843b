package server

import (
	"context"
	"sync"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
)

// waiting is how many changes a receiver of events may be behind before its stream ends.
const waiting = 1024

// broadcast sends changes to all who follow events.
type broadcast struct {
	mu        sync.Mutex
	receivers map[chan change]bool
	closed    bool
}

func newBroadcast() *broadcast { return &broadcast{receivers: map[chan change]bool{}} }

func (b *broadcast) noteChange(_ *state, c change) {
	if len(c.hosts) == 0 && len(c.vms) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.receivers {
		select {
		case r <- c:
		default: // too slow: it must begin again
			delete(b.receivers, r)
			close(r)
		}
	}
}

func (b *broadcast) join() chan change {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := make(chan change, waiting)
	if b.closed {
		close(r)
		return r
	}
	b.receivers[r] = true
	return r
}

func (b *broadcast) leave(r chan change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.receivers[r] {
		delete(b.receivers, r)
		close(r)
	}
}

func (b *broadcast) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for r := range b.receivers {
		delete(b.receivers, r)
		close(r)
	}
}

// Events implements rest.Service. An event has the state at the time of sending.
func (s *Server) Events(ctx context.Context, c rest.Call) (<-chan fleetapi.Event, error) {
	in, out := s.events.join(), make(chan fleetapi.Event)
	go func() {
		defer close(out)
		defer s.events.leave(in)
		for {
			select {
			case <-ctx.Done():
				return
			case what, more := <-in:
				if !more {
					return
				}
				for _, e := range s.eventsOf(what, c.User) {
					select {
					case out <- e:
					case <-ctx.Done():
						return
					}
				}
			}
		}
	}()
	return out, nil
}

// eventsOf returns what a user may see of a change.
func (s *Server) eventsOf(what change, u *fleetapi.User) (out []fleetapi.Event) {
	s.cache.read(func(st *state) {
		for _, name := range sortedKeys(what.hosts) {
			e := fleetapi.Event{Revision: what.revision, Kind: fleetapi.EventHost, Name: name}
			if h, ok := st.hosts[name]; ok {
				shown := s.showHost(st, name, h)
				e.Host = &shown
			} else {
				e.Deleted = true
			}
			out = append(out, e)
		}
		for _, name := range sortedKeys(what.vms) {
			e := fleetapi.Event{Revision: what.revision, Kind: fleetapi.EventVM, Name: name}
			vm, ok := st.vm(name)
			switch {
			case ok && !u.Has(vm.value.Project):
				continue
			case ok:
				shown := s.showVM(st, vm)
				e.VM = &shown
			case !u.Has(fleetapi.AllProjects): // the project of a VM that is gone is not known
				continue
			default:
				e.Deleted = true
			}
			out = append(out, e)
		}
	})
	return out
}
