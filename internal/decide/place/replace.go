package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Again recomputes the placement of a running guest whose memory is on the given
// nodes. It prefers those nodes unless another placement is better by more than the
// price of the move: it overloads its nodes less, fewer vCPUs share cores, it uses fewer
// nodes, or its cost, without room for others, is lower by more than the price of copying
// (package cost), which balancing charges too. A tie never moves a guest.
func Again(r Request, memory topology.MemoryByNode) (guest.Placement, Why, error) {
	best, why, err := Place(r)
	if err != nil {
		return best, why, err
	}
	home := fullest(memory, best.Nodes.Len())
	if home.IsEmpty() || home.Equal(best.Nodes) || !home.SubsetOf(r.allowed()) {
		return best, why, nil
	}
	stay := r
	stay.Spec.Limits.Nodes = home
	stay.WithoutAdvice = true
	here, whyHere, err := Place(stay)
	if err != nil { // too little room on the nodes of its memory: a reason to move, not a failure
		return best, why, nil //nolint:nilerr // the best placement stands
	}
	saved := copied(memory, best.Nodes) - copied(memory, here.Nodes)
	gain := whyHere.ofGuest() - why.ofGuest()
	if whyHere.Overload > why.Overload || whyHere.SharingCores > why.SharingCores ||
		here.Nodes.Len() > best.Nodes.Len() ||
		gain > cost.Copying(saved).Float() {
		return best, why, nil
	}
	whyHere.Summary += fmt.Sprintf(
		"; its memory is there: moving %.0f %% of it to nodes %s would lower the cost by only %.3g", 100*saved,
		best.Nodes, gain)
	return here, whyHere, nil
}

// ofGuest is the cost without the room for other guests: that is no reason to move one.
func (w *Why) ofGuest() float64 {
	own := w.Cost
	for _, t := range w.Terms {
		if t.Name == cost.WideRoom.String() {
			own -= t.Cost
		}
	}
	return own
}

func (r Request) allowed() topology.NodeSet {
	if r.Spec.Limits.Nodes.IsEmpty() {
		return r.Host.Topology.NodeSet()
	}
	return r.Spec.Limits.Nodes
}

// fullest returns the n nodes that hold most of the memory.
func fullest(memory topology.MemoryByNode, n int) topology.NodeSet {
	nodes := memory.Nodes()
	slices.SortFunc(nodes, func(a, b topology.NodeID) int {
		return cmp.Or(-cmp.Compare(memory[a], memory[b]), cmp.Compare(a, b))
	})
	return topology.SetOf(nodes[:min(n, len(nodes))]...)
}

// copied returns the share of memory that is not on the nodes.
func copied(memory topology.MemoryByNode, nodes topology.NodeSet) float64 {
	total := memory.Total()
	if total == 0 {
		return 0
	}
	return float64(total-memory.On(nodes)) / float64(total)
}
