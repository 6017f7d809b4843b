package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// nodeAffinityFar: Xen takes memory from the nodes of the node affinity, which follows from the affinities of the
// vCPUs. Memory elsewhere was allocated before they were set, or when these nodes were full.
func nodeAffinityFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.Config.NodeAffinity.IsEmpty() || s.memory == 0 {
			continue
		}
		var away topology.Bytes
		for node, bytes := range s.Seen.MemoryByNode {
			if !s.Config.NodeAffinity.Contains(node) {
				away = away.Plus(bytes)
			}
		}
		if away <= s.memory/10 {
			continue
		}
		found = append(found, s.repinning(Finding{Severity: Warning,
			Evidence: []string{fmt.Sprintf("node affinity %s (xl list -n)", s.Config.NodeAffinity),
				fmt.Sprintf("%v of %v on other nodes, %s (%s)", away, s.memory, v.memoryHome(s),
					orUnknown(s.Seen.MemorySource))},
			Effect: "the vCPUs prefer CPUs far from the memory, and 'xl list -n' shows nodes on which the " +
				"memory is not"}))
	}
	return found
}

// cellMemoryElsewhere: pnode of vnuma says where Xen should take the memory of a virtual node. Xen takes it from
// other nodes, without an error, if that node is full.
func cellMemoryElsewhere(v *view) (found []Finding) {
	for _, s := range v.guests {
		want := topology.MemoryByNode{}
		for _, c := range s.Config.Cells {
			if c.Node != nil {
				want[*c.Node] += c.Memory
			}
		}
		if len(want) == 0 || s.memory == 0 {
			continue
		}
		var evidence []string
		for _, n := range v.topology.Nodes {
			if has := s.Seen.MemoryByNode[n.ID]; has < want[n.ID]-want[n.ID]/10 {
				evidence = append(evidence, fmt.Sprintf(
					"node %d: virtual nodes of %v (xl list -l), %v of the memory (%s)",
					n.ID, want[n.ID], has, orUnknown(s.Seen.MemorySource)))
			}
		}
		if len(evidence) == 0 {
			continue
		}
		found = append(found, Finding{Severity: Warning, Object: s.object(), Evidence: evidence,
			Effect: "the VM's kernel keeps work and memory together on virtual nodes that are not together on the host",
			Fix: "free memory on the node, shut the VM down and create it again: Xen neither moves its memory nor " +
				"migrates a VM with virtual nodes"})
	}
	return found
}
