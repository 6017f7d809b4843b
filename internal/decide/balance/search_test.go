package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// onNodeZero returns the request of a plan for unmanaged VMs of one vCPU that have just begun to work. Their memory is
// on node 0, and their vCPUs may run everywhere.
func onNodeZero(host string, count int) Request {
	h, now := machine(host), noon
	var names []string
	var past Past
	for i := range count {
		v, name := guest.VCPUID(0), fmt.Sprintf("w%d", i)
		g := inventory.Guest{Name: name, PID: 100 + i, State: "running", Hypervisor: guest.LibvirtQEMU,
			Can:    inventory.CapabilitiesOf(guest.LibvirtQEMU),
			Config: inventory.Config{VCPUs: 1, Memory: 352 * topology.MiB, Source: "anonymous"}}
		g.Seen.Threads = []inventory.Thread{{Role: inventory.RoleVCPU, VCPU: &v, Affinity: h.Topology.CPUSet()}}
		g.Seen.MemoryByNode = topology.MemoryByNode{0: topology.Bytes(345+i*3) * topology.MiB}
		wait := 0.03 - 0.005*float64(i)
		g.Seen.Load = &inventory.GuestLoad{Window: time.Second, CPU: 1 - wait, Wait: wait}
		h.Guests = append(h.Guests, g)
		names = append(names, name)
		past.Degraded = append(past.Degraded, plan.Degraded{Guest: name, Since: now.Add(-650 * time.Millisecond)})
	}
	for i := range h.Topology.Nodes {
		h.Load = append(h.Load, inventory.NodeLoad{Node: topology.NodeID(i), CPU: 0.75 + 0.02*float64(i), VCPUs: 0.74})
	}
	h.MoverBytesPerSecond = 129 * topology.MiB
	p := auto(names...)
	p.Balance.DegradedFor = policy.Duration(500 * time.Millisecond)
	return Request{Host: h, Policy: p, Now: now, Past: past}
}

// anyLoad gives the VMs of a request any number of vCPUs, places, memory and loads.
func anyLoad(rng *rand.Rand, r *Request) {
	t := &r.Host.Topology
	anyNode := func() topology.NodeID { return topology.NodeID(rng.IntN(len(t.Nodes))) }
	for i := range r.Host.Guests {
		g := &r.Host.Guests[i]
		g.Config.VCPUs = 1 + rng.IntN(3)
		on := t.CPUSet()
		if rng.IntN(2) == 0 {
			on = t.CPUsOf(topology.SetOf(anyNode()))
		}
		g.Seen.Threads = nil
		for v := range guest.VCPUID(g.Config.VCPUs) {
			g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &v, Affinity: on})
		}
		g.Seen.MemoryByNode = topology.MemoryByNode{}
		for range 2 {
			g.Seen.MemoryByNode[anyNode()] += topology.Bytes(rng.IntN(300)) * topology.MiB
		}
		demand := rng.Float64() * float64(g.Config.VCPUs)
		wait := 0.3 * rng.Float64() * demand
		g.Seen.Load = &inventory.GuestLoad{Window: time.Second, CPU: demand - wait, Wait: wait}
	}
	for i := range r.Host.Load {
		l, cpus := &r.Host.Load[i], float64(t.Nodes[i].CPUs.Len())
		l.VCPUs = rng.Float64() * cpus
		l.CPU = min(cpus, l.VCPUs+rng.Float64()/2)
	}
}

// The search finds the best of all combinations, also on hosts where vCPUs have no CPU. Its bound may exclude the best
// one, but then it misses little: on 9 of 20,000 of these hosts, and 0.4 % at most.
func TestSearch_FindsTheBestCombination(t *testing.T) {
	const hosts, misses, off = 600, 3, 0.01
	rng := rand.New(rand.NewPCG(5, 6))
	missed, helped := 0, 0
	for range hosts {
		machines := []string{"nodes:4 cores:1 memory:4G square distances:10,16,28",
			"nodes:4 cores:2 memory:4G square distances:10,16,28", "nodes:3 cores:2 memory:4G", "nodes:2 cores:3 memory:4G"}
		r := onNodeZero(machines[rng.IntN(len(machines))], 2+rng.IntN(5))
		anyLoad(rng, &r)
		r.Policy.Overcommit, r.Policy.SearchSteps = 3, 10_000_000
		m := newModel(r)
		m.markDegraded(r)
		s := &search{m: m}
		for i := range m.guests {
			s.movable = append(s.movable, i)
		}
		before := m.total()
		found, ended := s.bestOfAll(math.Inf(1), 0)
		cost, best := m.costAfter(m.changes(m.state(), found)), leastOfAll(m)
		if !ended || cost > best*(1+off) || cost < best-1e-6 {
			t.Fatalf("the best combination costs %v, the search found one of %v; ended: %v", best, cost, ended)
		}
		if cost > best+1e-6 {
			missed++
		}
		if best < before-1e-6 {
			helped++
		}
	}
	if missed > misses || helped < hosts/2 {
		t.Errorf("%d hosts of %d can be better, and the search misses the best combination of %d", helped, hosts, missed)
	}
}

// leastOfAll returns the cost of the best allowed combination of layouts, and tries them all.
func leastOfAll(m *model) float64 {
	first, began, low := m.state(), slices.Clone(m.usage), math.Inf(1)
	var walk func(k int)
	walk = func(k int) {
		if k == len(m.guests) {
			if m.allowedSince(first, began) {
				low = min(low, m.total())
			}
			return
		}
		for l := range m.guests[k].layouts {
			m.apply(change{k, l})
			walk(k + 1)
		}
	}
	walk(0)
	m.restore(first)
	return low
}

// Six VMs begin to work on a host of eight nodes, and none of the nodes is much better than the others. On the busy
// host there are not enough CPUs for them, as its own programs use a part.
func BenchmarkPlanSixOn8(b *testing.B) {
	for name, used := range map[string]float64{"idle-host": 0.75, "busy-host": 1} {
		r := onNodeZero("nodes:8 sockets:2 cores:1 memory:2G by-socket distances:10,16,28", 6)
		for i := range r.Host.Load {
			r.Host.Load[i].CPU = used
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Plan(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A plan of six VMs takes few steps, because the bound of the search knows that only one of them can have the CPU next
// to their memory.
func TestSearch_ProvesWithFewSteps(t *testing.T) {
	r := onNodeZero("nodes:8 sockets:2 cores:1 memory:2G by-socket distances:10,16,28", 6)
	r.Policy.SearchSteps = 3_000
	m := newModel(r)
	m.markDegraded(r)
	movable := []int{0, 1, 2, 3, 4, 5}
	known := m.descent(movable, len(movable), singleMoves)
	s := &search{m: m, movable: movable}
	if _, ended := s.bestOfAll(m.costAfter(known), equal*m.price(known)); !ended {
		t.Errorf("the search did not end within %d steps", r.Policy.SearchSteps)
	}
}
