package handoff_test

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

// BenchmarkDecide: 16 mirrored guests over 256 CPUs of 8 nodes, all of which demand
// more than there is, right after a quarter of them began to.
func BenchmarkDecide(b *testing.B) {
	topo, err := topology.Synthetic("nodes:8 cores:16 threads:2 distances:10,16,28 square")
	if err != nil {
		b.Fatal(err)
	}
	in := handoff.Input{Now: start, Topology: &topo, Rules: handoff.Rules{CPUs: topo.CPUSet()}}
	for i := range 16 {
		name := fmt.Sprintf("vm%02d", i)
		in.Guests = append(in.Guests, handoff.Guest{
			Name: name, Home: topology.NodeID(i % 8), Weight: 1 + i%3, Min: 2,
			Mirror: anchorFirst(topo.CPUSet().IDs(), topology.CPUID(16*(i%8)+i/8)),
		})
		if i%4 != 0 {
			in.Demands = append(in.Demands, handoff.Demand{Guest: name, At: start, Running: 64})
		}
	}
	w := &world{in: in}
	w.settle(b)
	for i := range 4 {
		w.in.Demands = append(w.in.Demands, handoff.Demand{Guest: fmt.Sprintf("vm%02d", 4*i), At: start, Running: 64})
	}
	for b.Loop() {
		d, _, err := handoff.Decide(w.in)
		if err != nil || len(d.Releases) == 0 {
			b.Fatal(d, err)
		}
	}
}
