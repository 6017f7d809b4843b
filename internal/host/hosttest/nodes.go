package hosttest

import (
	"errors"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// A guest in mode restrictive can be restricted to other nodes while it runs.
func testRetuneRestrictive(s *suite) {
	const name = "hosttest-restrictive"
	s.start(name, guest.MemoryRestrictive, true)
	before := s.find(name)
	if tune := before.Config.NUMATune; s.lacks(BindMemory) {
		s.can(RetuneRunning, before, s.Hypervisor.TuneLive(s.ctx, name, s.Topology.MemoryNodes()))
		return
	} else if tune == nil || tune.Mode != "restrictive" {
		s.Fatalf("numatune is %+v, want mode restrictive", tune)
	}
	wide := s.Topology.MemoryNodes()
	for _, nodes := range []topology.NodeSet{wide, topology.SetOf(wide.IDs()[0])} {
		if !s.can(RetuneRunning, before, s.Hypervisor.TuneLive(s.ctx, name, nodes)) {
			return
		}
		g := s.find(name)
		if tune := g.Config.NUMATune; tune == nil || tune.Mode != "restrictive" || !tune.Nodes.Equal(nodes) {
			s.Errorf("numatune is %+v, want restrictive on nodes %s", tune, nodes)
		}
		s.mems(name, nodes)
	}
}

// A guest in mode strict cannot: its policies would still name the former
// nodes.
func testRetuneStrict(s *suite) {
	name, _, _ := s.shared(true)
	before := s.find(name)
	err := s.Hypervisor.TuneLive(s.ctx, name, topology.SetOf(s.Topology.MemoryNodes().IDs()[0]))
	if !errors.Is(err, guest.ErrRefused) {
		s.Errorf("error is %v, want guest.ErrRefused", err)
	}
	s.unchanged(before)
}
