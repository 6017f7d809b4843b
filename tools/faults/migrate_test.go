package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/topology"
)

// simulated is a fleet's folder with the hosts h0 and h1; VM web runs on h0.
type simulated struct {
	*aFleet
	t      *testing.T
	intent guest.Intent
	h0, h1 *hypervisor
}

func simulate(t *testing.T) *simulated {
	t.Helper()
	folder := t.TempDir()
	s := &simulated{aFleet: &aFleet{folder: folder, shared: filepath.Join(folder, "shared")}, t: t}
	for _, dir := range []string{"shared/running", "h0", "h1", "h2"} {
		if err := os.MkdirAll(filepath.Join(folder, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.h0, s.h1 = s.start("h0"), s.start("h1")
	nodes := topology.SetOf[topology.NodeID](0)
	s.intent = guest.Intent{Spec: guest.Spec{Name: "web", VCPUs: 1, Memory: topology.GiB},
		Placement: guest.Placement{Guest: "web", Nodes: nodes, MemoryMode: guest.MemoryStrict, Cells: []guest.Cell{
			{Memory: topology.GiB, VCPUs: topology.SetOf[guest.VCPUID](0), Nodes: nodes}}}}
	definition, err := fake.Render(s.intent)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.h0.Start(t.Context(), definition, false); err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts the process of a host, after the former one was killed.
func (s *simulated) start(name string) *hypervisor {
	s.t.Helper()
	folder := filepath.Join(s.folder, name)
	h := &hypervisor{Host: fake.MustNew(machine), folder: folder, shared: s.shared, name: name,
		libvirtd: connection{libvirtdFile(folder)}}
	if err := h.load(); err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *simulated) migrate() error {
	_, err := s.h0.Migrate(s.t.Context(), guest.Departure{Name: "web", Intent: s.intent, URI: scheme + "h1"})
	return err
}

// A VM that migrates runs on one host, also if a process is killed, a libvirtd does not run, or a host loses power.
func TestHypervisor_Migrates(t *testing.T) {
	for name, c := range map[string]struct {
		do       func(s *simulated) error
		on0, on1 guest.Presence
	}{
		"both run": {(*simulated).migrate, guest.Absent, guest.Runs},
		"the copy is aborted": {func(s *simulated) error {
			ctx, cancel := context.WithCancel(s.t.Context())
			cancel()
			if _, err := s.h0.Migrate(ctx, guest.Departure{Name: "web", Intent: s.intent, URI: scheme + "h1"}); err == nil {
				s.t.Error("it was not aborted")
			}
			return nil
		}, guest.Runs, guest.Absent},
		"libvirtd of the target does not run": {func(s *simulated) error {
			file := libvirtdFile(s.h1.folder)
			if err := os.WriteFile(file, []byte(libvirtdDown), 0o600); err != nil {
				return err
			}
			if err := s.migrate(); err == nil {
				s.t.Error("it has migrated")
			}
			return os.Remove(file)
		}, guest.Runs, guest.Absent},
		"the target is killed": {func(s *simulated) error {
			err := s.migrate()
			s.h1 = s.start("h1")
			return err
		}, guest.Absent, guest.Runs},
		"it is being copied": {func(s *simulated) error {
			copying := s.h0.copying("web")
			_, err := copying.TryLock()
			s.t.Cleanup(func() { _ = copying.Close() })
			return errors.Join(err, s.h0.send("h1", guest.Departure{Name: "web", Intent: s.intent}))
		}, guest.Runs, guest.Suspended},
		"the source is killed while it copies": {func(s *simulated) error {
			err := s.h0.send("h1", guest.Departure{Name: "web", Intent: s.intent})
			s.h0, s.h1 = s.start("h0"), s.start("h1")
			return err
		}, guest.Runs, guest.Absent},
		"the source is killed at the end": {func(s *simulated) error {
			if err := s.h0.send("h1", guest.Departure{Name: "web", Intent: s.intent}); err != nil {
				return err
			}
			err := os.WriteFile(s.h0.markPath("web"), []byte("h1"), 0o600)
			s.h0 = s.start("h0")
			return err
		}, guest.Absent, guest.Runs},
		"the target loses power": {func(s *simulated) error {
			if err := s.migrate(); err != nil {
				return err
			}
			err := s.endVMs("h1")
			s.h1 = s.start("h1")
			return err
		}, guest.Absent, guest.Stored},
		"the connection breaks before the target runs it": {broken(beforeMark), guest.Suspended, guest.Absent},
		"the connection breaks after that":                {broken(afterMark), guest.Suspended, guest.Runs},
		"the source is killed while it is paused": {func(s *simulated) error {
			err := s.h0.pause("web")
			s.h0, s.h1 = s.start("h0"), s.start("h1")
			return err
		}, guest.Suspended, guest.Absent},
		"the source is killed after the target runs it": {func(s *simulated) error {
			err := errors.Join(s.h0.pause("web"), s.h0.send("h1", guest.Departure{Name: "web", Intent: s.intent}),
				s.h0.changeMark("web", "h1"))
			s.h0, s.h1 = s.start("h0"), s.start("h1")
			return err
		}, guest.Suspended, guest.Runs},
		"the VM goes on to a third host before the paused copy is removed": {func(s *simulated) error {
			err := broken(afterMark)(s)
			s.h1.breaks, s.h0.breaks = nil, nil
			present, unknown := s.h1.Presence(s.t.Context(), "web")
			if present != guest.Runs {
				s.t.Errorf("on the target it is %v", present)
			}
			third := s.start("h2")
			_, on := s.h1.Migrate(s.t.Context(), guest.Departure{Name: "web", Intent: s.intent, URI: scheme + "h2"})
			if present, err := third.Presence(s.t.Context(), "web"); present != guest.Runs || err != nil {
				s.t.Errorf("on a third host it is %v, %v", present, err)
			}
			return errors.Join(err, unknown, on)
		}, guest.Suspended, guest.Absent},
		"the paused copy is resumed": {func(s *simulated) error {
			return errors.Join(broken(beforeMark)(s), s.h0.Resume(s.t.Context(), "web"))
		}, guest.Runs, guest.Absent},
		"the paused copy is removed": {func(s *simulated) error {
			return errors.Join(broken(afterMark)(s), s.h0.DiscardSuspended(s.t.Context(), "web"))
		}, guest.Absent, guest.Runs},
		"the source loses power while it is paused": {func(s *simulated) error {
			err := errors.Join(broken(beforeMark)(s), s.endVMs("h0"))
			s.h0 = s.start("h0")
			return err
		}, guest.Stored, guest.Absent},
		"the source loses power after the target runs it": {func(s *simulated) error {
			err := errors.Join(broken(afterMark)(s), s.endVMs("h0"))
			s.h0 = s.start("h0")
			return err
		}, guest.Absent, guest.Runs},
		"the target has no power when the source pauses it": {func(s *simulated) error {
			file := libvirtdFile(s.h1.folder)
			err := errors.Join(s.h0.pause("web"), os.WriteFile(file, []byte(libvirtdDown), 0o600))
			if !errors.Is(s.h0.changeMark("web", "h1"), errBroken) {
				s.t.Error("it runs on a host without power")
			}
			return errors.Join(err, os.Remove(file))
		}, guest.Suspended, guest.Absent},
		"the source loses power at the end": {func(s *simulated) error {
			if err := s.h0.send("h1", guest.Departure{Name: "web", Intent: s.intent}); err != nil {
				return err
			}
			if err := os.WriteFile(s.h0.markPath("web"), []byte("h1"), 0o600); err != nil {
				return err
			}
			err := s.endVMs("h0")
			s.h0 = s.start("h0")
			return err
		}, guest.Absent, guest.Runs},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t)
			if err := c.do(s); err != nil {
				t.Fatal(err)
			}
			for h, want := range map[*hypervisor]guest.Presence{s.h0: c.on0, s.h1: c.on1} {
				got, err := h.Presence(t.Context(), "web")
				_, has := h.Guest("web")
				executes := want == guest.Runs || want == guest.Suspended && has // the fake knows of no pause
				if err != nil || got != want || h.Executes("web") != executes {
					t.Errorf("on %s it is %v, want %v; %v", h.name, got, want, err)
				}
			}
			if err := s.violations(); err != nil {
				t.Error(err)
			}
		})
	}
}

// broken migrates a VM while the connection of the hypervisors breaks.
func broken(at breakPoint) func(s *simulated) error {
	return func(s *simulated) error {
		s.h0.breaks = func() breakPoint { return at }
		if err := s.migrate(); !errors.Is(err, errBroken) {
			return fmt.Errorf("the connection does not break: %w", err)
		}
		return nil
	}
}

// Resuming a copy whose VM runs elsewhere, and removing the only copy, are violations.
func TestHypervisor_SeesAWrongEndOfAPause(t *testing.T) {
	for name, c := range map[string]struct {
		at breakPoint
		do func(s *simulated) error
	}{
		"resumed": {afterMark, func(s *simulated) error { return s.h0.Resume(s.t.Context(), "web") }},
		"removed": {beforeMark, func(s *simulated) error { return s.h0.DiscardSuspended(s.t.Context(), "web") }},
	} {
		s := simulate(t)
		if err := broken(c.at)(s); err != nil {
			t.Fatal(err)
		}
		if err := c.do(s); err == nil || s.violations() == nil {
			t.Errorf("%s: %v, %v", name, err, s.violations())
		}
	}
}

// A VM that another host runs too is a violation.
func TestHypervisor_SeesThatAVMRunsTwice(t *testing.T) {
	s := simulate(t)
	if err := os.WriteFile(s.h0.markPath("web"), []byte("h1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(); err == nil || s.violations() == nil {
		t.Errorf("%v, %v", err, s.violations())
	}
}

// Two running VMs with the same CPU for themselves are a violation, whatever the records say.
func TestHypervisor_SeesACPUGivenTwice(t *testing.T) {
	s := simulate(t)
	for name, cpus := range map[string]string{"a": "0-1", "b": "1-2"} {
		i := s.intent
		i.Spec.Name, i.Placement.Guest = name, name
		i.Placement.Reservations = []guest.Reservation{{Node: 0, Exclusive: topology.MustParseSet[topology.CPUID](cpus)}}
		definition, err := fake.Render(i)
		if err != nil {
			t.Fatal(err)
		}
		err = s.h0.Start(t.Context(), definition, false)
		if second := s.violations() != nil; (err != nil) != second {
			t.Fatal(err, s.violations())
		}
	}
	if s.violations() == nil {
		t.Error("nothing was seen")
	}
}
