package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// spoilingStore lets others change a key before some transactions.
type spoilingStore struct {
	store.Store
	// spoil is how many of the next transactions conflict in the key.
	spoil atomic.Int64
	key   string
}

func (s *spoilingStore) Commit(ctx context.Context, t store.Txn) (int64, error) {
	if s.spoil.Add(-1) >= 0 {
		if _, err := s.Store.Commit(ctx, store.Txn{Put: []store.Put{{Key: s.key, Value: []byte("{}")}}}); err != nil {
			return 0, err
		}
	}
	return s.Store.Commit(ctx, t)
}

// together is a server with one host of 8 CPUs.
type together struct {
	*Server
	store *spoilingStore
	call  rest.Call
}

func newTogether(t *testing.T) *together {
	t.Helper()
	return newTogetherOn(t, memory.New(memory.Options{}))
}

func newTogetherOn(t *testing.T, in store.Store) *together {
	t.Helper()
	base := &spoilingStore{Store: in, key: store.Usage + "default"}
	if _, err := FirstAdmin(t.Context(), base, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, _ := startServer(t, base, ca, &setup{})
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:64G")
	if err != nil {
		t.Fatal(err)
	}
	addHosts(t, []*Server{s}, base, []string{"a"}, topo)
	op, _ := fleetapi.OperationByID("create-vm")
	return &together{s, base, rest.Call{Operation: op, User: &fleetapi.User{Name: "admin", Role: fleetapi.Admin,
		Projects: []string{fleetapi.AllProjects}}}}
}

// create creates VMs at the same time: their requests wait until all of them are there.
func (s *together) create(t *testing.T, all []fleetapi.VMCreate, keys ...string) ([]fleetapi.VM, []error) {
	t.Helper()
	s.sched.turn.Lock()
	made, errs := make([]fleetapi.VM, len(all)), make([]error, len(all))
	var requests sync.WaitGroup
	for i, v := range all {
		call := s.call
		if len(keys) > 0 {
			call.Key = keys[i]
		}
		requests.Go(func() { made[i], errs[i] = s.CreateVM(t.Context(), call, v) })
	}
	waitFor(t, func() bool {
		s.creations.mu.Lock()
		defer s.creations.mu.Unlock()
		return len(s.creations.waiting) == len(all)
	})
	s.sched.turn.Unlock()
	requests.Wait()
	return made, errs
}

func someVMs(n, vcpus int) (out []fleetapi.VMCreate) {
	for i := range n {
		out = append(out, vmOf(fmt.Sprint("v", i), vcpus, topology.GiB))
	}
	return out
}

func TestCreateTogether_InOneTransaction(t *testing.T) {
	t.Parallel()
	s := newTogether(t)
	made, errs := s.create(t, someVMs(mostTogether, 1))
	revisions := map[int64]bool{}
	for i := range made {
		if errs[i] != nil || made[i].Host != "a" || made[i].Why == nil {
			t.Errorf("%s: %+v, %v", made[i].Name, made[i], errs[i])
		}
		revisions[made[i].Revision] = true
		stored, err := s.VM(t.Context(), s.call, made[i].Name)
		if err != nil || stored.Revision != made[i].Revision || stored.Host != "a" || stored.Why == nil {
			t.Errorf("stored: %+v, %v", stored, err)
		}
	}
	if len(revisions) != 1 {
		t.Errorf("%d transactions for %d VMs", len(revisions), len(made))
	}
}

// Quotas, names, keys and the room of hosts count as if the requests had come one after the other.
func TestCreateTogether_EachCountsForThoseAfterIt(t *testing.T) {
	t.Parallel()
	s := newTogether(t)
	if _, err := s.PutProject(t.Context(), s.call, "default",
		fleetapi.ProjectEdit{Quota: fleetapi.Quota{VMs: 5}}); err != nil {
		t.Fatal(err)
	}
	same := someVMs(2, 1)
	same[1].Spec.Name = same[0].Spec.Name
	_, errs := s.create(t, same)
	if problemType(errs[0]) == problemType(errs[1]) || problemType(errs[0])+problemType(errs[1]) !=
		fleetapi.ProblemExists {
		t.Errorf("the same name twice: %v", errs)
	}
	again := []fleetapi.VMCreate{vmOf("again", 1, topology.GiB), vmOf("again", 1, topology.GiB)}
	twice, errs := s.create(t, again, "key", "key")
	if errs[0] != nil || errs[1] != nil || twice[0].Revision != twice[1].Revision {
		t.Errorf("the same request twice: %v, %v", twice, errs)
	}
	made, errs := s.create(t, someVMs(10, 1)[1:])
	created := 0
	for i := range made {
		switch {
		case errs[i] == nil:
			created++
		case problemType(errs[i]) != fleetapi.ProblemQuota:
			t.Error(errs[i])
		}
	}
	if created != 3 {
		t.Errorf("%d VMs were created, the quota has room for 3", created)
	}
}

// VMs that were decided on and not stored take no room: all that fit are placed after conflicts, and no more.
func TestCreateTogether_DecidesAgainAfterAConflict(t *testing.T) {
	t.Parallel()
	s := newTogether(t)
	var vms []fleetapi.VMCreate
	for _, v := range someVMs(5, 2) { // on 8 CPUs
		v.Spec.CPU.Binding = "exclusive"
		vms = append(vms, v)
	}
	s.store.spoil.Store(3)
	made, errs := s.create(t, vms)
	placed, exclusive := 0, topology.CPUSet{}
	for i := range made {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		if made[i].Host == "" {
			continue
		}
		placed++
		if own := made[i].Placement.Exclusive(); own.Len() != 2 || own.Intersects(exclusive) {
			t.Errorf("%s has CPUs %v, others %v", made[i].Name, own, exclusive)
		} else {
			exclusive = exclusive.Union(own)
		}
	}
	if placed != 4 || s.store.spoil.Load() >= 0 {
		t.Errorf("%d VMs were placed, 4 fit; %d conflicts are left", placed, s.store.spoil.Load())
	}
}

// A request that ends before its turn creates nothing, and others are created.
func TestCreateTogether_WithoutThoseThatHaveLeft(t *testing.T) {
	t.Parallel()
	s := newTogether(t)
	ended, end := context.WithCancel(t.Context())
	end()
	left := &creation{call: s.call, vm: fleet.VM{Name: "left", Project: "default"}}
	var other *creation
	s.sched.turn.Lock()
	var requests sync.WaitGroup
	requests.Go(func() { s.createTogether(ended, left) })
	requests.Go(func() {
		vm, err := s.newVM(&s.call, &fleetapi.VMCreate{Project: "default", Spec: vmOf("stays", 1, topology.GiB).Spec})
		if err != nil {
			t.Error(err)
		}
		other = &creation{call: s.call, vm: vm}
		s.createTogether(t.Context(), other)
	})
	waitFor(t, func() bool {
		s.creations.mu.Lock()
		defer s.creations.mu.Unlock()
		return len(s.creations.waiting) == 2
	})
	s.sched.turn.Unlock()
	requests.Wait()
	if !left.alone || left.err != nil || other.alone || other.err != nil || other.out.Host != "a" {
		t.Errorf("left: %+v; other: %+v", left, other)
	}
}
