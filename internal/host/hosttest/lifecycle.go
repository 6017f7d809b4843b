package hosttest

import (
	"errors"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A started guest is listed as defined; a removed one is not listed.
func testStartAndRemove(s *suite) {
	s.bothKinds(func(s *suite, name string, transient bool) {
		spec, p := s.start(name, guest.MemoryStrict, transient)
		g := s.find(name)
		if g.State != "running" || g.Persistent == transient {
			s.Errorf("guest is %s, persistent %v; want running, persistent %v", g.State, g.Persistent, !transient)
		}
		if g.UUID == "" || g.Hypervisor == "" {
			s.Errorf("UUID is %q and hypervisor %q; want both", g.UUID, g.Hypervisor)
		}
		threads := 1
		if s.lacks(PinHelpers) {
			threads = 0
		}
		if g.Config.VCPUs != 2 || g.Config.Memory != guestMemory || g.Config.IOThreads != threads {
			s.Errorf("guest has %d vCPUs, %v and %d I/O threads; want 2, %v, %d", g.Config.VCPUs,
				g.Config.Memory, g.Config.IOThreads, guestMemory, threads)
		}
		s.pinned(g, p)
		if tune := g.Config.NUMATune; s.lacks(BindMemory) {
			if tune != nil {
				s.Errorf("the target reports no memory mode; numatune is %+v", tune)
			}
		} else if tune == nil || tune.Mode != "strict" || !tune.Nodes.Equal(p.Nodes) {
			s.Errorf("numatune is %+v, want strict on nodes %s", tune, p.Nodes)
		}
		s.recorded(name, guest.Intent{Spec: spec, Placement: p})
		if !slices.IsSortedFunc(s.list(), func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) }) {
			s.Error("the list is not ascending by name")
		}
		if err := s.Hypervisor.Remove(s.ctx, name); err != nil {
			s.Fatalf("removing it: %v", err)
		}
		s.absent(name)
		if err := s.Hypervisor.Remove(s.ctx, name); !errors.Is(err, guest.ErrNotFound) {
			s.Errorf("removing it twice: error is %v, want guest.ErrNotFound", err)
		}
	})
}

// pinned compares the listed pins with a placement.
func (s *suite) pinned(g inventory.Guest, p guest.Placement) {
	s.Helper()
	for _, v := range p.VCPUs {
		s.equal("vCPU", g.Config.Pins[v.ID], v.CPUs)
	}
	if s.lacks(PinHelpers) {
		return
	}
	s.equal("the emulator", g.Config.EmulatorPin, p.Emulator)
	s.equal("I/O thread 1", g.Config.IOThreadPins[1], p.IOThread)
}

func (s *suite) equal(what string, got, want topology.CPUSet) {
	s.Helper()
	if !got.Equal(want) {
		s.Errorf("%s is pinned to CPUs %q, want %q", what, got, want)
	}
}

// A guest that powers off stays if it has a stored configuration.
func testPowerOff(s *suite) {
	s.bothKinds(func(s *suite, name string, transient bool) {
		spec, p := s.start(name, guest.MemoryStrict, transient)
		if err := s.PowerOff(s.ctx, name); err != nil {
			s.Fatal(err)
		}
		if transient {
			s.absent(name)
			return
		}
		g := s.find(name)
		if g.State != "shutoff" || g.PID != 0 {
			s.Errorf("guest is %s with process %d; want shutoff without one", g.State, g.PID)
		}
		s.recorded(name, guest.Intent{Spec: spec, Placement: p})
		if err := s.Hypervisor.Remove(s.ctx, name); err != nil {
			s.Errorf("removing a guest that does not run: %v", err)
		}
		s.absent(name)
	})
}

// Only a guest that does not run is undefined; a guest of its name can be started again.
func testUndefine(s *suite) {
	s.bothKinds(func(s *suite, name string, transient bool) {
		spec, p := s.start(name, guest.MemoryStrict, transient)
		before := s.find(name)
		if err := s.Hypervisor.Undefine(s.ctx, name); !errors.Is(err, guest.ErrRefused) {
			s.Errorf("a guest that runs: error is %v, want guest.ErrRefused", err)
		}
		s.unchanged(before)
		if transient {
			return
		}
		if err := errors.Join(s.PowerOff(s.ctx, name), s.Hypervisor.Undefine(s.ctx, name)); err != nil {
			s.Fatal(err)
		}
		s.absent(name)
		definition, err := s.Render(spec, p)
		if err == nil {
			err = errors.Join(s.Hypervisor.Start(s.ctx, definition, false), s.Hypervisor.Remove(s.ctx, name))
		}
		if err != nil {
			s.Errorf("a guest of the same name: %v", err)
		}
	})
}

// A guest that does not run has another size at its next start.
func testResize(s *suite) {
	const name = "hosttest-resized"
	spec, p := s.start(name, guest.MemoryStrict, s.lacks(StoreConfiguration))
	next := p
	spec.VCPUs, spec.Memory = 1, spec.Memory/2
	next.VCPUs, next.Cells = p.VCPUs[:1], slices.Clone(p.Cells[:1])
	next.Cells[0].VCPUs, next.Cells[0].Memory = topology.SetOf[guest.VCPUID](0), spec.Memory
	intent := guest.Intent{Spec: spec, Placement: next}
	if s.lacks(StoreConfiguration) {
		if err := s.Hypervisor.Resize(s.ctx, name, intent); !errors.Is(err, guest.ErrTransient) {
			s.Errorf("error is %v, want guest.ErrTransient", err)
		}
		return
	}
	if err := errors.Join(s.PowerOff(s.ctx, name), s.Hypervisor.Resize(s.ctx, name, intent)); err != nil {
		s.Fatal(err)
	}
	for _, launch := range []bool{false, true} {
		if launch {
			if err := s.Hypervisor.Launch(s.ctx, name); err != nil {
				s.Fatal(err)
			}
		}
		g := s.find(name)
		if g.Config.VCPUs != 1 || g.Config.Memory != spec.Memory {
			s.Errorf("started %v: %d vCPUs and %v; want 1 and %v", launch, g.Config.VCPUs, g.Config.Memory, spec.Memory)
		}
		s.pinned(g, next)
		s.recorded(name, intent)
	}
}

// A second guest of the same name is refused, and the first one does not
// change.
func testNameIsTakenOnce(s *suite) {
	s.bothShared(func(s *suite, name string, transient bool) {
		_, spec, p := s.shared(transient)
		before := s.find(name)
		spec.VCPUs, p.VCPUs, p.Cells[0].VCPUs = 1, p.VCPUs[:1], topology.SetOf[guest.VCPUID](0)
		for _, second := range []bool{true, false} {
			definition, err := s.Render(spec, p)
			if err != nil {
				s.Fatal(err)
			}
			if err := s.Hypervisor.Start(s.ctx, definition, second); !errors.Is(err, guest.ErrExists) {
				s.Errorf("a second guest, transient %v: error is %v, want guest.ErrExists", second, err)
			}
		}
		s.unchanged(before)
	})
}

func testBadDefinition(s *suite) {
	before := len(s.list())
	for _, text := range []string{"", "no definition", "<domain", "{", "<domain type='test'/>"} {
		definition := guest.Definition{Name: "hosttest-bad", Text: []byte(text)}
		if err := s.Hypervisor.Start(s.ctx, definition, false); err == nil {
			s.Errorf("definition %q is accepted", text)
		}
	}
	if after := len(s.list()); after != before {
		s.Errorf("%d guests are listed, want %d as before", after, before)
	}
}

// hostileNames are legal for a spec, and look like markup, options, numbers or
// commands. They are few, since a guest is started for each.
var hostileNames = []string{`a&b<c>"d']]>$(reboot) %s,x=y\ naïve  客`, "--help", "4711"}

// A guest of a hostile name is started, found, changed and removed under it.
// An implementation may refuse a name; then nothing of the guest is left.
func testHostileNames(s *suite) {
	for _, name := range hostileNames {
		spec, p := s.small(name, guest.MemoryStrict)
		if _, err := spec.Normalize(); err != nil {
			s.Errorf("name %q: %v; the suite is wrong", name, err)
		}
		if err := s.define(spec, p, true); err != nil {
			s.Logf("name %q is refused: %v", name, err)
			s.absent(name)
			continue
		}
		s.recorded(name, guest.Intent{Spec: spec, Placement: p})
		if err := s.Hypervisor.Forget(s.ctx, name); err != nil {
			s.Errorf("name %q: forgetting its intent: %v", name, err)
		}
		if g := s.find(name); g.Managed {
			s.Errorf("name %q: the intent is still there", name)
		}
		if err := s.Hypervisor.Remove(s.ctx, name); err != nil {
			s.Errorf("name %q: removing it: %v", name, err)
		}
		s.absent(name)
	}
}
