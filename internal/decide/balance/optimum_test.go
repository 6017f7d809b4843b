package balance

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// ungated lets every move that pays be made at once.
var ungated = policy.Policy{Balance: policy.Balance{
	Wait: 1e-9, MinCPUDemand: 1e-9, MinGain: 1e-12, Horizon: policy.Duration(100_000 * time.Hour),
	BytesPerRound: topology.TiB, GuestsPerRound: 1000,
}}

// twin is the plainest search: every guest on every node or as it is, priced
// as the package comment says. It shares no code with the balancer.
type twin struct {
	h       *inventory.Host
	latency func(a, b topology.NodeID) float64
	home    []topology.NodeID // where vCPUs are, by guest
	memory  []topology.NodeID
	demand  []float64
	bursts  []float64 // CPUs of waiting that CPU use does not explain
}

func newTwin(h *inventory.Host) *twin {
	w := &twin{h: h, latency: func(a, b topology.NodeID) float64 {
		d, _ := h.Topology.Distance(a, b)
		return math.Pow(float64(d)/10, 0.65)
	}}
	for _, g := range h.Guests {
		n, _ := g.Placement.Nodes.First()
		w.home = append(w.home, n)
		for m := range g.Seen.MemoryByNode {
			w.memory = append(w.memory, m)
		}
		w.demand = append(w.demand, g.Seen.Load.CPU+g.Seen.Load.Wait)
	}
	for i, g := range h.Guests {
		asked, vcpus := 0.0, 0
		for k := range h.Guests {
			if w.home[k] == w.home[i] {
				asked, vcpus = asked+w.demand[k], vcpus+h.Guests[k].Config.VCPUs
			}
		}
		waits := inQueue(asked, vcpus, h.Topology.Nodes[w.home[i]].CPUs.Len())
		w.bursts = append(w.bursts, max(0, g.Seen.Load.Wait-w.demand[i]*waits/asked))
	}
	return w
}

// inQueue is how many of the vCPUs of a node wait for a CPU on average. There are never more
// in the queue than vCPUs without a CPU.
func inQueue(asked float64, vcpus, cpus int) float64 {
	if vcpus <= cpus {
		return 0
	}
	return min(float64(vcpus-cpus), asked*waiting(asked/float64(cpus)))
}

// waiting is the share of demand that waits at a CPU use.
func waiting(use float64) float64 { return 1 - math.Pow(1+math.Pow(use, 8), -1.0/8) }

// cost returns the cost of a state: to[i] is the node of guest i, or -1 for its
// current layout.
func (w *twin) cost(to []topology.NodeID) (cost float64, cpu, queues []float64, ok bool) {
	nodes := len(w.h.Topology.Nodes)
	cpu, queues = make([]float64, nodes), make([]float64, nodes)
	bursts := make([]float64, nodes)
	vcpus, held, gains := make([]int, nodes), make([]topology.Bytes, nodes), make([]bool, nodes)
	at := func(i int) (run, mem topology.NodeID) {
		if to[i] < 0 {
			return w.home[i], w.memory[i]
		}
		return to[i], to[i]
	}
	for i, g := range w.h.Guests {
		run, mem := at(i)
		cpu[run] += w.demand[i]
		bursts[run] += w.bursts[i]
		vcpus[run] += g.Config.VCPUs
		if to[i] < 0 && w.home[i] != w.memory[i] { // reserved at home, seen elsewhere: both are lost
			held[run] += g.Config.Memory
		}
		held[mem] += g.Config.Memory
		if to[i] >= 0 {
			gains[to[i]] = true
		}
	}
	for i := range w.h.Guests {
		run, mem := at(i)
		cost += w.demand[i] * 4 * (1 - 1/w.latency(run, mem))
		if to[i] >= 0 && to[i] != w.memory[i] { // 1 GiB is copied in a second
			seconds := 1 + float64(w.h.Guests[i].Config.Memory)/float64(gib)
			cost += 4 * seconds * (1 + w.demand[i]/4) / time.Duration(ungated.Balance.Horizon).Seconds()
		} else if to[i] >= 0 && to[i] != w.home[i] {
			cost += w.demand[i] * 0.00001
		}
	}
	for k := range nodes {
		n := &w.h.Topology.Nodes[k]
		use := cpu[k] / float64(n.CPUs.Len())
		queues[k] = inQueue(cpu[k], vcpus[k], n.CPUs.Len())
		cost += 4*queues[k] + 4*bursts[k]*use + 0.005*cpu[k]*max(use, use*use)
		if gains[k] && (vcpus[k] > 2*n.CPUs.Len() || held[k] > n.Memory-policy.Policy{}.KeepFreeOn(n)) {
			return 0, nil, nil, false
		}
	}
	return cost, cpu, queues, true
}

// best tries all states.
func (w *twin) best() float64 {
	to := make([]topology.NodeID, len(w.h.Guests))
	for i := range to {
		to[i] = -1
	}
	low, before, _, _ := w.cost(to)
	var try func(i int)
	try = func(i int) {
		if i < len(to) {
			for n := topology.NodeID(-1); int(n) < len(w.h.Topology.Nodes); n++ {
				to[i] = n
				try(i + 1)
			}
			to[i] = -1
			return
		}
		cost, cpu, queues, ok := w.cost(to)
		if !ok || cost >= low {
			return
		}
		for k := range w.h.Topology.Nodes {
			if cpu[k] > before[k]+1e-9 && queues[k] > cpu[k]*waiting(0.9)+1e-9 {
				return
			}
		}
		low = cost
	}
	try(0)
	return low
}

func drawSmall(t *rapid.T, nodes, guests int) *inventory.Host {
	h := machine(fmt.Sprintf("nodes:%d cores:4 memory:16G distances:10,16,28 square", nodes))
	for i := range guests {
		v := vm{name: fmt.Sprintf("g%d", i), vcpus: rapid.IntRange(1, 4).Draw(t, "vcpus")}
		v.memory = topology.Bytes(rapid.IntRange(1, 6).Draw(t, "memory")) * gib
		v.cpus = on(topology.NodeID(rapid.IntRange(0, nodes-1).Draw(t, "runs")))
		v.memory = min(v.memory, topology.Bytes(24/guests)*gib)
		at := &h.Topology.Nodes[rapid.IntRange(0, nodes-1).Draw(t, "lies")]
		for k := range h.Topology.Nodes { // memory is where it found room
			if other := &h.Topology.Nodes[k]; at.Free < v.memory+gib && other.Free > at.Free {
				at = other
			}
		}
		v.memOn = bytesOn(at.ID, v.memory)
		v.used = float64(v.vcpus) * rapid.Float64Range(0.3, 0.9).Draw(t, "used")
		v.wait = (float64(v.vcpus) - v.used) * rapid.Float64Range(0.1, 1).Draw(t, "wait")
		add(h, v)
	}
	return h
}

// described prints a drawn host in a few lines.
func described(h *inventory.Host) string {
	text := fmt.Sprintf("%d nodes\n", len(h.Topology.Nodes))
	for _, g := range h.Guests {
		text += fmt.Sprintf("  %s: %d vCPUs on %s ask for %.2f, memory %v\n", g.Name, g.Config.VCPUs, g.Placement.Nodes,
			demandOf(&g), g.Seen.MemoryByNode)
	}
	return text
}

// within compares the cost that a plan reaches with the optimum. The plan may miss
// the given part of the possible gain.
func within(t fataler, h *inventory.Host, p policy.Policy, part float64) (gap float64) {
	round, err := Plan(Request{Host: h, Policy: p, Now: noon, Lasting: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	legal(t, h, p, round)
	w := newTwin(h)
	to := make([]topology.NodeID, len(h.Guests))
	for i := range to {
		to[i] = -1
	}
	if before, _, _, _ := w.cost(to); math.Abs(before-round.Before) > 1e-3*before {
		t.Fatalf("it costs %v now, the plan says %v", before, round.Before)
	}
	best := w.best()
	// A move that saves less than 0.01 CPUs, 0.04 in this cost, is not made.
	gap = (round.After - best) / round.Before
	if round.After > best+part*(round.Before-best)+0.04*float64(len(h.Guests)) {
		t.Fatalf("%sthe plan reaches %v, possible is %v (%.1f %% less); %v now\n%s", described(h), round.After, best,
			100*(1-best/round.After), round.Before, round.Text())
	}
	return gap
}

func TestSmallHostsReachTheOptimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(2, 4).Draw(t, "nodes")
		guests := rapid.IntRange(1, 5).Draw(t, "guests")
		within(t, drawSmall(t, nodes, guests), ungated, 0.02)
	})
}

// Where there are too many combinations to try them all, the descent comes as
// near on average.
func TestDescentComesNearTheOptimum(t *testing.T) {
	const hosts = 100
	descent := ungated
	descent.SearchSteps = 30 // combinations: these hosts have some hundreds and more
	drawn := rapid.Custom(func(t *rapid.T) *inventory.Host {
		return drawSmall(t, rapid.IntRange(2, 3).Draw(t, "nodes"), rapid.IntRange(5, 6).Draw(t, "guests"))
	})
	worst, sum := 0.0, 0.0
	for seed := range hosts {
		gap := within(t, drawn.Example(seed), descent, 1)
		worst, sum = max(worst, gap), sum+max(0, gap)
	}
	t.Logf("%.2f %% above the optimum on average, %.2f %% at worst", 100*sum/hosts, 100*worst)
	if sum/hosts > 0.02 {
		t.Errorf("%.2f %% above the optimum on average", 100*sum/hosts)
	}
}

func demandOf(g *inventory.Guest) float64 {
	if l := g.Seen.Load; l != nil {
		return l.Demand()
	}
	return float64(g.Config.VCPUs)
}
