package balance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// workers is a host as in the benchmark's layouts: nodes with few CPUs, and VMs that may run anywhere and have their
// memory on node 0, on all nodes or on two of them. Most of them work.
type workers struct {
	host  *inventory.Host
	cpus  int // of each node
	vms   []worker
	names []string
}

type worker struct {
	vcpus  int
	memory []topology.Bytes // by node
	works  bool
}

func newWorkers(r *rand.Rand) workers {
	nodes, w := 4+4*r.IntN(2), workers{cpus: 1 + r.IntN(4)}
	shape := map[int]string{4: "nodes:4 square", 8: "nodes:8 sockets:2"}[nodes]
	w.host = machine(fmt.Sprintf("%s cores:%d memory:2G distances:10,16,28", shape, w.cpus))
	w.host.MoverBytesPerSecond = []topology.Bytes{30, 60, 100}[r.IntN(3)] * topology.MiB
	var every []topology.NodeID
	for n := range nodes {
		every = append(every, topology.NodeID(n))
	}
	used, start := 0.0, r.IntN(3)
	for i := range 2 + r.IntN(5) {
		each := worker{vcpus: 1 + r.IntN(min(3, w.cpus)), memory: make([]topology.Bytes, nodes), works: i < 2 || r.IntN(4) > 0}
		all := topology.Bytes(128+r.IntN(256)) * topology.MiB
		for _, n := range [][]int{{0}, r.Perm(nodes), {r.IntN(nodes), r.IntN(nodes)}}[start] {
			each.memory[n] += all / topology.Bytes([]int{1, nodes, 2}[start])
		}
		v := vm{name: fmt.Sprintf("w%d", i), vcpus: each.vcpus, memory: all, cpus: every, memOn: topology.MemoryByNode{},
			notOurs: true, used: 0.1 * r.Float64()}
		for n, b := range each.memory {
			if b > 0 {
				v.memOn[topology.NodeID(n)] = b
			}
		}
		if each.works {
			v.used = float64(v.vcpus) * (0.5 + 0.5*r.Float64())
			v.wait = 0.1 * v.used * r.Float64() * r.Float64()
		}
		add(w.host, v)
		used += v.used
		w.vms, w.names = append(w.vms, each), append(w.names, v.name)
	}
	each := used / float64(nodes)
	for _, n := range every { // the host's own work needs up to 0.15 CPUs of each
		own := 0.15 * r.Float64()
		load := inventory.NodeLoad{Node: n, CPU: min(float64(w.cpus), each+own), VCPUs: min(float64(w.cpus)-own, each)}
		w.host.Load = append(w.host.Load, load)
	}
	return w
}

// cheapest returns the fewest bytes with which each VM that works is on one node, with a CPU for each vCPU, by trying
// all assignments. ok is false if there is none.
func (w *workers) cheapest() (least topology.Bytes, ok bool) {
	used := make([]int, len(w.host.Topology.Nodes))
	var from func(i int, copied topology.Bytes)
	from = func(i int, copied topology.Bytes) {
		switch {
		case ok && copied >= least:
			return
		case i == len(w.vms):
			least, ok = copied, true
			return
		case !w.vms[i].works:
			from(i+1, copied)
			return
		}
		v, all := &w.vms[i], topology.Bytes(0)
		for _, b := range v.memory {
			all += b
		}
		for n := range used {
			if used[n]+v.vcpus <= w.cpus {
				used[n] += v.vcpus
				from(i+1, copied+all-v.memory[n])
				used[n] -= v.vcpus
			}
		}
	}
	from(0, 0)
	return least, ok
}

// On hosts as in the benchmark's layouts a plan copies at most 1.2 times as much as the cheapest one, but for a few on
// which more copies save more waiting than a copy must save.
func TestPlan_CopiesLittleMoreThanTheCheapestPlan(t *testing.T) {
	const most = 1.2
	hosts, dear, all, cheapest := 0, 0, topology.Bytes(0), topology.Bytes(0)
	for seed := range checks(2000) {
		w := newWorkers(rand.New(rand.NewPCG(uint64(seed), 77)))
		least, ok := w.cheapest()
		if !ok {
			continue
		}
		p := auto(w.names...)
		p.Balance.DegradedFor, p.Balance.MinCPUDemand = policy.Duration(500*time.Millisecond), 0.3
		round := planned(t, w.host, p)
		bytes := topology.Bytes(0)
		for _, m := range round.Moves {
			bytes += m.Cost.Bytes
		}
		hosts, all, cheapest = hosts+1, all+bytes, cheapest+least
		if float64(bytes) > most*float64(least)+float64(topology.MiB) {
			dear++
			t.Logf("host %d: %v are copied, %v are enough\n%s", seed, bytes, least, round.Text())
		}
		for i := range w.vms {
			if to := goesTo(round, w.names[i]); w.vms[i].works && to.Len() != 1 && !slices.ContainsFunc(round.Blocked,
				func(b plan.Blocked) bool { return b.Guest == w.names[i] }) {
				t.Errorf("host %d: %s works and goes to nodes %q\n%s", seed, w.names[i], to, round.Text())
			}
		}
	}
	t.Logf("%d hosts: %v are copied, %v by the cheapest plans; more than %v times as much on %d", hosts, all, cheapest, most, dear)
	if hosts < checks(2000)/2 || dear > hosts/40 || all > cheapest+cheapest/20 {
		t.Errorf("%d hosts: %v are copied, %v by the cheapest plans; more than %v times as much on %d", hosts, all, cheapest, most,
			dear)
	}
}
