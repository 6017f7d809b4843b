package scale_test

import (
	"maps"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/scale"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestGuestOfAPlacement(t *testing.T) {
	p := &guest.Placement{Scale: &guest.Scale{Min: 2, Weight: 50}, Cells: []guest.Cell{
		{Nodes: topology.SetOf[topology.NodeID](0, 1), VCPUs: topology.Range[guest.VCPUID](0, 3)},
		{Nodes: topology.SetOf[topology.NodeID](2)}, // memory alone
		{Nodes: topology.SetOf[topology.NodeID](3), VCPUs: topology.Range[guest.VCPUID](4, 7)},
	}}
	g, ok := scale.GuestOf("w", p, topology.SetOf[guest.VCPUID](0, 1, 7), topology.MemoryByNode{0: 1, 1: 2, 2: 4, 3: 8})
	if !ok || g.Min != 2 || g.Weight != 50 || len(g.Cells) != 2 || g.Cells[0].Memory != 3 || g.Cells[1].Memory != 8 ||
		g.Cells[0].Used.Len() != 2 || !g.Cells[1].Used.Equal(topology.SetOf[guest.VCPUID](7)) {
		t.Errorf("%+v, %t", g, ok)
	}
	for _, p := range []*guest.Placement{nil, {}} {
		if _, ok := scale.GuestOf("w", p, guest.VCPUSet{}, nil); ok {
			t.Errorf("%+v is a VM whose number of vCPUs follows its demand", p)
		}
	}
}

// What ordinary VMs and programs use is no room; what these guests use themselves, and others on CPUs of their own, is.
func TestRoomOfNodes(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:4")
	if err != nil {
		t.Fatal(err)
	}
	shared := topo.CPUSet().Minus(topology.SetOf[topology.CPUID](0))
	s := inventory.Sample{Window: time.Second, Nodes: []inventory.NodeSample{
		{NodeLoad: inventory.NodeLoad{Node: 0, CPU: 3.9}}, {NodeLoad: inventory.NodeLoad{Node: 1, CPU: 9}},
	}, Guests: []inventory.GuestSample{
		{Name: "scaled", CPUByNode: map[topology.NodeID]float64{0: 1.5}},
		{Name: "mirrored", CPUByNode: map[topology.NodeID]float64{0: 1}},
		{Name: "other", CPUByNode: map[topology.NodeID]float64{0: 1}},
	}}
	apart := map[string]bool{"scaled": true, "mirrored": true}
	if got := scale.Room(&topo, shared, &s, apart); !maps.Equal(got, map[topology.NodeID]int{0: 2, 1: 0}) {
		t.Errorf("room %v; of node 0, 1.6 of 3 CPUs are left, and none of node 1", got)
	}
	if got := scale.Room(&topo, shared, &inventory.Sample{}, apart); !maps.Equal(got, map[topology.NodeID]int{0: 3, 1: 4}) {
		t.Errorf("room %v before the first sample", got)
	}
}
