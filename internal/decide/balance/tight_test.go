package balance

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// tightMemory is what a VM of 352 MiB has touched.
const tightMemory = 345 * topology.MiB

// tight is the start of the benchmark's layout of this name: the memory of four
// unmanaged VMs with a busy vCPU each is on node 0, which has CPUs for two of them. The
// vCPUs may run anywhere, or are still bound to the nodes given.
func tight(bound ...topology.NodeID) *inventory.Host {
	h := machine("nodes:4 cores:2 memory:1408M distances:10,16,28 square")
	for i := range 4 {
		v := vm{name: fmt.Sprintf("w%d", i), vcpus: 1, memory: tightMemory, cpus: on(0, 1, 2, 3), used: 1,
			memOn: bytesOn(0, tightMemory), notOurs: true, change: func(g *inventory.Guest) {
				g.Config.NUMATune = &inventory.NUMATune{
					Mode: "restrictive", Nodes: topology.MustParseSet[topology.NodeID]("0-3"),
				}
				g.Seen.Load.Remote = &inventory.Remote{Share: 0.75, Source: inventory.AccessCounter}
			}}
		if len(bound) > 0 {
			v.cpus = on(bound[i])
		}
		add(h, v)
	}
	return h
}

// A node with a CPU for each vCPU is not crowded, although its CPUs are busy: two VMs
// stay with their memory, and two are copied to nodes of their own.
func TestPlan_CopiesOnlyWhatHasNoCPU(t *testing.T) {
	for name, bound := range map[string][]topology.NodeID{"anywhere": nil, "bound": on(1, 1, 2, 3)} {
		for _, hosts := range []float64{0, 0.01, 0.05} { // CPUs that other programs use on each node
			h := tight(bound...)
			demand := [4]float64{1, 1, 1, 1}
			if bound != nil {
				demand = [4]float64{0, 2, 1, 1}
			}
			for n, cpus := range demand {
				h.Load = append(h.Load, inventory.NodeLoad{Node: topology.NodeID(n), CPU: cpus + hosts})
			}
			round := planned(t, h, auto("w0", "w1", "w2", "w3"))
			bytes := topology.Bytes(0)
			for _, m := range round.Moves {
				bytes += m.Cost.Bytes
			}
			if bytes != 2*tightMemory {
				t.Errorf("%s, %v CPUs of the host: %v copied, 690 MiB are enough\n%s", name, hosts, bytes, round.Text())
			}
			home := map[topology.NodeID]int{}
			for i := range 4 {
				node, _ := goesTo(round, fmt.Sprintf("w%d", i)).First()
				home[node]++
			}
			if home[0] != 2 || len(home) != 3 {
				t.Errorf("%s, %v CPUs of the host: VMs by node %v\n%s", name, hosts, home, round.Text())
			}
		}
	}
}

// smearedOverEight is the start of the benchmark's layout eight-smeared: six VMs of a busy vCPU that
// may run on each of eight nodes of one CPU, with memory on four of them.
func smearedOverEight() (h *inventory.Host, names []string) {
	h = machine("nodes:8 cores:1 memory:960M distances:10,16,28")
	for i := range 6 {
		names = append(names, fmt.Sprintf("w%d", i))
		v := vm{name: names[i], vcpus: 1, memory: 320 * topology.MiB, cpus: on(0, 1, 2, 3, 4, 5, 6, 7), used: 1,
			memOn: topology.MemoryByNode{}, notOurs: true}
		for _, n := range on(0, 2, 4, 6) {
			v.memOn[n] = topology.Bytes(76+(i*7+int(n)*3)%11) * topology.MiB
		}
		add(h, v)
	}
	for n := range 8 {
		h.Load = append(h.Load, inventory.NodeLoad{Node: topology.NodeID(n), CPU: 0.8})
	}
	return h, names
}

// vCPUs that may run on every node leave a node that fills up, as long as other nodes have idle
// CPUs: each VM moves to a node of one CPU, although the vCPUs of the others counted there.
func TestPlan_RoamingVCPUsLeaveFullNodes(t *testing.T) {
	h, names := smearedOverEight()
	round := planned(t, h, auto(names...))
	homes := map[topology.NodeID]bool{}
	for _, name := range names {
		to := goesTo(round, name)
		home, one := to.First()
		if !one || to.Len() != 1 || homes[home] {
			t.Errorf("%s goes to nodes %v", name, to)
		}
		homes[home] = true
	}
	if t.Failed() {
		t.Log(round.Text())
	}
}

// Where vCPUs happened to run is not the host's work: two VMs stay with their memory on a node
// with a CPU for each vCPU, although the node's load and the mean use of the VMs differ.
func TestPlan_LoadsOfRoamingVCPUsAreNotTheHosts(t *testing.T) {
	h := machine("nodes:4 cores:3 memory:1536M distances:10,16,28 square")
	for i, vcpus := range []int{1, 2, 3} {
		home := topology.NodeID(i / 2 * 3) // 0, 0, 3
		memory := topology.Bytes(352+144*i) * topology.MiB
		add(h, vm{name: fmt.Sprintf("w%d", i), vcpus: vcpus, memory: memory, cpus: on(0, 1, 2, 3), used: float64(vcpus),
			memOn: bytesOn(home, memory), notOurs: true})
	}
	vcpus := []float64{2.15, 2.6, 0.85, 0.4} // by the CPUs on which they ran
	for n, cpus := range []float64{2.2, 3, 1.1, 0.6} {
		h.Load = append(h.Load, inventory.NodeLoad{Node: topology.NodeID(n), CPU: cpus, VCPUs: vcpus[n]})
	}
	round := planned(t, h, auto("w0", "w1", "w2"))
	for name, want := range map[string]string{"w0": "0", "w1": "0", "w2": "3"} {
		if got := goesTo(round, name).String(); got != want {
			t.Errorf("%s goes to nodes %s, want %s\n%s", name, got, want, round.Text())
		}
	}
}

// How much may wait on a node whose vCPUs keep all of its CPUs busy.
func TestModel_NoMoreWaitsThanHasNoCPU(t *testing.T) {
	const four = "nodes:2 cores:4 memory:16G"
	busy := func(n int) func(h *inventory.Host) {
		return func(h *inventory.Host) {
			for i := range n {
				add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 1, memory: gib, cpus: on(0), used: 4 / float64(n)})
			}
		}
	}
	byUse := 4 * overloaded(1)
	and := func(fill, more func(h *inventory.Host)) func(h *inventory.Host) {
		return func(h *inventory.Host) { fill(h); more(h) }
	}
	work := func(h *inventory.Host) { hostWork(h, 4.2) }
	pinned := func(h *inventory.Host) { confine(h, 0, 0) }
	created := func(h *inventory.Host) { create(h, 2) }
	const smt = "nodes:2 cores:2 threads:2 memory:16G"
	for name, c := range map[string]struct {
		machine string
		count   policy.Capacity
		fill    func(h *inventory.Host)
		want    float64 // CPUs
	}{
		"a CPU for each vCPU":                 {four, "", busy(4), 0},
		"a vCPU more, which wants little":     {four, "", busy(5), byUse},
		"a fifth of a CPU of the host's work": {four, "", and(busy(4), work), 0.2},
		"hardware threads of four busy cores": {smt, "", busy(4), byUse},
		"hardware threads that count as CPUs": {smt, policy.CountThreads, busy(4), 0},
		"a vCPU that may run on one CPU":      {four, "", and(busy(4), pinned), byUse},
		"a VM of two vCPUs is being created":  {four, "", and(busy(4), created), byUse},
	} {
		h := machine(c.machine)
		c.fill(h)
		m := newModel(Request{Host: h, Policy: policy.Policy{Count: c.count}, Now: noon})
		if got := m.waiting(0, m.use(0)); got < c.want-1e-6 || got > c.want+1e-6 {
			t.Errorf("%s: %v CPUs wait, want %v", name, got, c.want)
		}
	}
}

func hostWork(h *inventory.Host, cpus float64) { h.Load = []inventory.NodeLoad{{Node: 0, CPU: cpus}} }

// confine pins the vCPUs of a guest to one CPU.
func confine(h *inventory.Host, i int, cpu topology.CPUID) {
	for k := range h.Guests[i].Seen.Threads {
		h.Guests[i].Seen.Threads[k].Affinity = topology.SetOf(cpu)
	}
}

// create claims CPUs of node 0 for a guest that does not run yet.
func create(h *inventory.Host, vcpus int) {
	h.Claims = append(h.Claims, inventory.Claim{Name: "new", Placement: guest.Placement{
		Guest: "new", CPUMode: guest.CPURange, Nodes: topology.SetOf[topology.NodeID](0),
		Reservations: []guest.Reservation{{Node: 0, VCPUs: vcpus}},
	}})
}
