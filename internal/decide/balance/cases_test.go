package balance

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM alone uses more than the memory bandwidth of its node. If its topology allows two
// cells, it is split over two nodes; with one cell it stays.
func TestPlan_SplitsAStreamingGuest(t *testing.T) {
	for _, c := range []struct {
		name     string
		topology guest.TopologySpec
		splits   bool
	}{
		{"no cells", guest.TopologySpec{Mode: guest.TopologyOff}, true},
		{"one cell", guest.TopologySpec{Mode: guest.TopologyCells, Count: 1}, false},
	} {
		h := machine("nodes:2 cores:8 memory:32G")
		h.Topology.Measured = &topology.Measured{Nodes: on(0, 1),
			LatencyNanos:  [][]float64{{85, 110}, {110, 85}},
			BandwidthMBps: [][]float64{{20000, 16000}, {16000, 20000}}}
		add(h, vm{name: "streams", vcpus: 4, memory: 8 * gib, cpus: on(0), used: 4, mbps: 22000,
			spec: func(s *guest.Spec) { s.Topology = c.topology }})
		round := planned(t, h, policy.Policy{})
		if c.splits != (len(round.Moves) == 1) {
			t.Errorf("%s\n%s", c.name, round.Text())
		} else if c.splits && (round.Moves[0].Kind != plan.Split || goesTo(round, "streams").Len() != 2) {
			t.Errorf("%s\n%s", c.name, round.Text())
		}
	}
}
