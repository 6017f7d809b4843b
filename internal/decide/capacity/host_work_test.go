package capacity_test

import (
	"math"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// What others want of each node is what VMs were measured to want, and the rest of the node's load: the host's own.
func TestAvailable_Demand(t *testing.T) {
	load := func(cpu, wait, throttled float64) *inventory.GuestLoad {
		return &inventory.GuestLoad{CPU: cpu, Wait: wait, Throttled: throttled}
	}
	vm := func(state string, l *inventory.GuestLoad, vcpusOn ...int) inventory.Guest {
		p := &guest.Placement{Guest: "vm"}
		for node, n := range vcpusOn {
			p.Nodes = p.Nodes.With(topology.NodeID(node))
			p.Reservations = append(p.Reservations, guest.Reservation{Node: topology.NodeID(node), VCPUs: n})
		}
		return inventory.Guest{Name: "vm", State: state, Managed: true, Placement: p, Seen: inventory.Seen{Load: l}}
	}
	measured := func(cpu, wait, vcpus float64) []inventory.NodeLoad {
		return []inventory.NodeLoad{{Node: 0, CPU: cpu, Wait: wait, VCPUs: vcpus}, {Node: 1, CPU: 1, VCPUs: 1}}
	}
	for _, c := range []struct {
		name  string
		guest inventory.Guest
		claim bool
		loads []inventory.NodeLoad
		want  []float64
	}{
		{"threads of the host wait", vm("running", load(3, 0, 0), 2, 2), false, measured(4, 6, 2), []float64{1.5 + 8, 1.5}},
		{"all waiting of the VM is on one node", vm("running", load(3, 4, 0), 4, 4), false, measured(2, 4, 2), []float64{3.5, 3.5}},
		{"its quota throttles the VM", vm("running", load(3, 0, 3), 2, 2), false, measured(2, 3, 2), []float64{1.5, 1.5}},
		{"shut off", vm("shutoff", nil, 4), false, measured(1, 0, 0), []float64{1, 0}},
		{"shut off, and about to start", vm("shutoff", nil, 4), true, measured(0, 0, 0), []float64{4, 0}},
	} {
		topo, err := topology.Synthetic("nodes:2 cores:8 memory:16G")
		if err != nil {
			t.Fatal(err)
		}
		h := &inventory.Host{Topology: topo, Guests: []inventory.Guest{c.guest}, Load: c.loads}
		if c.claim {
			h.Claims = []inventory.Claim{{Name: "vm", Placement: *c.guest.Placement}}
		}
		for i, n := range capacity.Available(h, policy.Policy{}.WithDefaults(), "") {
			if math.Abs(n.Demand-c.want[i]) > 1e-9 {
				t.Errorf("%s: others want %v CPUs of node %d, want %v", c.name, n.Demand, i, c.want[i])
			}
		}
	}
}

// The host's work is no more in all than what guests leave of all loads.
func TestHostWork(t *testing.T) {
	for _, c := range []struct{ rest, want []float64 }{
		{[]float64{0.5, 0, 0.1}, []float64{0.5, 0, 0.1}},
		{[]float64{1.5, -0.5, -0.1}, []float64{0.9, 0, 0}},
		{[]float64{1, 1, -1}, []float64{0.5, 0.5, 0}},
		{[]float64{0.5, -1}, []float64{0, 0}},
		{[]float64{-0.5, -1}, []float64{0, 0}},
		{nil, nil},
	} {
		for i, got := range capacity.HostWork(append([]float64(nil), c.rest...)) {
			if math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("%v left: node %d has %v CPUs of the host's work, want %v", c.rest, i, got, c.want[i])
			}
		}
	}
}
