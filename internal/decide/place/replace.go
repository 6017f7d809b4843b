package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Again places a running guest anew. Where its memory lies now it stays,
// unless another placement is better by more than the price of the move:
// fewer vCPUs squeezed, fewer nodes, or a cost lower by the price of copying
// (package cost), which balancing pays too. Nothing that fits where it lies is moved for a
// tie's sake.
func Again(r Request, lies topology.MemoryByNode) (guest.Placement, Why, error) {
	best, why, err := Place(r)
	if err != nil {
		return best, why, err
	}
	home := fullest(lies, best.Nodes.Len())
	if home.IsEmpty() || home.Equal(best.Nodes) || !home.SubsetOf(r.allowed()) {
		return best, why, nil
	}
	stay := r
	stay.Spec.Limits.Nodes = home
	here, whyHere, err := Place(stay)
	if err != nil { // no room where it lies: that is a reason to move, not a failure
		return best, why, nil //nolint:nilerr // the best placement stands
	}
	saved := copied(lies, best.Nodes) - copied(lies, here.Nodes)
	if whyHere.SharingCores > why.SharingCores || here.Nodes.Len() > best.Nodes.Len() ||
		whyHere.Cost-why.Cost > cost.Copying(saved).Float() {
		return best, why, nil
	}
	whyHere.Summary += fmt.Sprintf(
		"; its memory lies there: moving %.0f %% of it to nodes %s would save a cost of %.3g only", 100*saved,
		best.Nodes, whyHere.Cost-why.Cost)
	return here, whyHere, nil
}

func (r Request) allowed() topology.NodeSet {
	if r.Spec.Limits.Nodes.IsEmpty() {
		return r.Host.Topology.NodeSet()
	}
	return r.Spec.Limits.Nodes
}

// fullest returns the n nodes that hold most of the memory.
func fullest(lies topology.MemoryByNode, n int) topology.NodeSet {
	nodes := lies.Nodes()
	slices.SortFunc(nodes, func(a, b topology.NodeID) int {
		return cmp.Or(-cmp.Compare(lies[a], lies[b]), cmp.Compare(a, b))
	})
	return topology.SetOf(nodes[:min(n, len(nodes))]...)
}

// copied is the share of memory outside the nodes.
func copied(lies topology.MemoryByNode, nodes topology.NodeSet) float64 {
	total := lies.Total()
	if total == 0 {
		return 0
	}
	return float64(total-lies.On(nodes)) / float64(total)
}
