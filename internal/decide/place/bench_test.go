package place

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// measured gives a host latency and bandwidth figures that follow its
// distances, with the given noise of single pairs, as a share.
func measured(t *topology.Topology, r *rand.Rand, noise float64) {
	m := &topology.Measured{Source: "benchmark"}
	for i := range t.Nodes {
		m.Nodes = append(m.Nodes, t.Nodes[i].ID)
		var latency, bandwidth []float64
		for j := range t.Nodes {
			d := float64(t.Nodes[i].Distances[t.Nodes[j].ID])
			latency = append(latency, d*8*(1+noise*r.Float64()))
			bandwidth = append(bandwidth, 600_000/d*(1-noise*r.Float64()))
		}
		m.LatencyNanos = append(m.LatencyNanos, latency)
		m.BandwidthMBps = append(m.BandwidthMBps, bandwidth)
	}
	t.Measured = m
}

// busy places a few guests of other sizes on the host's nodes.
func busy(h *inventory.Host, r *rand.Rand) {
	for i := range h.Topology.Nodes {
		n := &h.Topology.Nodes[i]
		for k := range r.IntN(4) {
			name := fmt.Sprintf("old%d-%d", n.ID, k)
			h.Guests = append(h.Guests, inventory.Guest{Name: name, Managed: true, Placement: &guest.Placement{
				Guest: name, CPUMode: guest.CPURange,
				Reservations: []guest.Reservation{
					{Node: n.ID, VCPUs: 1 + r.IntN(4), Memory: topology.Bytes(1+r.IntN(12)) * topology.GiB}},
			}})
		}
	}
}

// eightCells is the case known from Nova: a guest of 8 cells.
func eightCells() guest.Spec {
	return guest.Spec{
		Name: "wide", VCPUs: 32, Memory: 64 * topology.GiB,
		Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 8},
	}
}

// unevenCells is the same guest with eight cells of eight sizes: every
// assignment of cells to nodes differs.
func unevenCells() guest.Spec {
	s := eightCells()
	s.Topology.Count = 0
	s.VCPUs, s.Memory = 0, 0
	for i := range 8 {
		c := guest.CellSpec{VCPUs: 1 + i, Memory: topology.Bytes(1+2*i) * topology.GiB}
		s.Topology.Cells = append(s.Topology.Cells, c)
		s.VCPUs, s.Memory = s.VCPUs+c.VCPUs, s.Memory+c.Memory
	}
	return s
}

func benchHost(nodes int, load bool, noise float64) *inventory.Host {
	r := rand.New(rand.NewPCG(1, uint64(nodes)))
	h := &inventory.Host{
		Name:     "bench",
		Topology: made(shape{nodes: nodes, cpus: 16, threads: 2, memory: 64 * topology.GiB, perSocket: 4}),
	}
	if noise >= 0 {
		measured(&h.Topology, r, noise)
	}
	if load {
		busy(h, r)
	}
	return h
}

func BenchmarkPlace(b *testing.B) {
	cases := []struct {
		name  string
		nodes int
		load  bool
		noise float64 // < 0: SLIT only
		spec  guest.Spec
	}{
		{"8cells/16nodes/uniform", 16, false, -1, eightCells()},
		{"8cells/16nodes/loaded", 16, true, -1, eightCells()},
		{"8cells/16nodes/loaded+measured", 16, true, 0.03, eightCells()},
		{"8cells/16nodes/loaded+noise20%", 16, true, 0.2, eightCells()},
		{"8uneven/16nodes/uniform", 16, false, -1, unevenCells()},
		{"8uneven/16nodes/loaded", 16, true, -1, unevenCells()},
		{"8uneven/64nodes/uniform", 64, false, -1, unevenCells()},
		{"8uneven/64nodes/loaded", 64, true, -1, unevenCells()},
		{"8uneven/64nodes/loaded+measured", 64, true, 0.03, unevenCells()},
		{"8cells/64nodes/uniform", 64, false, -1, eightCells()},
		{"8cells/64nodes/loaded", 64, true, -1, eightCells()},
		{"8cells/64nodes/loaded+measured", 64, true, 0.03, eightCells()},
		{"8cells/64nodes/loaded+noise20%", 64, true, 0.2, eightCells()},
		{
			"mirror/64nodes/loaded+measured",
			64,
			true,
			0.03,
			guest.Spec{
				Name:     "mirror",
				VCPUs:    300,
				Memory:   513 * topology.GiB,
				Topology: guest.TopologySpec{Mode: guest.TopologyMirror},
			},
		},
		{"auto32cells/64nodes/loaded+measured", 64, true, 0.03,
			guest.Spec{Name: "wide", VCPUs: 250, Memory: 64 * topology.GiB}},
		{
			"8exclusive/64nodes/loaded+measured",
			64,
			true,
			0.03,
			guest.Spec{
				Name:   "wide",
				VCPUs:  60,
				Memory: 64 * topology.GiB,
				CPU:    guest.CPUSpec{Binding: guest.CPUExclusive},
			},
		},
		{"thin/64nodes/loaded+measured", 64, true, 0.03,
			guest.Spec{Name: "thin", VCPUs: 1, Memory: 100 * topology.GiB}},
		{"1cell/64nodes/loaded+measured", 64, true, 0.03,
			guest.Spec{Name: "small", VCPUs: 4, Memory: 4 * topology.GiB}},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			h := benchHost(c.nodes, c.load, c.noise)
			b.ReportAllocs()
			var why Why
			for b.Loop() {
				var err error
				if _, why, err = Place(Request{Host: h, Spec: c.spec}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(why.Considered), "steps/op")
			if !why.Optimal {
				b.ReportMetric(1, "unproven")
			}
		})
	}
}

// BenchmarkNoFit measures a refusal, with and without all the changes tried.
func BenchmarkNoFit(b *testing.B) {
	for _, nodes := range []int{4, 16, 64} {
		for name, without := range map[string]bool{"": false, "-without-advice": true} {
			b.Run(fmt.Sprintf("%dnodes%s", nodes, name), func(b *testing.B) {
				h := benchHost(nodes, true, 0.03)
				b.ReportAllocs()
				for b.Loop() {
					if _, _, err := Place(Request{Host: h, Spec: guest.Spec{Name: "vast", VCPUs: 20,
						Memory: 10 * topology.TiB}, WithoutAdvice: without}); err == nil {
						b.Fatal("10 TiB found room")
					}
				}
			})
		}
	}
}

// BenchmarkAvailable measures only the computation of free resources, on a full host.
func BenchmarkAvailable(b *testing.B) {
	h := benchHost(16, true, -1)
	b.ReportAllocs()
	for b.Loop() {
		capacity.Available(h, policy.Policy{}, "")
	}
}
