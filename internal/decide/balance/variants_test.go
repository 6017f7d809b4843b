package balance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// variant is a case on another host: with more nodes, on other nodes, and of another size.
type variant struct {
	nodes  int
	first  topology.NodeID // node of what the case has on node 0
	scale  float64         // of CPUs, vCPUs, loads and memory
	square bool            // distances of three kinds, else of two
}

func (v variant) String() string {
	return fmt.Sprintf("%d nodes from %d, %v times as large, square %v", v.nodes, v.first, v.scale, v.square)
}

// node is the node of this host that a case calls n.
func (v variant) node(n int) topology.NodeID {
	return topology.NodeID((int(v.first) + n) % v.nodes)
}

// machine is a host whose nodes have the given CPUs and GiB in the case itself.
func (v variant) machine(cores, memory float64) *inventory.Host {
	distances := "10,21"
	if v.square {
		distances = "10,16,28 square"
	}
	return machine(fmt.Sprintf("nodes:%d cores:%d memory:%dG distances:%s", v.nodes, int(cores*v.scale),
		int(memory*v.scale), distances))
}

// add puts a guest on the host: its figures are those of the case, memory in GiB.
func (v variant) add(h *inventory.Host, name string, vcpus, memory float64, runs, lies int, used, wait float64) {
	bytes := topology.Bytes(memory*v.scale) * gib
	add(h, vm{name: name, vcpus: int(vcpus * v.scale), memory: bytes, cpus: on(v.node(runs)),
		memOn: bytesOn(v.node(lies), bytes), used: used * v.scale, wait: wait * v.scale})
}

// others fills the nodes from the given one on with VMs that are well there.
func (v variant) others(h *inventory.Host, from int, vcpus, used float64) {
	for n := from; n < v.nodes; n++ {
		v.add(h, fmt.Sprintf("other%d", n), vcpus, 4, n, n, used, 0)
	}
}

func variants() []variant {
	var all []variant
	hosts, scales := []int{2, 4, 6, 8}, []float64{1, 2, 4}
	if testing.Short() {
		hosts, scales = []int{2, 4, 7}, []float64{2}
	}
	for _, nodes := range hosts {
		for _, first := range []topology.NodeID{0, topology.NodeID(nodes - 1)} {
			for _, scale := range scales {
				all = append(all, variant{nodes, first, scale, nodes == 4 && scale == 2})
			}
		}
	}
	return all
}

// An expert's answers do not depend on the number of nodes, their IDs, or the sizes.
func TestPlan_AnswersAsAnExpertOnOtherHosts(t *testing.T) {
	cases := map[string]struct {
		build  func(v variant) *inventory.Host
		most   float64 // GiB copied in the case itself
		guests string  // that move, or all, or none; others may as well
		repair bool    // nothing may be lost to memory or CPUs afterwards
	}{
		"the cheapest VM leaves a crowded node": {func(v variant) *inventory.Host {
			h := v.machine(8, 64)
			v.add(h, "busy1", 8, 2, 0, 0, 5, 2)
			v.add(h, "busy2", 4, 16, 0, 0, 2.86, 1.14)
			v.add(h, "hugeidle", 8, 40, 0, 0, 0.14, 0.06)
			v.others(h, 2, 8, 7)
			return h
		}, 2, "busy1", true},
		"the small VM is copied, not the large one": {func(v variant) *inventory.Host {
			h := v.machine(32, 512)
			v.add(h, "db", 24, 400, 0, 1, 20, 0)
			v.add(h, "hog", 24, 80, 1, 1, 20, 0)
			v.others(h, 2, 28, 26)
			return h
		}, 80, "db hog", true},
		"a little wait next to an idle node": {func(v variant) *inventory.Host {
			h := v.machine(8, 64)
			for i, memory := range []float64{8, 2, 6, 4} {
				v.add(h, fmt.Sprintf("g%d", i), 2, memory, 0, 0, 1.79, 0.19)
			}
			v.others(h, 2, 8, 7)
			return h
		}, 2, "", false},
		"every VM runs next to its neighbour's memory": {func(v variant) *inventory.Host {
			h := v.machine(8, 32)
			for n := range v.nodes {
				v.add(h, fmt.Sprintf("a%d", n), 3, 15, n, n+1, 2.5, 0)
				v.add(h, fmt.Sprintf("b%d", n), 3, 15, n, n+1, 2.5, 0)
			}
			return h
		}, 0, "all", true},
		"promised more than the nodes have": {func(v variant) *inventory.Host {
			h := v.machine(8, 32)
			for n := range v.nodes {
				bytes := topology.Bytes(40*v.scale) * gib
				add(h, vm{name: fmt.Sprintf("fat%d", n), vcpus: 2, memory: bytes, cpus: on(v.node(n)),
					memOn: bytesOn(v.node(n), bytes/8), used: 0.5})
			}
			v.add(h, "ours", 4, 4, 0, 1, 3, 0)
			return h
		}, 0, "ours", true},
		"load between full nodes": {func(v variant) *inventory.Host {
			h := v.machine(8, 64)
			for n := range v.nodes {
				v.add(h, fmt.Sprintf("a%d", n), 8, 8, n, n, 5+float64(n%2), 1)
				v.add(h, fmt.Sprintf("b%d", n), 8, 8, n, n, 4, 1)
			}
			return h
		}, 0, "none", false},
		"nearly idle VMs far from their memory": {func(v variant) *inventory.Host {
			h := v.machine(8, 64)
			v.add(h, "idle", 2, 30, 0, 1, 0.004, 0)
			v.others(h, 2, 8, 7)
			return h
		}, 0, "none", false},
	}
	for name, c := range cases {
		for _, v := range variants() {
			h := c.build(v)
			round := planned(t, h, policy.Policy{Balance: policy.Balance{GuestsPerRound: 32, BytesPerRound: topology.TiB}})
			if wrong := judged(round, v, c.most, c.guests, c.repair); wrong != "" {
				t.Errorf("%s, %s: %s\n%s%s", name, v, wrong, described(h), round.Text())
			}
		}
	}
}

// judged returns what is wrong with a plan; "" if nothing is.
func judged(round plan.Plan, v variant, most float64, guests string, repair bool) string {
	bytes, moved, lost := topology.Bytes(0), 0, round.After
	for _, m := range round.Moves {
		bytes += m.Cost.Bytes
		lost -= m.Cost.Cost // the price of copying is paid once
		moved += len(m.Guests)
	}
	switch {
	case float64(bytes) > most*v.scale*float64(gib):
		return fmt.Sprintf("%v are copied", bytes)
	case guests == "none" && moved > 0:
		return "something moves"
	case guests != "none" && moved == 0:
		return "nothing moves"
	case guests == "all" && moved != 2*v.nodes:
		return fmt.Sprintf("%d VMs move", moved)
	case repair && lost > 0.1*round.Before:
		return "too much is lost after it"
	}
	for _, g := range strings.Fields(guests) {
		if g != "all" && g != "none" && goesTo(round, g).IsEmpty() {
			return g + " stays"
		}
	}
	return ""
}

// An expert's answers to placing on hosts of other sizes, with other nodes.
func TestPlace_AnswersAsAnExpertOnOtherHosts(t *testing.T) {
	cases := map[string]struct {
		build  func(v variant) *inventory.Host
		vcpus  float64
		memory float64 // GiB
		on     []int   // nodes of the case with CPUs for it
	}{
		"the node that is idle by measurement": {func(v variant) *inventory.Host {
			h := v.machine(8, 32)
			v.add(h, "busy", 8, 8, 0, 0, 7.8, 0.2)
			v.add(h, "calm", 9, 9, 1, 1, 0.05, 0)
			v.others(h, 2, 8, 7.8)
			return h
		}, 4, 4, []int{1}},
		"the node that the host's own programs leave idle": {func(v variant) *inventory.Host {
			h := v.machine(8, 32)
			for n := range v.nodes {
				if n != 1 {
					h.Load = append(h.Load, inventory.NodeLoad{Node: v.node(n), CPU: 8 * v.scale, Wait: 6 * v.scale})
				}
			}
			return h
		}, 4, 4, []int{1}},
		"unequal nodes": {func(v variant) *inventory.Host {
			h := v.machine(8, 48)
			for n := 1; n < v.nodes; n++ {
				memory := 32.
				if n > 1 {
					memory = 46
				}
				v.add(h, fmt.Sprintf("old%d", n), 2, memory, n, n, 1, 0)
			}
			return h
		}, 8, 56, []int{0, 1}},
		"one vCPU with more memory than a node": {func(v variant) *inventory.Host {
			h := v.machine(8, 64)
			v.others(h, 2, 8, 8) // their CPUs are all in use
			return h
		}, 1, 100, []int{0, 1}},
	}
	for name, c := range cases {
		for _, v := range variants() {
			h := c.build(v)
			got, why, err := place.Place(place.Request{Host: h, Spec: guest.Spec{Name: "new",
				VCPUs: int(c.vcpus * v.scale), Memory: topology.Bytes(c.memory*v.scale) * gib}})
			var nodes topology.NodeSet
			for _, n := range c.on {
				nodes = nodes.With(v.node(n))
			}
			if err != nil || !why.Optimal || !runsOn(got).SubsetOf(h.Topology.CPUsOf(nodes)) {
				t.Errorf("%s, %s: on nodes %s, its vCPUs should be on %s; proven %v, error %v\n%s", name, v, got.Nodes, nodes,
					why.Optimal, err, described(h))
			}
		}
	}
}

// runsOn returns the CPUs of all vCPUs of a placement.
func runsOn(p guest.Placement) topology.CPUSet {
	var cpus topology.CPUSet
	for _, v := range p.VCPUs {
		cpus = cpus.Union(v.CPUs)
	}
	return cpus
}
