package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// cellsFolded: cells that should be on different nodes share one. This happens
// when a cpuset is narrowed and widened again, because the kernel maps memory
// policies to the new nodes by ordinal.
func cellsFolded(v *view) (found []Finding) {
	for _, s := range v.guests {
		want := s.cellNodes()
		if len(s.Config.Cells) < 2 || want.Len() < 2 {
			continue
		}
		at, evidence := s.foldedOn()
		if evidence == "" {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{
				fmt.Sprintf("its %d cells should be on nodes %s (intent or configuration)", len(s.Config.Cells), want),
				evidence},
			Effect: fmt.Sprintf(
				"the VM's kernel spreads work over cells that are all on node %d: its view of near and far memory "+
					"is wrong, and one node carries all the load",
				at,
			),
		}))
	}
	return found
}

// cellNodes returns the nodes of the cells by the placement, else by memnodes;
// empty if cells share nodes on purpose.
func (s *subject) cellNodes() topology.NodeSet {
	var all topology.NodeSet
	add := func(nodes topology.NodeSet) bool {
		apart := !all.Intersects(nodes)
		all = all.Union(nodes)
		return apart
	}
	if p := s.Placement; p != nil {
		if p.MemoryMode == guest.MemoryNone {
			return topology.NodeSet{}
		}
		for _, c := range p.Cells {
			if !add(c.Nodes) {
				return topology.NodeSet{}
			}
		}
		return all
	}
	if s.Config.NUMATune != nil {
		for _, c := range s.Config.NUMATune.Cells {
			if !add(c.Nodes) {
				return topology.NodeSet{}
			}
		}
	}
	return all
}

// foldedOn returns the node that all cells share, and the evidence; "" if there is
// none. It decides by the policies of the mappings if they are known, else by the
// guest's memory, of which at least 95 % must be on one node.
func (s *subject) foldedOn() (topology.NodeID, string) {
	policies := map[string]bool{}
	cells := map[guest.CellID]bool{}
	for _, r := range s.Seen.Ranges {
		if r.Cell != nil {
			policies[r.Policy], cells[*r.Cell] = true, true
		}
	}
	if len(cells) >= 2 && len(policies) == 1 {
		for policy := range policies {
			if node, ok := oneNode(policy); ok {
				return node, fmt.Sprintf("all cells have memory policy %s (numa_maps)", policy)
			}
		}
	}
	if s.Placement != nil || s.memory < minMemoryBytes || s.memory < s.Config.Memory/2 {
		return 0, "" // the rule drift covers it, or too little memory is touched to decide
	}
	for _, node := range slices.Sorted(maps.Keys(s.Seen.MemoryByNode)) {
		if float64(s.Seen.MemoryByNode[node]) >= 0.95*float64(s.memory) {
			return node, s.memoryEvidence()
		}
	}
	return 0, ""
}

// oneNode returns the node of a policy that names exactly one, as numa_maps
// writes it: "bind:0", "prefer=static:1".
func oneNode(policy string) (topology.NodeID, bool) {
	_, list, _ := strings.Cut(policy, ":")
	nodes, err := topology.ParseSet[topology.NodeID](list)
	if err != nil || nodes.Len() != 1 {
		return 0, false
	}
	return nodes.First()
}
