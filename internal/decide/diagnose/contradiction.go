package diagnose

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// cellsContradicted: the guest is told of cells that the host's binding makes
// untrue by its configuration: two cells on one node, or vCPUs of a cell held
// away from its memory. (cells-folded is for what became so while it ran.)
// Placements are judged before they are carried out.
func cellsContradicted(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.Placement != nil || len(s.Config.Cells) < 2 || s.Config.NUMATune == nil {
			continue
		}
		evidence := append(v.sharedNodes(s), v.tornCells(s)...)
		if len(evidence) == 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(), Evidence: evidence,
			Effect:  "the guest's kernel keeps tasks near memory that is not near them, and apart what is together",
			Fix:     "at its next start, bind each cell's memory and vCPUs to a node of its own, or show fewer cells",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}

// sharedNodes tells of cells with the same single node.
func (v *view) sharedNodes(s *subject) (evidence []string) {
	first := map[topology.NodeID]inventory.CellTune{}
	for _, c := range s.Config.NUMATune.Cells {
		node, ok := c.Nodes.First()
		if !ok || c.Nodes.Len() != 1 {
			continue
		}
		if before, taken := first[node]; taken {
			evidence = append(evidence,
				fmt.Sprintf("cells %d and %d are both bound to node %d (configuration)", before.Cell, c.Cell, node))
			continue
		}
		first[node] = c
	}
	return evidence
}

// tornCells tells of cells whose vCPUs are pinned to other nodes than their memory.
func (v *view) tornCells(s *subject) (evidence []string) {
	for _, tune := range s.Config.NUMATune.Cells {
		near := v.topology.CPUsOf(tune.Nodes)
		if near.IsEmpty() {
			continue // memory-only nodes have no CPUs to be near
		}
		for _, cell := range s.Config.Cells {
			if cell.ID != tune.Cell {
				continue
			}
			for vcpu := range cell.VCPUs.All() {
				pin, ok := s.Config.Pins[vcpu]
				if ok && !pin.IsEmpty() && !pin.Intersects(near) {
					evidence = append(
						evidence,
						fmt.Sprintf(
							"vCPU %d of cell %d is pinned to CPUs %s, the cell's memory is on nodes %s (configuration)",
							vcpu, cell.ID, pin, tune.Nodes),
					)
				}
			}
		}
	}
	return evidence
}
