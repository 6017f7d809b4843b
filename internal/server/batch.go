package server

import (
	"context"
	"sync"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
)

// VMs that users create at the same time are decided on one after the other, each with the room that those before it
// take, and stored by one transaction: one at a time, each would wait until the disk has the one before it. If the
// transaction conflicts, all of them are decided on again. What is no new VM on the state of that moment is left to its
// request, which decides alone: a refusal, a name or a key that came twice, a record that is too large.

// mostTogether bounds the VMs of a transaction. Each writes and requires at most seven keys: see store.MaxKeys.
const mostTogether = 16

// mostBytes bounds the records of a transaction of several VMs.
const mostBytes = store.MaxSize / 4

// creation is a request for a new VM.
type creation struct {
	call      rest.Call
	vm        fleet.VM
	key, hash string // see Call.Repeat
	gone      <-chan struct{}
	done      chan struct{} // closed when the rest is final

	out fleetapi.VM
	err error
	// alone says that the request must decide by itself; apart, that it is not to be together with others again.
	alone, apart bool
}

// creations are the requests that wait for the next transaction.
type creations struct {
	mu      sync.Mutex
	waiting []*creation
	runs    bool
}

// createTogether lets a request wait until the VM was decided on together with others.
func (s *Server) createTogether(ctx context.Context, n *creation) {
	n.gone, n.done = ctx.Done(), make(chan struct{})
	s.creations.mu.Lock()
	s.creations.waiting = append(s.creations.waiting, n)
	if !s.creations.runs {
		s.creations.runs = true
		go s.createWaiting(context.WithoutCancel(ctx)) // a request that ends does not end those of others
	}
	s.creations.mu.Unlock()
	<-n.done
}

// createWaiting makes transactions until no request waits.
func (s *Server) createWaiting(ctx context.Context) {
	for {
		s.sched.turn.Lock() // those that come until then are in the next transaction
		s.creations.mu.Lock()
		all := s.creations.waiting
		some := all[:min(len(all), mostTogether)]
		s.creations.waiting = all[len(some):]
		s.creations.runs = len(some) > 0
		s.creations.mu.Unlock()
		if len(some) > 0 {
			s.createSome(ctx, some)
		}
		s.sched.turn.Unlock()
		if len(some) == 0 {
			return
		}
		for _, n := range some {
			close(n.done)
		}
	}
}

// createSome decides on VMs and stores them. The caller holds the scheduler's turn.
func (s *Server) createSome(ctx context.Context, all []*creation) {
	var in []*creation
	revision, err := s.attemptWith(ctx, s.readPlacing, func(st *state, t *transaction) error {
		if in = s.decideSome(st, t, all); len(in) == 0 {
			return errNothing
		}
		return nil
	}, func(key string) {
		s.forgetClaims(in)
		for _, n := range all { // another server has the same request, or has answered it
			n.apart = n.apart || n.key == key
		}
	})
	if err != nil {
		s.forgetClaims(in)
	}
	for _, n := range all {
		n.alone = true
	}
	for _, n := range in {
		n.alone, n.err, n.out.Revision = false, err, revision
	}
}

// forgetClaims has the next decision read the hosts of VMs that were decided on and not stored again.
func (s *Server) forgetClaims(in []*creation) {
	for _, n := range in {
		s.sched.noteHost(n.out.Host)
	}
}

// decideSome decides on VMs, and returns those that are in the transaction then.
func (s *Server) decideSome(st *state, t *transaction, all []*creation) (in []*creation) {
	taken, used, size := map[string]bool{}, map[string]fleetapi.Quota{}, 0
	for _, n := range all {
		select {
		case <-n.gone:
			continue
		default:
		}
		if n.apart || taken[n.vm.Name] || n.key != "" && taken[n.key] {
			continue
		}
		own := &transaction{}
		if s.decideOne(st, own, n, used[n.vm.Project]) != nil || size+own.size() > mostBytes {
			s.sched.noteHost(n.out.Host)
			continue
		}
		size += own.size()
		t.add(own)
		taken[n.vm.Name], taken[n.key] = true, true
		used[n.vm.Project] = plus(used[n.vm.Project], shareOf(&n.vm), 1)
		in = append(in, n)
	}
	return in
}

// decideOne decides on a VM, which the fleet has from then on. used is what those before it use in its project.
func (s *Server) decideOne(st *state, t *transaction, n *creation, used fleetapi.Quota) error {
	next := n.vm
	if err := admit(st, t, &next, used); err != nil {
		return err
	}
	d, why, err := s.decideHost(t, &next)
	if err != nil {
		return err
	}
	n.out = created(&next, why)
	s.putNew(t, n, &next)
	if d != nil {
		err = s.sched.fleet.Add(d)
	}
	return err
}

// created is what the user who creates a VM sees.
func created(vm *fleet.VM, why *fleetapi.Why) fleetapi.VM {
	return fleetapi.VM{VM: fleetapi.HideSecrets(*vm), State: fleetapi.StateOf(vm, nil, true), Why: why}
}

// putNew writes the records of a new VM.
func (s *Server) putNew(t *transaction, n *creation, vm *fleet.VM) {
	t.require(store.VMs+vm.Name, 0)
	t.put(store.VMs+vm.Name, *vm)
	if n.out.Why != nil {
		t.put(store.Reasons+vm.Name, n.out.Why)
	}
	if n.key != "" {
		t.require(n.key, 0)
		t.put(n.key, repeat{n.hash, vm.Name, s.Now().UTC()})
	}
	s.audit(t, &n.call, fleetapi.AboutVM, vm.Name, nil, n.out)
}
