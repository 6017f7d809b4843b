package guest_test

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM whose number of vCPUs follows its demand is an ordinary one otherwise; what only hand-over has is refused.
func TestSpec_Scale(t *testing.T) {
	home := topology.NodeID(0)
	spec := func(change func(*guest.Spec)) guest.Spec {
		s := guest.Spec{Name: "w", VCPUs: 8, Memory: topology.GiB, CPU: guest.CPUSpec{Sharing: guest.SharingScale}}
		change(&s)
		return s
	}
	s, err := spec(func(*guest.Spec) {}).Normalize()
	if err != nil || s.CPU.MinVCPUs != 1 || s.CPU.Weight != 100 || s.Topology.Mode != guest.TopologyAuto ||
		s.CPU.Binding != guest.CPURange || !s.IsScaled() || s.IsHandoff() {
		t.Errorf("with defaults: %+v, %v", s, err)
	}
	for name, c := range map[string]struct {
		change func(*guest.Spec)
		field  string
	}{
		"minimum":   {func(s *guest.Spec) { s.CPU.MinVCPUs = 9 }, "cpu.min_vcpus"},
		"weight":    {func(s *guest.Spec) { s.CPU.Weight = 10_001 }, "cpu.weight"},
		"exclusive": {func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }, "cpu.binding"},
		"home":      {func(s *guest.Spec) { s.CPU.Home = &home }, "cpu.home"},
		"no vCPUs":  {func(s *guest.Spec) { s.VCPUs = 0 }, "vcpus"},
		"unknown":   {func(s *guest.Spec) { s.CPU.Sharing = "some" }, "cpu.sharing"},
		"without":   {func(s *guest.Spec) { s.CPU.Sharing, s.CPU.MinVCPUs = "", 2 }, "cpu.min_vcpus"},
	} {
		if _, err := spec(c.change).Normalize(); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v; expected a refusal of %s", name, err, c.field)
		}
	}
}
