package balance

import (
	"fmt"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/inventory/inventorytest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// VMs of 2, 1, 2 and 1 busy vCPUs have their memory on a node of two CPUs. The two of one vCPU stay, and the two others
// are copied: with one of two vCPUs staying, three would be.
func TestPlan_TheFewestVMsLeaveAFullNode(t *testing.T) {
	for _, rate := range []topology.Bytes{25, 100, 1000} {
		for _, over := range []time.Duration{0, 1500 * time.Millisecond, 5 * time.Second} { // 0: lasting
			h := machine("nodes:8 cores:2 memory:1536M distances:10,16,28")
			h.MoverBytesPerSecond = rate * topology.MiB
			names, past := []string(nil), Past{Worked: map[string]time.Duration{}}
			for i, vcpus := range []int{2, 1, 2, 1} {
				name := fmt.Sprintf("w%d", i)
				names, past.Worked[name] = append(names, name), over
				add(h, vm{name: name, vcpus: vcpus, memory: tightMemory, cpus: on(0, 1, 2, 3, 4, 5, 6, 7),
					used: float64(vcpus), memOn: bytesOn(0, tightMemory), notOurs: true})
			}
			for n, own := range []float64{0.17, 0.19, 0.01, 0.23, 0.01, 0.27, 0.03, 0.03} { // of the host
				load := inventory.NodeLoad{Node: topology.NodeID(n), CPU: 0.75 + own, VCPUs: 0.75}
				h.Load = append(h.Load, load)
			}
			p := auto(names...)
			p.Balance.DegradedFor = policy.Duration(time.Second)
			round, err := Plan(Request{Host: h, Policy: p, Now: noon, Past: past, Lasting: over == 0})
			if err != nil {
				t.Fatal(err)
			}
			bytes := topology.Bytes(0)
			for _, m := range round.Moves {
				bytes += m.Cost.Bytes
			}
			if len(round.Moves) == 0 || bytes != 2*tightMemory {
				t.Errorf("%d MiB a second, over for %v: %v copied, 690 MiB are enough\n%s", rate, over, bytes,
					round.Text())
			}
		}
	}
}

// Two of four VMs work, and all have their memory on one node. With the idle ones pinned there, the best state copies
// both VMs that work. The idle ones have no reason to move, so one of the others stays and one is copied.
func TestPlan_IdleVMsThatStayCauseNoCopy(t *testing.T) {
	h := machine("nodes:4 cores:1 memory:1536M distances:10,16,28")
	h.MoverBytesPerSecond = 100 * topology.MiB
	var names []string
	for i, used := range []float64{1, 1, 0.05, 0.05} {
		name := fmt.Sprintf("w%d", i)
		names = append(names, name)
		add(h, vm{name: name, vcpus: 1, memory: tightMemory, cpus: on(0, 1, 2, 3), used: used,
			memOn: bytesOn(0, tightMemory), notOurs: true})
	}
	round, err := Plan(Request{Host: h, Policy: auto(names...), Now: noon, Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	bytes := topology.Bytes(0)
	for _, m := range round.Moves {
		bytes += m.Cost.Bytes
	}
	if len(round.Degraded) != 2 || bytes != tightMemory {
		t.Errorf("%d are degraded, want 2; %v are copied, want %v\n%s", len(round.Degraded), bytes, tightMemory,
			round.Text())
	}
}

// Four VMs with one vCPU each have their memory on a node with one CPU, on a host of two sockets with four such nodes
// each. One stays, and the others go to the near nodes: their memory is remote until it is copied, and a near node is
// less remote than a far one.
func TestPlan_CopiesToNearNodes(t *testing.T) {
	for _, home := range []topology.NodeID{0, 2, 5, 7} {
		h := machine("nodes:8 sockets:2 cores:1 memory:1536M distances:10,16,28")
		h.MoverBytesPerSecond = 100 * topology.MiB
		var names []string
		for i := range 4 {
			name := fmt.Sprintf("w%d", i)
			names = append(names, name)
			add(h, vm{name: name, vcpus: 1, memory: tightMemory, cpus: on(0, 1, 2, 3, 4, 5, 6, 7), used: 1,
				memOn: bytesOn(home, tightMemory), notOurs: true})
		}
		round, err := Plan(Request{Host: h, Policy: auto(names...), Now: noon, Lasting: true})
		if err != nil {
			t.Fatal(err)
		}
		copies, from := 0, h.Topology.Nodes[home]
		for _, m := range round.Moves {
			for _, g := range m.Guests {
				if g.Bytes == 0 {
					continue
				}
				copies++
				for n := range g.Placement.Nodes.All() {
					if from.Distances[n] != 16 {
						t.Errorf("%s is copied from node %d to node %d, at distance %d; a near node is idle", g.Guest, home, n,
							from.Distances[n])
					}
				}
			}
		}
		if copies != 3 {
			t.Errorf("%d VMs are copied from node %d, want 3\n%s", copies, home, round.Text())
		}
	}
}

// As above, on a host that was observed in the lab: the VMs have worked for less than a second, and the host's own work
// uses a third of two nodes. To copy both saves some thousandths of a CPU more than to copy one: less than a copy must
// save.
func TestPlan_AYoungLoadCausesNoSecondCopy(t *testing.T) {
	h := inventorytest.Saved(t, "young-load")
	now := h.Taken
	past := Past{Degraded: []plan.Degraded{
		{Guest: "w0", Since: now.Add(-600 * time.Millisecond), Wait: 0.09},
		{Guest: "w1", Since: now.Add(-900 * time.Millisecond), Wait: 0.06}}}
	p := auto("w0", "w1", "w2", "w3")
	p.Balance.DegradedFor, p.Balance.MinCPUDemand = policy.Duration(500*time.Millisecond), 0.3
	round, err := Plan(Request{Host: h, Policy: p, Now: now, Past: past})
	if err != nil {
		t.Fatal(err)
	}
	bytes := topology.Bytes(0)
	for _, m := range round.Moves {
		bytes += m.Cost.Bytes
	}
	if len(round.Moves) != 2 || bytes > 360*topology.MiB {
		t.Errorf("%v are copied, one VM is enough\n%s", bytes, round.Text())
	}
}
