package fake_test

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
)

func TestHost_PassesTheSuite(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Target {
		t.Helper()
		h := fake.MustNew("nodes:4 cores:4 memory:4G square distances:10,16,28")
		t.Cleanup(func() {
			if err := h.Audit(); err != nil {
				t.Errorf("memory was lost or created: %v", err)
			}
		})
		return hosttest.Target{
			Hypervisor: h, Kernel: h, Topology: h.Nodes(), Render: func(s guest.Spec, p guest.Placement) (guest.Definition,
				error) {
				return fake.Render(guest.Intent{Spec: s, Placement: p})
			},
			PowerOff: func(_ context.Context, name string) error { h.Vanish(name); return nil },
			Garble:   func(_ context.Context, name string) error { return h.Garble(name) },
		}
	})
}
