package place

import (
	"math"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// typical are the cells of future VMs whose room counts, as shares of a node's CPUs and
// memory: clouds sell sizes that double, with two amounts of memory for each CPU. Memory
// is a little less than the whole, because nodes keep some of it free.
var typical = [...]struct{ cpus, memory float64 }{
	{1, 0.98}, {1, 0.49}, {0.5, 0.49}, {0.5, 0.245}, {0.25, 0.245}, {0.25, 0.1225}, {0.125, 0.1225}, {0.125, 0.06125},
}

const (
	// pairValue is the value of room for two cells on neighbours, over that for two cells anywhere.
	pairValue = 0.4
	// leftValue is the price of each unused share of a node that is in use: among nodes
	// that lose the same room, the one that is filled best is chosen.
	leftValue = 0.1
	// leastRoom is the value of room where the policy allows an overcommit of 2: future VMs
	// then find CPUs, and running ones need spreading. Without overcommit it is 1.
	leastRoom = 0.1
)

// vacancies count how many cells of each typical size have room.
type vacancies [len(typical)]float64

// vacant returns the vacancies of a node with the given use.
func (p *problem) vacant(n *nodeState, u cost.Use) (v vacancies) {
	if n.all == 0 || n.node.Memory == 0 {
		return v
	}
	cpus, memory := max(0, p.policy.Overcommit-u.CPU), max(0, 1-u.Memory)
	for i, c := range typical {
		v[i] = math.Floor(min(cpus/c.cpus, memory/c.memory) + roundingSlack)
	}
	return v
}

// addVacancies computes the vacancies of all nodes and of their neighbours.
func (p *problem) addVacancies() {
	if p.counted {
		return
	}
	p.counted = true
	for i := range p.nodes {
		p.nodes[i].vacant = p.vacant(&p.nodes[i], p.nodes[i].before)
	}
	for i := range p.nodes {
		n := &p.nodes[i]
		for j := range p.nodes {
			if i == j || n.node.Classes[p.nodes[j].node.ID] != topology.Neighbour {
				continue
			}
			for k, v := range p.nodes[j].vacant {
				n.nearSum[k] += v
				n.nearMost[k] = max(n.nearMost[k], v)
			}
		}
	}
}

// roomLost is the value of the term WideRoom for a cell: the room for typical cells, and
// for pairs of them on neighbours, that the host loses, in shares of a node, and
// weighted by how scarce room is.
func (p *problem) roomLost(n *nodeState, after cost.Use) float64 {
	p.addVacancies()
	lost := 0.0
	for i, left := range p.vacant(n, after) {
		before := n.vacant[i]
		lost += typical[i].cpus * (before - left + pairValue*(n.pairs(i, before)-n.pairs(i, left)))
	}
	rest := max(0, p.policy.Overcommit-after.CPU) + max(0, 1-after.Memory)
	return max(leastRoom, 2-p.policy.Overcommit) * (lost/float64(len(typical)) + leftValue*rest)
}

// pairs counts pairs of typical cells on the node and its neighbours, each on two
// nodes, if the node has room for own cells.
func (n *nodeState) pairs(i int, own float64) float64 {
	sum := n.nearSum[i] + own
	return math.Floor(min(sum/2, sum-max(n.nearMost[i], own)))
}

// leastSpread is the value of spreading load where CPUs are not overcommitted.
const leastSpread = 0.02

// spreading is the value of spreading load that leaves the CPUs of a node at a use of up
// to 1. No VM waits for a CPU then, unless other VMs wake up: so it decreases with the
// overcommit that the policy allows. Without overcommit it decides only between
// placements that lose the same room.
func (p *problem) spreading(use float64) float64 {
	if use > 1 || p.policy.Prefer == policy.PreferPack {
		return 1
	}
	return max(leastSpread, min(1, p.policy.Overcommit-1))
}
