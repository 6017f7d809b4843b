package peers

import (
	"math"

	"github.com/numavisor/numavisor/internal/topology"
)

// This file decides by trying all assignments of VMs to nodes. It shares no code
// with the product's search, so that it can judge it.

// stays is the choice of a VM that is left where its memory is at the beginning.
const stays = -1

// problem is a set of VMs to assign. Working VMs need a CPU for each vCPU.
type problem struct {
	Layout
	choices [][]int // of each VM: nodes, or stays
	cost    func(vm, node int) int64
	even    bool // among equals, vCPUs are spread over nodes
}

// costWeight is the weight of a cost against the evenness of vCPUs: larger than any
// sum of squares of vCPUs.
const costWeight = 1 << 16

// solve returns the cheapest assignment; the first of equals, in the order of the
// choices. ok is false if there is none.
func (p problem) solve() (best []int, cost int64, ok bool) {
	s := search{problem: p, at: make([]int, len(p.VMs)), vcpus: make([]int, p.Nodes),
		memory: make([]topology.Bytes, p.Nodes), rooms: p.rooms(), rest: make([]int64, len(p.VMs)+1)}
	for vm := len(p.VMs) - 1; vm >= 0; vm-- {
		least := int64(math.MaxInt64 / costWeight)
		for _, node := range p.choices[vm] {
			least = min(least, p.cost(vm, node)*costWeight)
		}
		s.rest[vm] = s.rest[vm+1] + least
	}
	s.from(0, 0)
	if s.best == nil {
		return nil, 0, false
	}
	for vm, node := range s.best {
		cost += p.cost(vm, node)
	}
	return s.best, cost, true
}

type search struct {
	problem
	at       []int
	vcpus    []int            // by node, of working VMs
	memory   []topology.Bytes // by node
	rooms    []topology.Bytes // that each node has for it
	rest     []int64          // what this VM and those after it cost at least
	best     []int
	bestCost int64
}

// from tries all choices of this VM and those after it.
func (s *search) from(vm int, cost int64) {
	if s.best != nil && cost+s.rest[vm] >= s.bestCost {
		return
	}
	if vm == len(s.VMs) {
		s.best, s.bestCost = append([]int(nil), s.at...), cost
		return
	}
	for _, node := range s.choices[vm] {
		added := s.cost(vm, node) * costWeight
		if s.even && node != stays {
			before := s.vcpus[node]
			after := before + s.VMs[vm].VCPUs
			added += int64(after*after - before*before)
		}
		if s.put(vm, node, 1) {
			s.at[vm] = node
			s.from(vm+1, cost+added)
		}
		s.put(vm, node, -1)
	}
}

// put adds a VM to nodes or takes it away, and reports whether it fits.
func (s *search) put(vm, node, sign int) bool {
	v, fits := s.VMs[vm], true
	on := []int{node}
	if node == stays {
		on = v.Start
	}
	for _, n := range on {
		part := v.Memory / topology.Bytes(len(on))
		if sign > 0 {
			s.memory[n] += part
		} else {
			s.memory[n] -= part
		}
		fits = fits && s.memory[n] <= s.rooms[n]
	}
	if v.busy() {
		s.vcpus[node] += sign * v.VCPUs
		fits = fits && s.vcpus[node] <= s.NodeCPUs
	}
	return fits
}

// choicesOf gives each working VM all nodes. An idle VM stays, or may also move.
func (l Layout) choicesOf(idleMoves bool) [][]int {
	var all [][]int
	for _, v := range l.VMs {
		var choices []int
		if !v.busy() {
			choices = append(choices, stays)
		}
		for n := 0; n < l.Nodes && (v.busy() || idleMoves); n++ {
			choices = append(choices, n)
		}
		all = append(all, choices)
	}
	return all
}

// homes are the nodes of the hand-pinned baseline: each VM that ever works is
// whole on one node, from its creation to the end, with a CPU for each vCPU.
// Idle VMs stay where they are. Node 0, where the host's own services run, is
// used only if the others have no room; vCPUs are spread over the others.
func (l Layout) homes() ([]int, bool) {
	atNode0 := func(vm, node int) int64 {
		if node == 0 {
			return int64(l.VMs[vm].VCPUs)
		}
		return 0
	}
	homes, _, ok := problem{Layout: l, choices: l.choicesOf(false), cost: atNode0, even: true}.solve()
	return homes, ok
}

// starts are the nodes of the vCPUs at a worst-case start: as much memory remote
// as there can be, a CPU for each vCPU, not on node 0 if possible.
func (l Layout) starts() ([]int, bool) {
	const remoteFirst = 64 // more than all vCPUs on node 0 cost
	local := func(vm, node int) int64 {
		cost := int64(0)
		for _, n := range l.VMs[vm].Start {
			if n == node {
				cost += remoteFirst * remoteFirst / int64(len(l.VMs[vm].Start))
			}
		}
		if node == 0 {
			cost += int64(l.VMs[vm].VCPUs)
		}
		return cost
	}
	// Memory does not follow the vCPUs here, so that no node is too small.
	roomy := l
	roomy.NodeRoom = topology.Bytes(len(l.VMs)) * mostMemory
	nodes, _, ok := problem{Layout: roomy, choices: l.choicesOf(false), cost: local, even: true}.solve()
	return nodes, ok
}

// cheapest is how many MiB the cheapest plan copies: after it, each VM that ever
// works has all its memory and a CPU for each vCPU on one node. Idle VMs may
// move too. The memory of each VM by node, in MiB, is what was measured at the
// beginning of a run.
func (l Layout) cheapest(memory [][]uint64) (mib uint64, ok bool) {
	copied := func(vm, node int) int64 {
		sum := int64(0)
		for n, part := range memory[vm] {
			if node != stays && n != node {
				sum += int64(part)
			}
		}
		return sum
	}
	_, cost, ok := problem{Layout: l, choices: l.choicesOf(true), cost: copied}.solve()
	return uint64(max(cost, 0)), ok
}

// nominal is the memory of each VM by node at the beginning, in MiB, as the
// layout defines it.
func (l Layout) nominal() [][]uint64 {
	var all [][]uint64
	for _, v := range l.VMs {
		byNode := make([]uint64, l.Nodes)
		for _, n := range v.Start {
			byNode[n] = uint64(v.Memory/topology.MiB) / uint64(len(v.Start))
		}
		all = append(all, byNode)
	}
	return all
}
