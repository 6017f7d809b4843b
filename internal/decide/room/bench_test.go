package room

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// crowded is a host with eight guests on each node, of which one is small; a guest of
// 4 GiB fits on no node.
func crowded(t testing.TB, nodes int) *inventory.Host {
	t.Helper()
	h := machine(t, fmt.Sprintf("nodes:%d cores:16 memory:16G", nodes))
	for n := range nodes {
		for i := range 8 {
			memory := 3 * gib / 2
			if i == 0 {
				memory = gib * topology.Bytes(n%4+1) / 2
			}
			mustAdd(t, h, vm{name: fmt.Sprintf("g%d-%d", n, i), vcpus: 1, memory: memory, on: on(topology.NodeID(n)),
				touched: 0.4 + 0.1*float64((n*7+i*3)%6)})
		}
	}
	return h
}

func BenchmarkFind(b *testing.B) {
	for _, nodes := range []int{2, 4, 8, 16, 64} {
		b.Run(fmt.Sprintf("nodes=%d/VMs=%d", nodes, nodes*8), func(b *testing.B) {
			h := crowded(b, nodes)
			for _, c := range []struct {
				name string
				vm   vm
			}{
				{"one-node", vm{name: "new", vcpus: 2, memory: 6 * gib, spec: oneNode}},
				{"nearly-a-node", vm{name: "new", vcpus: 16, memory: 13 * gib, spec: func(s *guest.Spec) {
					s.Limits.MaxNodes, s.CPU.Binding = 1, guest.CPURange
				}}},
				{"too-large", vm{name: "new", vcpus: 2, memory: 17 * gib, spec: oneNode}},
			} {
				b.Run(c.name, func(b *testing.B) {
					r := Request{Host: h, Spec: c.vm.normal(b)}
					var p Plan
					for b.Loop() {
						p = Find(r)
					}
					b.ReportMetric(float64(len(p.Moves)), "moves")
					proven := 0.0
					if p.Proven {
						proven = 1
					}
					b.ReportMetric(proven, "proven")
				})
			}
		})
	}
}
