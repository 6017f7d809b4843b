package place

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory/inventorytest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Saved inventories with measured loads on which earlier versions chose another node than an expert would.
func TestPlace_SavedInventories(t *testing.T) {
	none, two := guest.Limits{}, guest.Limits{CPUs: topology.SetOf[topology.CPUID](0, 1, 8, 9)}
	for name, c := range map[string]struct {
		vcpus  int
		memory topology.Bytes // GiB
		nodes  string
		limits guest.Limits
	}{
		// 6 threads of the host wait on node 0, whose vCPUs are measured.
		"host-wait5": {2, 2, "1", none},
		"host-wait7": {2, 2, "1", none},
		// The host works on its housekeeping CPUs of node 0, and the others there are idle.
		"hk-torn-remote": {6, 20, "0", none},
		"hk-host-work":   {6, 16, "0", none},
		// A VM with 8 vCPUs on node 0 is shut off.
		"shutoff": {8, 20, "0", none},
		// VMs use 39 of the 40 GB/s of node 0's memory.
		"bw-saturated": {4, 4, "1", none},
		// Node 0 has room at 188 % of its CPUs, and nodes 2 and 3, which are near each other, are idle.
		"one-vcpu-190": {1, 20, "2-3", none},
		// The VM may use two CPUs of each node. On node 0, other VMs use these, and the rest is idle; on node 1, 5 of 8
		// CPUs are used by a VM that may use all.
		"confined-busy":     {2, 2, "1", two},
		"confined-promised": {2, 2, "1", two},
		"confined-cpu-pool": {2, 2, "1", guest.Limits{Pool: "small"}},
		// The same, with another VM confined to half of node 0, all of which it uses.
		"confined-nested": {2, 2, "1", two},
		// Three VMs wait for two CPUs of node 0, and its others are idle.
		"confined-rest-idle": {6, 4, "0", none},
	} {
		p, why, err := Place(Request{Host: inventorytest.Saved(t, name), Spec: guest.Spec{Name: "new", VCPUs: c.vcpus,
			Memory: c.memory * gib, Limits: c.limits}})
		if err != nil {
			t.Fatal(name, err)
		}
		if p.Nodes.String() != c.nodes {
			t.Errorf("%s: nodes %v, want %s\n%s", name, p.Nodes, c.nodes, why.Text())
		}
	}
}

// Dedicated CPUs are on cores of which no other VM has a CPU, if a cache has enough of them: CPUs 16 to 19 of the VM rt
// are siblings of 0 to 3.
func TestPlace_LeavesSiblingsOfDedicatedCPUs(t *testing.T) {
	p, _, err := Place(Request{Host: inventorytest.Saved(t, "smt-l3c"), Spec: guest.Spec{Name: "new", VCPUs: 4, Memory: gib,
		CPU: guest.CPUSpec{Binding: guest.CPUExclusive}, Limits: guest.Limits{Nodes: topology.SetOf[topology.NodeID](0)}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Exclusive().String(); got != "4-7" {
		t.Errorf("it gets CPUs %s, want 4-7", got)
	}
}
