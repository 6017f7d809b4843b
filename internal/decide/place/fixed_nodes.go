package place

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// NotThereError is the error for a guest that does not fit on given nodes.
type NotThereError struct {
	Guest string
	Nodes []topology.NodeID
	Why   string
}

// Error gives one sentence.
func (e *NotThereError) Error() string {
	return fmt.Sprintf("VM %s does not fit on nodes %v: %s", e.Guest, e.Nodes, e.Why)
}

// On places a guest on given nodes, its i-th cell on the i-th of them, under the
// same rules as Place but without comparing other placements. It divides the guest
// into as many cells as there are nodes. The error is a *NotThereError if that is not
// possible.
func On(r Request, homes []topology.NodeID) (guest.Placement, error) {
	if r.Spec.IsHandoff() {
		return guest.Placement{}, &NotThereError{r.Spec.Name, homes, "it mirrors all of its nodes"}
	}
	p, err := newProblem(r)
	if err != nil {
		return guest.Placement{}, err
	}
	if err := p.checkHelpers(); err != nil {
		return guest.Placement{}, err
	}
	refuse := func(why string) (guest.Placement, error) {
		return guest.Placement{}, &NotThereError{p.spec.Name, homes, why}
	}
	at := make([]slot, len(homes))
	for cell, home := range homes {
		i := slices.IndexFunc(p.nodes, func(n nodeState) bool { return n.node.ID == home })
		if i < 0 || p.nodes[i].node.CPUs.IsEmpty() || !p.pairs(i, i) {
			return refuse(fmt.Sprintf("node %d is outside the limits, or has no CPUs or no memory", home))
		}
		at[cell] = slot{i, i}
	}
	cells, ok := p.cellsFor(len(homes))
	if !ok {
		return refuse(fmt.Sprintf("it cannot be divided into %s", text.Count(len(homes), "cell", "cells")))
	}
	sol := &solution{cells: cells, kinds: p.kindsOf(cells), slots: at}
	if why := p.refusal(sol); why != "" {
		return refuse(why)
	}
	return p.assemble(sol), nil
}

// cellsFor divides the guest into k cells if its spec allows k.
func (p *problem) cellsFor(k int) ([]cellSize, bool) {
	for _, cells := range p.shapes() {
		if len(cells) == k {
			return cells, true
		}
	}
	return nil, false
}

// refusal explains why the cells cannot have their slots; empty if they can.
func (p *problem) refusal(sol *solution) string {
	for cell, s := range sol.slots {
		if short, ok := p.fit(s, sol.demandOf(cell)); !ok {
			return short.String()
		}
		for other, t := range sol.slots[:cell] {
			if !p.together(s, t) {
				return fmt.Sprintf("nodes %d and %d may not be combined: they are too far apart, or the same node",
					p.nodes[sol.slots[other].mem].node.ID, p.nodes[s.mem].node.ID)
			}
		}
	}
	if !p.keepsConditions(sol.slots) {
		return "a required device is on another node, or there are too many nodes"
	}
	return ""
}

// Cells returns the numbers of cells into which a guest may be divided, and so of
// nodes that it may use, fewest first.
func Cells(s guest.Spec, nodes int) []int {
	s = withDefaults(s)
	least, most := 1, nodes
	if limit := s.Limits.MaxNodes; limit > 0 {
		most = min(most, limit)
	}
	if s.Topology.Mode == guest.TopologyCells {
		least = max(s.Topology.Count, len(s.Topology.Cells))
		most = least
	}
	var counts []int
	for k := least; k <= most; k++ {
		if k <= s.VCPUs {
			counts = append(counts, k)
		}
	}
	return counts
}
