package hosttest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
)

// changes are all changing calls on one guest, and the reading of what they change.
func (s *suite) changes(name string) map[string]func(context.Context) error {
	spec, p := s.small(name, guest.MemoryStrict)
	spec.Limits.MaxNodes = 5
	intent := guest.Intent{Spec: spec, Placement: p}
	h, nodes := s.Hypervisor, s.Topology.MemoryNodes()
	return map[string]func(context.Context) error{
		"PinVCPU":     func(ctx context.Context) error { return h.PinVCPU(ctx, name, 0, s.last()) },
		"PinEmulator": func(ctx context.Context) error { return h.PinEmulator(ctx, name, s.last()) },
		"PinIOThread": func(ctx context.Context) error { return h.PinIOThread(ctx, name, 1, s.last()) },
		"TuneLive":    func(ctx context.Context) error { return h.TuneLive(ctx, name, nodes) },
		"Record":      func(ctx context.Context) error { return h.Record(ctx, name, intent) },
		"Forget":      func(ctx context.Context) error { return h.Forget(ctx, name) },
		"Configure":   func(ctx context.Context) error { return h.Configure(ctx, name, intent) },
		"Resize":      func(ctx context.Context) error { return h.Resize(ctx, name, intent) },
		"StoredBinding": func(ctx context.Context) error {
			_, err := h.StoredBinding(ctx, name)
			return err
		},
		"RestoreBinding": func(ctx context.Context) error { return h.RestoreBinding(ctx, name, "") },
		"Remove":         func(ctx context.Context) error { return h.Remove(ctx, name) },
		"Undefine":       func(ctx context.Context) error { return h.Undefine(ctx, name) },
	}
}

// Each call on a guest that does not exist returns an error that says so and
// names the guest.
func testNoSuchGuest(s *suite) {
	const name = "hosttest-nowhere"
	for method, call := range s.changes(name) {
		err := call(s.ctx)
		if !errors.Is(err, guest.ErrNotFound) {
			s.Errorf("%s: error is %v, want guest.ErrNotFound", method, err)
		} else if !strings.Contains(err.Error(), name) {
			s.Errorf("%s: error %q does not name the guest", method, err)
		}
	}
}

// A call whose context has ended returns at once with the context's error and
// without an effect.
func testEndedContext(s *suite) {
	const name, never = "hosttest-there", "hosttest-never"
	s.start(name, guest.MemoryRestrictive, s.lacks(StoreConfiguration))
	before := s.find(name)
	spec, p := s.small(never, guest.MemoryStrict)
	definition, err := s.Render(spec, p)
	if err != nil {
		s.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(s.ctx)
	cancel()
	late, cancel := context.WithDeadline(s.ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		calls := s.changes(name)
		calls["Start"] = func(ctx context.Context) error { return s.Hypervisor.Start(ctx, definition, false) }
		calls["Guests"] = func(ctx context.Context) error { _, err := s.Hypervisor.Guests(ctx); return err }
		for method, call := range calls {
			started := time.Now()
			if err := call(ctx); !errors.Is(err, ctx.Err()) {
				s.Errorf("%s: error is %v, want %v", method, err, ctx.Err())
			}
			if took := time.Since(started); took > time.Second {
				s.Errorf("%s: returned after %v", method, took)
			}
		}
	}
	s.unchanged(before)
	s.absent(never)
}
