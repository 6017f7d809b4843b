package hosttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// An intent is recorded, read, replaced and removed.
func testIntent(s *suite) {
	s.bothShared(func(s *suite, name string, transient bool) {
		_, spec, p := s.shared(transient)
		first := guest.Intent{Spec: spec, Placement: p}
		s.recorded(name, first)
		second := first
		second.Spec.Limits.MaxNodes, second.Adopted = 7, true
		if err := s.Hypervisor.Record(s.ctx, name, second); err != nil {
			s.Fatal(err)
		}
		s.recorded(name, second)
		for range 2 { // removing a missing intent is no error
			if err := s.Hypervisor.Forget(s.ctx, name); err != nil {
				s.Fatal(err)
			}
			if g := s.find(name); g.Managed || g.Spec != nil || g.Placement != nil || g.Adopted {
				s.Errorf("after Forget the guest is managed: %v", g.Managed)
			}
		}
		if err := s.Hypervisor.Record(s.ctx, name, first); err != nil {
			s.Fatal(err)
		}
		s.recorded(name, first)
		if transient {
			return
		}
		if err := s.PowerOff(s.ctx, name); err != nil {
			s.Fatal(err)
		}
		s.recorded(name, first) // also in the stored configuration
	})
}

// hostileValues are texts that may break out of the document with the intent.
var hostileValues = []string{
	"</numavisor:guest><x>", "]]>", "<!--", "<![CDATA[", `"}`, "&amp;&#0;&quot;", "'\"`", "\x00\x01\x1b",
	"line\nbreak\ttab\r",
	"\u2028", "\ufffe\uffff", "客", strings.Repeat("<", 5000),
}

// A hostile value is read back unchanged. If it is refused, the former intent
// stays.
func testHostileIntents(s *suite) {
	name, spec, p := s.shared(true)
	last := guest.Intent{Spec: spec, Placement: p}
	for _, value := range hostileValues {
		next := last
		next.Placement.Devices = []guest.DeviceSpec{{Address: value}}
		if err := s.Hypervisor.Record(s.ctx, name, next); err != nil {
			s.Logf("value %.40q is refused: %v", value, err)
		} else {
			last = next
		}
		s.recorded(name, last)
	}
}

// A guest whose intent is unreadable is observed without it and named in a gap;
// the other guests' intents are read. Recording an intent replaces the
// unreadable one.
func testUnreadableIntent(s *suite) {
	garbled, spec, p := s.shared(true)
	other := s.secondShared()
	if err := s.Garble(s.ctx, garbled); err != nil {
		s.Fatal(err)
	}
	host := s.observe(other)
	names := func(g inventory.Gap) bool { return strings.Contains(fmt.Sprint(g), garbled) }
	if !slices.ContainsFunc(host.Gaps, names) {
		s.Errorf("gaps are %v, want one that names %s", host.Gaps, garbled)
	}
	g, ok := named(host.Guests, garbled)
	if !ok || g.State != "running" || g.Config.VCPUs != 2 || g.Managed {
		s.Errorf("guest %s: listed %v, %s, %d vCPUs, managed %v; want it running with 2 vCPUs, not managed",
			garbled, ok, g.State, g.Config.VCPUs, g.Managed)
	}
	if g, ok := named(host.Guests, other); !ok || !g.Managed || g.Placement == nil || g.Spec == nil {
		s.Errorf("guest %s: listed %v, managed %v; want its intent", other, ok, g.Managed)
	}
	if err := s.Hypervisor.Record(s.ctx, garbled, guest.Intent{Spec: spec, Placement: p}); err != nil {
		s.Fatalf("replacing the unreadable intent: %v", err)
	}
	s.recorded(garbled, guest.Intent{Spec: spec, Placement: p})
}

// Configure binds the next start and leaves the running guest as it is.
func testConfigure(s *suite) {
	if s.lacks(StoreConfiguration) {
		s.refusesStored("hosttest-stored")
		return
	}
	name, spec, p := s.shared(false)
	before := s.find(name)
	next := p
	next.VCPUs = []guest.VCPU{{ID: 0, CPUs: s.last()}, {ID: 1, CPUs: s.first()}}
	next.Emulator = s.first()
	if err := s.Hypervisor.Configure(s.ctx, name, guest.Intent{Spec: spec, Placement: next}); err != nil {
		s.Fatal(err)
	}
	s.pinned(s.find(name), p)
	s.unchanged(before)
	if err := s.PowerOff(s.ctx, name); err != nil {
		s.Fatal(err)
	}
	s.pinned(s.find(name), next)
	s.recorded(name, guest.Intent{Spec: spec, Placement: next})
}

func testConfigureTransient(s *suite) {
	name, spec, p := s.shared(true)
	before := s.find(name)
	if err := s.Hypervisor.Configure(s.ctx, name, guest.Intent{Spec: spec, Placement: p}); !errors.Is(
		err,
		guest.ErrTransient,
	) {
		s.Errorf("error is %v, want guest.ErrTransient", err)
	}
	s.unchanged(before)
}

// RestoreBinding gives the next start the pins and nodes of before. The running
// guest, the intent and the rest of the configuration stay.
func testRestoreBinding(s *suite) {
	if s.lacks(StoreConfiguration) {
		s.refusesStored("hosttest-stored")
		return
	}
	name, spec, p := s.shared(false)
	former := s.binding(name)
	before := s.find(name)
	next := p
	next.VCPUs = []guest.VCPU{{ID: 0, CPUs: s.last()}, {ID: 1, CPUs: s.first()}}
	next.Emulator, next.MemoryMode = s.first(), guest.MemoryRestrictive
	intent := guest.Intent{Spec: spec, Placement: next}
	if err := s.Hypervisor.Configure(s.ctx, name, intent); err != nil {
		s.Fatal(err)
	}
	if s.binding(name) == former {
		s.Fatal("the configuration of the next start is as before: this run tested nothing")
	}
	for range 2 {
		if err := s.Hypervisor.RestoreBinding(s.ctx, name, former); err != nil {
			s.Fatal(err)
		}
		if now := s.binding(name); now != former {
			s.Errorf("restored to\n%s\nwant\n%s", now, former)
		}
	}
	s.unchanged(before)
	if err := s.PowerOff(s.ctx, name); err != nil {
		s.Fatal(err)
	}
	g := s.find(name)
	s.pinned(g, p)
	s.recorded(name, intent)
	if tune := g.Config.NUMATune; tune == nil || tune.Mode != string(guest.MemoryStrict) {
		s.Errorf("numatune of the next start: %+v, want mode strict", tune)
	}
}

func (s *suite) binding(name string) string {
	s.Helper()
	binding, err := s.Hypervisor.StoredBinding(s.ctx, name)
	if err != nil {
		s.Fatal(err)
	}
	return binding
}

func testStoredBindingTransient(s *suite) {
	name, _, _ := s.shared(true)
	if _, err := s.Hypervisor.StoredBinding(s.ctx, name); !errors.Is(err, guest.ErrTransient) {
		s.Errorf("StoredBinding: error is %v, want guest.ErrTransient", err)
	}
	if err := s.Hypervisor.RestoreBinding(s.ctx, name, ""); !errors.Is(err, guest.ErrTransient) {
		s.Errorf("RestoreBinding: error is %v, want guest.ErrTransient", err)
	}
}
