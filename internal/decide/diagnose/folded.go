package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// cellsFolded: cells that belong on different nodes share one, as after a
// cpuset was narrowed and widened: the kernel maps policies by ordinal.
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
				fmt.Sprintf("its %d cells belong on nodes %s (intent or configuration)", len(s.Config.Cells), want),
				evidence},
			Effect: fmt.Sprintf(
				"the guest spreads its work over cells that are all on node %d: it believes memory near that is "+
					"far, and loads one node",
				at,
			),
		}))
	}
	return found
}

// cellNodes is where the cells belong: by placement, else by memnodes; nothing where they share nodes on purpose.
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

// foldedOn says which node all cells share, by their policies where mappings
// are known, else by the guest's memory: at least 95 % on one node.
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
	if s.Placement != nil || s.memory < worthAWord || s.memory < s.Config.Memory/2 {
		return 0, "" // drift tells; or too little touched to judge
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
