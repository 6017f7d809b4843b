package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// gatedStore has transactions of VMs, or confirmations of the state, wait at a gate.
type gatedStore struct {
	store.Store
	commits, lists atomic.Pointer[gate] // nil: none
}

// gate says that somebody has arrived, and lets nobody pass before it is opened.
type gate struct{ arrived, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) pass() {
	if g != nil {
		g.arrived <- struct{}{}
		<-g.open
	}
}

func (s *gatedStore) Commit(ctx context.Context, t store.Txn) (int64, error) {
	for _, p := range t.Put {
		if strings.HasPrefix(p.Key, store.VMs) {
			s.commits.Load().pass()
			break
		}
	}
	return s.Store.Commit(ctx, t)
}

func (s *gatedStore) List(ctx context.Context, prefix string) ([]store.Record, int64, error) {
	if prefix == store.Schema {
		s.lists.Load().pass()
	}
	return s.Store.List(ctx, prefix)
}

// within fails unless a function returns while others wait at a gate.
func within(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("%s waits for the other request", what)
	}
}

// begin starts a request, and returns once it is at the gate; end opens the gate and waits for the request.
func begin(t *testing.T, at *gate, f func() error) (end func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	<-at.arrived
	return func() {
		close(at.open)
		if err := <-done; err != nil {
			t.Errorf("the request that waited: %v", err)
		}
	}
}

func TestDryRun_HoldsNoOtherRequestUpWhileItConfirms(t *testing.T) {
	t.Parallel()
	gated := &gatedStore{Store: memory.New(memory.Options{})}
	s, at := newTogetherOn(t, gated), newGate()
	gated.lists.Store(at)
	dry := s.call
	dry.DryRun = true
	end := begin(t, at, func() error {
		_, err := s.CreateVM(t.Context(), dry, vmOf("dry", 1, topology.GiB))
		return err
	})
	within(t, "a request that creates a VM", func() error {
		_, err := s.CreateVM(t.Context(), s.call, vmOf("made", 1, topology.GiB))
		return err
	})
	within(t, "a request that stops a VM", func() error {
		_, err := s.StopVM(t.Context(), s.call, "made")
		return err
	})
	end()
}

func TestDryRunsAndReads_WaitForNoCommit(t *testing.T) {
	t.Parallel()
	gated := &gatedStore{Store: memory.New(memory.Options{})}
	s, at := newTogetherOn(t, gated), newGate()
	if _, err := s.CreateVM(t.Context(), s.call, vmOf("before", 1, topology.GiB)); err != nil {
		t.Fatal(err)
	}
	gated.commits.Store(at)
	end := begin(t, at, func() error {
		_, err := s.CreateVM(t.Context(), s.call, vmOf("made", 1, topology.GiB))
		return err
	})
	dry := s.call
	dry.DryRun = true
	within(t, "a dry run", func() error {
		_, err := s.CreateVM(t.Context(), dry, vmOf("dry", 1, topology.GiB))
		return err
	})
	within(t, "a dry run of a bind", func() error {
		_, err := s.BindVM(t.Context(), dry, "before")
		return err
	})
	within(t, "a read", func() error {
		_, err := s.VM(t.Context(), s.call, "before")
		return err
	})
	within(t, "a refusal", func() error {
		_, err := s.StopVM(t.Context(), s.call, "none")
		if problemType(err) == fleetapi.ProblemNotFound {
			return nil
		}
		return err
	})
	end()
}
