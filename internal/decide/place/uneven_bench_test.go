package place

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// sizedCells is a guest with the given number of cells, all of different sizes, at
// most 8 vCPUs and 16 GiB each. A heavy one has little memory where it has many vCPUs.
func sizedCells(cells int, heavy bool) guest.Spec {
	s := guest.Spec{Name: "sized", Topology: guest.TopologySpec{Mode: guest.TopologyCells}}
	for i := range cells {
		c := guest.CellSpec{VCPUs: 1 + i*8/cells, Memory: topology.Bytes(1+i*16/cells) * topology.GiB}
		if heavy {
			c.Memory = topology.Bytes(16-i*16/cells) * topology.GiB
		}
		c.Memory += topology.Bytes(i) * topology.MiB
		s.Topology.Cells = append(s.Topology.Cells, c)
		s.VCPUs, s.Memory = s.VCPUs+c.VCPUs, s.Memory+c.Memory
	}
	return s
}

// skew makes the ways of some pairs of nodes longer in one direction.
func skew(t *topology.Topology, r *rand.Rand) {
	for i := range t.Nodes {
		for j := range t.Nodes {
			if i != j && r.IntN(4) == 0 {
				t.Nodes[i].Distances[t.Nodes[j].ID] += 4
			}
		}
	}
}

// memoryOnly removes the CPUs from every fourth node.
func memoryOnly(t *topology.Topology) {
	for i := range t.Nodes {
		if i%4 == 3 {
			gone := t.Nodes[i].CPUs
			t.Nodes[i].CPUs = topology.CPUSet{}
			t.CPUs = slices.DeleteFunc(t.CPUs, func(c topology.CPU) bool { return gone.Contains(c.ID) })
		}
	}
}

// hostKinds are the differences between the hosts of the benchmark and an idle host.
var hostKinds = []struct {
	name string
	make func(h *inventory.Host, r *rand.Rand)
}{
	{"idle", func(*inventory.Host, *rand.Rand) {}},
	{"loaded", busy},
	{"measured", func(h *inventory.Host, r *rand.Rand) { busy(h, r); measured(&h.Topology, r, 0.03) }},
	{"noise20%", func(h *inventory.Host, r *rand.Rand) { busy(h, r); measured(&h.Topology, r, 0.2) }},
	{"asymmetric", func(h *inventory.Host, r *rand.Rand) { busy(h, r); skew(&h.Topology, r) }},
	{"memory-only", func(h *inventory.Host, r *rand.Rand) { memoryOnly(&h.Topology); busy(h, r) }},
}

// BenchmarkUneven places guests whose cells all differ on many random hosts
// of one kind. One op is one pass over all of them; median-us and worst-us
// are over the hosts, each counted with its fastest pass.
func BenchmarkUneven(b *testing.B) {
	const hosts = 24
	for _, nodes := range []int{4, 8, 16, 32, 64} {
		for _, kind := range hostKinds {
			for _, heavy := range []bool{false, true} {
				name := map[bool]string{false: "growing", true: "memory-heavy"}[heavy]
				b.Run(fmt.Sprintf("%dnodes/%s/%s", nodes, kind.name, name), func(b *testing.B) {
					spec := sizedCells(min(8, nodes/4*3), heavy)
					var requests []Request
					for seed := range hosts {
						r := rand.New(rand.NewPCG(uint64(seed), uint64(nodes)))
						h := &inventory.Host{
							Name: "bench",
							Topology: made(
								shape{nodes: nodes, cpus: 16, threads: 2, memory: 64 * topology.GiB, perSocket: 4}),
						}
						kind.make(h, r)
						requests = append(requests, Request{Host: h, Spec: spec, Policy: policy.Policy{}})
					}
					benchRequests(b, requests)
				})
			}
		}
	}
}

func benchRequests(b *testing.B, requests []Request) {
	b.Helper()
	fastest := make([]time.Duration, len(requests))
	steps := make([]int, len(requests))
	proven := 0
	first := true
	for b.Loop() {
		for i, r := range requests {
			start := time.Now()
			_, why, err := Place(r)
			took := time.Since(start)
			if err != nil {
				b.Fatal(err)
			}
			if first && why.Optimal {
				proven++
			}
			if first || took < fastest[i] {
				fastest[i] = took
			}
			steps[i] = why.Considered
		}
		first = false
	}
	slices.Sort(fastest)
	slices.Sort(steps)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	b.ReportMetric(micros(fastest[len(fastest)/2]), "median-us")
	b.ReportMetric(micros(fastest[len(fastest)-1]), "worst-us")
	b.ReportMetric(float64(steps[len(steps)-1]), "worst-steps")
	b.ReportMetric(100*float64(proven)/float64(len(requests)), "%proven")
}
