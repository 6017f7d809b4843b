package balance

import (
	"math"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// An inventory from a file may have invalid figures. They count as not measured:
// the plan equals the plan without them.
func TestPlan_InvalidFiguresCountAsNotMeasured(t *testing.T) {
	host := func() *inventory.Host {
		h := machine("nodes:2 cores:4 memory:16G distances:10,21 flat")
		add(h, vm{name: "a", vcpus: 4, memory: gib, cpus: on(0), used: 2})
		add(h, vm{name: "b", vcpus: 2, memory: gib, cpus: on(1), memOn: bytesOn(0, gib), used: 1})
		h.Guests[1].Seen.Load.Remote = &inventory.Remote{Share: 1, Source: inventory.AccessPMU}
		h.Load = []inventory.NodeLoad{{Node: 0, CPU: 2}, {Node: 1, CPU: 2}}
		h.Topology.Measured = &topology.Measured{Nodes: on(0, 1),
			LatencyNanos:  [][]float64{{85, 140}, {140, 85}},
			BandwidthMBps: [][]float64{{20000, 9000}, {9000, 20000}}}
		return h
	}
	guestless, nodeless := host(), host()
	guestless.Guests[1].Seen.Load = nil
	nodeless.Load = nodeless.Load[:1]
	fields := map[string]struct {
		set  func(h *inventory.Host, v float64)
		like *inventory.Host
	}{
		"cpu":      {func(h *inventory.Host, v float64) { h.Guests[1].Seen.Load.CPU = v }, guestless},
		"wait":     {func(h *inventory.Host, v float64) { h.Guests[1].Seen.Load.Wait = v }, guestless},
		"traffic":  {func(h *inventory.Host, v float64) { h.Guests[1].Seen.Load.MemoryMBps = v }, guestless},
		"remote":   {func(h *inventory.Host, v float64) { h.Guests[1].Seen.Load.Remote.Share = v }, guestless},
		"node cpu": {func(h *inventory.Host, v float64) { h.Load[1].CPU = v }, nodeless},
	}
	for name, field := range fields {
		want := planned(t, field.like, policy.Policy{})
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1e308, -1e308} {
			h := host()
			field.set(h, v)
			if got := planned(t, h, policy.Policy{}); got.Text() != want.Text() || got.Before != want.Before {
				t.Errorf("%s %v: got\n%swant\n%s", name, v, got.Text(), want.Text())
			}
		}
	}
}

// A copy whose time would overflow a time.Duration never pays.
func TestPlan_RefusesEndlessCopy(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:256G")
	add(h, vm{name: "a", vcpus: 4, memory: 200 * gib, cpus: on(1), memOn: bytesOn(0, 200*gib), used: 0.3})
	add(h, vm{name: "busy", vcpus: 4, memory: gib, cpus: on(0), used: 3.8})
	h.MoverBytesPerSecond = 1
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"busy": policy.ModeOff}}}
	round := planned(t, h, p)
	if len(round.Moves) != 0 || len(round.Blocked) != 1 || !strings.Contains(round.Blocked[0].Why,
		"more CPU time than") {
		t.Errorf("200 GiB at a byte a second\n%s", round.Text())
	}
}
