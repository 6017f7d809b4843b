package balance

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// A move gave way: its VM runs on its target, and a part of its memory is there. Others have begun to work, with all of
// their memory on node 0. They go to other nodes. To exchange a target would copy the part that has come a second time.
func TestPlan_ExchangesNoTargets(t *testing.T) {
	const mib, hosts = topology.MiB, 400
	exchanged := 0
	for seed := range uint64(hosts) {
		rng := rand.New(rand.NewPCG(seed, 3))
		h := machine("nodes:4 cores:1 memory:2G square distances:10,16,28")
		past := Past{}
		work := func(v vm, came topology.Bytes) {
			demand := 0.4 + 0.6*rng.Float64()
			v.vcpus, v.memory, v.wait = 1, 345*mib, 0.15*demand*rng.Float64()
			v.used = demand - v.wait
			v.memOn = topology.MemoryByNode{0: v.memory - came, v.cpus[0]: came}
			if came == 0 {
				v.memOn = topology.MemoryByNode{0: v.memory}
			}
			v.change = func(g *inventory.Guest) {
				g.Config.Source, g.Seen.Load.Window = "anonymous", time.Second
				if len(v.cpus) > 1 {
					g.Placement, g.Spec, g.Managed = nil, nil, false
				}
			}
			add(h, v)
			past.Degraded = append(past.Degraded, plan.Degraded{Guest: v.name, Since: noon.Add(-3 * time.Second)})
		}
		work(vm{name: "stays", cpus: on(0)}, 0)
		work(vm{name: "begun", cpus: on(1)}, topology.Bytes(20+rng.IntN(200))*mib)
		for _, name := range []string{"new1", "new2"}[:1+rng.IntN(2)] {
			work(vm{name: name, cpus: on(0, 1, 2, 3)}, 0)
		}
		for n := range h.Topology.Nodes {
			used := 0.3 + 0.7*rng.Float64()
			h.Load = append(h.Load, inventory.NodeLoad{Node: topology.NodeID(n), CPU: used, VCPUs: 0.8 * used})
		}
		h.MoverBytesPerSecond = 231 * mib
		p := auto("stays", "begun", "new1", "new2")
		p.Balance.DegradedFor, p.Balance.MinCPUDemand = policy.Duration(500*time.Millisecond), 0.3
		round, err := Plan(Request{Host: h, Policy: p, Now: noon, Past: past})
		if err != nil {
			t.Fatal(err)
		}
		leaves := !goesTo(round, "begun").IsEmpty() && !goesTo(round, "begun").Contains(1)
		if leaves && (goesTo(round, "new1").Contains(1) || goesTo(round, "new2").Contains(1)) {
			exchanged++
			t.Logf("host %d:\n%s", seed, round.Text())
		}
	}
	if exchanged > hosts/100 {
		t.Errorf("the VM leaves its node to another one on %d of %d hosts", exchanged, hosts)
	}
}
