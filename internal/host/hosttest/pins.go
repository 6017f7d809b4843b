package hosttest

import (
	"errors"

	"github.com/numavisor/numavisor/internal/topology"
)

func testPinVCPU(s *suite) {
	s.bothShared(func(s *suite, name string, transient bool) {
		_, _, p := s.shared(transient)
		before := s.find(name)
		if !s.can(PinRunningVCPU, before, s.Hypervisor.PinVCPU(s.ctx, name, 1, s.first())) {
			return
		}
		p.VCPUs[1].CPUs = s.first()
		s.pinned(s.find(name), p)
		s.threads(name, p)
	})
}

func testPinHelpers(s *suite) {
	s.bothShared(func(s *suite, name string, transient bool) {
		_, _, p := s.shared(transient)
		before := s.find(name)
		err := errors.Join(s.Hypervisor.PinEmulator(s.ctx, name, s.last()),
			s.Hypervisor.PinIOThread(s.ctx, name, 1, s.last()))
		switch {
		case s.lacks(PinHelpers):
			s.can(PinHelpers, before, err)
			return
		case !transient && !s.can(PinStoredHelpers, before, err):
			return
		case err != nil:
			s.Fatal(err)
		}
		p.Emulator, p.IOThread = s.last(), s.last()
		s.pinned(s.find(name), p)
		s.threads(name, p)
	})
}

// A pin to no CPU, or of a thread that the guest does not have, changes nothing.
func testBadPins(s *suite) {
	name, _, _ := s.shared(true)
	before := s.find(name)
	for what, err := range map[string]error{
		"a vCPU to no CPU":                  s.Hypervisor.PinVCPU(s.ctx, name, 0, topology.CPUSet{}),
		"the emulator to no CPU":            s.Hypervisor.PinEmulator(s.ctx, name, topology.CPUSet{}),
		"an I/O thread to no CPU":           s.Hypervisor.PinIOThread(s.ctx, name, 1, topology.CPUSet{}),
		"a vCPU that it does not have":      s.Hypervisor.PinVCPU(s.ctx, name, 2, s.first()),
		"an I/O thread that does not exist": s.Hypervisor.PinIOThread(s.ctx, name, 7, s.first()),
		"an I/O thread below the first ID":  s.Hypervisor.PinIOThread(s.ctx, name, 0, s.first()),
	} {
		if err == nil {
			s.Errorf("pinning %s is accepted", what)
		}
	}
	s.unchanged(before)
}
