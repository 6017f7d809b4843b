package diagnose

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// cellsContradicted: the configuration binds the guest's cells so that its
// virtual NUMA topology is wrong: two cells are on one node, or vCPUs of a cell
// are pinned away from its memory. (The rule cells-folded covers changes while
// the guest runs.) Placements of Numavisor are checked before they are applied.
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
			Effect:  "the VM's kernel optimizes for distances between tasks and memory that are wrong",
			Fix:     "for the next start, bind each cell's memory and vCPUs to its own node, or configure fewer cells",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}

// sharedNodes reports cells that are bound to the same single node.
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

// tornCells reports cells whose vCPUs are pinned to other nodes than their memory.
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
							"vCPU %d of cell %d is pinned to CPUs %s; the cell's memory is on nodes %s (configuration)",
							vcpu, cell.ID, pin, tune.Nodes),
					)
				}
			}
		}
	}
	return evidence
}
