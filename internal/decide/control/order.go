package control

import (
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// inOrder puts the moves of a round in the order in which the least work is lost
// until all are done: moves that copy nothing first, then those that save most
// per byte. Each move must be legal after those before it, and must not fill a
// node's CPUs more than the policy allows, unless they were as full before the
// round.
func inOrder(h *inventory.Host, p policy.Policy, moves []plan.Move) []plan.Move {
	if len(moves) < 2 {
		return moves
	}
	all := make([]order.Move, len(moves))
	for i, m := range moves {
		all[i] = order.Move{Bytes: m.Cost.Bytes, Saves: m.Benefit.AccessCPUs + m.Benefit.WaitCPUs}
	}
	may := func(done []int, next int) bool {
		now := *h
		for _, i := range done {
			now = balance.After(&now, moves[i].Guests)
		}
		then := balance.After(&now, moves[next].Guests)
		return balance.Legal(&now, p, moves[next].Guests) == nil && fits(h, &then, p, moves[next])
	}
	sorted := make([]plan.Move, 0, len(moves))
	for _, i := range order.Round(all, may) {
		sorted = append(sorted, moves[i])
	}
	return sorted
}

// fits reports whether the nodes to which a move brings vCPUs then have CPUs for
// the demand of all guests there, or a CPU for each vCPU that is bound there, or were no
// less busy before the round. Guests that may run elsewhere, too, do not crowd a node.
func fits(before, then *inventory.Host, p policy.Policy, m plan.Move) bool {
	most := p.Balance.WithDefaults().MaxNodeCPU
	was, is := demands(before), demands(then)
	for _, g := range m.Guests {
		seen, _ := then.Guest(g.Guest)
		for node := range seen.VCPUNodes(&then.Topology).All() {
			n, ok := then.Topology.Node(node)
			if ok && is[node] > max(was[node], most*float64(n.CPUs.Len())) && boundTo(then, n) > n.CPUs.Len() {
				return false
			}
		}
	}
	return true
}

// boundTo is the number of vCPUs that may run on CPUs of a node only.
func boundTo(h *inventory.Host, n *topology.Node) int {
	count := 0
	for i := range h.Guests {
		for _, thread := range h.Guests[i].Seen.Threads {
			if thread.VCPU != nil && thread.Affinity.SubsetOf(n.CPUs) {
				count++
			}
		}
	}
	return count
}

// demands is the CPU demand of the guests by node. That of a guest is divided
// equally over the nodes on which its vCPUs may run.
func demands(h *inventory.Host) map[topology.NodeID]float64 {
	all := map[topology.NodeID]float64{}
	for i := range h.Guests {
		g := &h.Guests[i]
		nodes := g.VCPUNodes(&h.Topology)
		if g.Seen.Load == nil || nodes.IsEmpty() {
			continue
		}
		for node := range nodes.All() {
			all[node] += g.Seen.Load.Demand() / float64(nodes.Len())
		}
	}
	return all
}
