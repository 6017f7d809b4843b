package hosttest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// suite is one test on one target.
type suite struct {
	*testing.T
	Target
	ctx  context.Context
	node topology.Node // where the guests are placed
	// running are the guests that tests share, by name.
	running map[string]bool
}

func newSuite(t *testing.T, target Target) *suite {
	t.Helper()
	s := (&suite{Target: target, running: map[string]bool{}}).as(t)
	for _, n := range target.Topology.Nodes { // the last one: node 0 is the default for everything
		if n.CPUs.Len() >= 2 && n.Memory >= 256*topology.MiB {
			s.node = n
		}
	}
	if s.node.CPUs.Len() == 0 {
		t.Fatal("the target has no node with two CPUs and 256 MiB")
	}
	return s
}

// as is the suite in another test, with a time limit of its own.
func (s *suite) as(t *testing.T) *suite {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	t.Cleanup(cancel)
	one := *s
	one.T, one.ctx = t, ctx
	return &one
}

const guestMemory = 32 * topology.MiB

// first and last are CPU sets of one CPU of the guests' node.
func (s *suite) first() topology.CPUSet { return topology.SetOf(s.node.CPUs.IDs()[0]) }
func (s *suite) last() topology.CPUSet {
	ids := s.node.CPUs.IDs()
	return topology.SetOf(ids[len(ids)-1])
}

// small is a guest of two vCPUs with one I/O thread, all memory on one node.
func (s *suite) small(name string, mode guest.MemoryMode) (guest.Spec, guest.Placement) {
	on := topology.SetOf(s.node.ID)
	spec := guest.Spec{Name: name, VCPUs: 2, Memory: guestMemory, CPU: guest.CPUSpec{IOThreads: 1},
		Binding: guest.MemorySpec{Mode: mode, Immediate: true}, Topology: guest.TopologySpec{Mode: guest.TopologyOff}}
	p := guest.Placement{
		Guest: name, Nodes: on, MemoryMode: mode, CPUMode: guest.CPURange, Immediate: true, Movable: true,
		Cells:    []guest.Cell{{VCPUs: topology.SetOf[guest.VCPUID](0, 1), Memory: guestMemory, Nodes: on}},
		VCPUs:    []guest.VCPU{{ID: 0, CPUs: s.first()}, {ID: 1, CPUs: s.last()}},
		Emulator: s.node.CPUs, IOThread: s.first(), IOThreads: 1,
		Reservations: []guest.Reservation{{Node: s.node.ID, Memory: guestMemory, VCPUs: 2}},
	}
	return spec, p
}

// start starts a small guest and removes it after the test.
func (s *suite) start(name string, mode guest.MemoryMode, transient bool) (guest.Spec, guest.Placement) {
	s.Helper()
	spec, p := s.small(name, mode)
	if err := s.define(spec, p, transient); err != nil {
		s.Fatalf("starting guest %q: %v", name, err)
	}
	return spec, p
}

// sharedName is the name of the strict guest that tests share, of either kind.
func sharedName(transient bool) string {
	if transient {
		return "hosttest-shared-transient"
	}
	return "hosttest-shared-stored"
}

// shared returns a running strict guest as start defines it, which tests use
// one after the other. It starts the guest if it does not run, and restores its
// definition if an earlier test has changed it. No test relies on another.
func (s *suite) shared(transient bool) (string, guest.Spec, guest.Placement) {
	s.Helper()
	name := sharedName(transient)
	spec, p := s.small(name, guest.MemoryStrict)
	if s.running[name] && s.restore(name, guest.Intent{Spec: spec, Placement: p}) {
		return name, spec, p
	}
	s.spend(name)
	definition, err := s.Render(spec, p)
	if err == nil {
		err = s.Hypervisor.Start(s.ctx, definition, transient)
	}
	if err != nil {
		s.Fatalf("starting guest %q: %v", name, err)
	}
	s.running[name] = true
	return name, spec, p
}

// restore restores the definition of a shared guest. It reports false if that
// is impossible.
func (s *suite) restore(name string, want guest.Intent) bool {
	s.Helper()
	p, h := want.Placement, s.Hypervisor
	g, ok := named(s.list(), name)
	if !ok || g.State != "running" || h.Record(s.ctx, name, want) != nil {
		return false
	}
	for _, v := range p.VCPUs {
		if !g.Config.Pins[v.ID].Equal(v.CPUs) && h.PinVCPU(s.ctx, name, v.ID, v.CPUs) != nil {
			return false
		}
	}
	if s.lacks(PinHelpers) {
		return true
	}
	return (g.Config.EmulatorPin.Equal(p.Emulator) || h.PinEmulator(s.ctx, name, p.Emulator) == nil) &&
		(g.Config.IOThreadPins[1].Equal(p.IOThread) || h.PinIOThread(s.ctx, name, 1, p.IOThread) == nil)
}

// spend removes a shared guest that a test has ended or cannot leave to others.
func (s *suite) spend(name string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), removeTime)
	defer cancel()
	if err := s.Hypervisor.Remove(ctx, name); err != nil && !errors.Is(err, guest.ErrNotFound) {
		s.Errorf("removing guest %q: %v", name, err)
	}
	delete(s.running, name)
}

func (s *suite) define(spec guest.Spec, p guest.Placement, transient bool) error {
	s.Helper()
	definition, err := s.Render(spec, p)
	if err != nil {
		return err
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		if err := s.Hypervisor.Remove(ctx, spec.Name); err != nil && !errors.Is(err, guest.ErrNotFound) {
			s.Errorf("removing guest %q after the test: %v", spec.Name, err)
		}
	})
	return s.Hypervisor.Start(s.ctx, definition, transient)
}

// list returns all guests.
func (s *suite) list() []inventory.Guest {
	s.Helper()
	guests, err := s.Hypervisor.Guests(s.ctx)
	if err != nil {
		s.Fatalf("listing the guests: %v", err)
	}
	return guests
}

func named(guests []inventory.Guest, name string) (inventory.Guest, bool) {
	i := slices.IndexFunc(guests, func(g inventory.Guest) bool { return g.Name == name })
	if i < 0 {
		return inventory.Guest{}, false
	}
	return guests[i], true
}

// find returns a guest that must be listed.
func (s *suite) find(name string) inventory.Guest {
	s.Helper()
	g, ok := named(s.list(), name)
	if !ok {
		s.Fatalf("guest %q is not listed", name)
	}
	return g
}

// absent checks that a guest is not listed.
func (s *suite) absent(name string) {
	s.Helper()
	if g, ok := named(s.list(), name); ok {
		s.Errorf("guest %q is listed (%s), want it to be gone", name, g.State)
	}
}

// recorded checks the intent that is listed with a guest.
func (s *suite) recorded(name string, want guest.Intent) {
	s.Helper()
	g := s.find(name)
	if !g.Managed || g.Spec == nil || g.Placement == nil {
		s.Errorf("guest %q has no recorded intent", name)
		return
	}
	got := guest.Intent{Spec: *g.Spec, Placement: *g.Placement, Adopted: g.Adopted}
	if diff := cmp.Diff(document(s, want), document(s, got)); diff != "" {
		s.Errorf("intent of guest %q (-recorded +read):\n%s", name, diff)
	}
}

// document is a value as its JSON says, in which nil and empty are the same.
func document(s *suite, v any) (all any) {
	s.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// unchanged checks that a guest is listed as it was.
func (s *suite) unchanged(before inventory.Guest) {
	s.Helper()
	if diff := cmp.Diff(document(s, before), document(s, s.find(before.Name))); diff != "" {
		s.Errorf("guest %q was changed (-before +after):\n%s", before.Name, diff)
	}
}

// can checks how a call of a function ended: with success, or refused if the
// target lacks the function. It reports whether there is a result to check.
func (s *suite) can(f Function, before inventory.Guest, err error) bool {
	s.Helper()
	if !s.lacks(f) {
		if err != nil {
			s.Fatalf("%s: %v", f, err)
		}
		return true
	}
	if !errors.Is(err, guest.ErrRefused) {
		s.Errorf("%s: the target declares that it cannot; error is %v, want guest.ErrRefused", f, err)
	}
	s.unchanged(before)
	return false
}

func (s *suite) lacks(f Function) bool { return slices.Contains(s.Lacks, f) }

// bothKinds runs a test for a guest with a stored configuration and for a transient one. A target
// that stores none refuses the former, and starts nothing.
func (s *suite) bothKinds(test func(s *suite, name string, transient bool)) {
	for name, transient := range map[string]bool{"stored": false, "transient": true} {
		s.Run(name, func(t *testing.T) {
			if !transient && s.lacks(StoreConfiguration) {
				s.as(t).refusesStored("hosttest-" + name)
				return
			}
			test(s.as(t), "hosttest-"+name, transient)
		})
	}
}

// refusesStored checks that no guest with a stored configuration can be started.
func (s *suite) refusesStored(name string) {
	s.Helper()
	spec, p := s.small(name, guest.MemoryStrict)
	if err := s.define(spec, p, false); !errors.Is(err, guest.ErrRefused) {
		s.Errorf("starting a guest with a stored configuration: error is %v, want guest.ErrRefused", err)
	}
	s.absent(name)
}

// secondShared returns a shared guest other than the transient one.
func (s *suite) secondShared() string {
	s.Helper()
	if !s.lacks(StoreConfiguration) {
		name, _, _ := s.shared(false)
		return name
	}
	const name = "hosttest-second"
	s.start(name, guest.MemoryStrict, true)
	return name
}

// bothShared runs a test for the shared guests of both kinds.
func (s *suite) bothShared(test func(s *suite, name string, transient bool)) {
	s.bothKinds(func(s *suite, _ string, transient bool) { test(s, sharedName(transient), transient) })
}
