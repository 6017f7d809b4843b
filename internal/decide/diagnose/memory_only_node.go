package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// memoryOnlyNode: worth knowing, because its free memory looks like that of any
// other node.
func memoryOnlyNode(v *view) (found []Finding) {
	for _, n := range v.topology.Nodes {
		if n.Memory > 0 && n.CPUs.IsEmpty() && !v.topology.Offline.IsEmpty() {
			// The kernel does not report the node of an offline CPU.
			found = append(found, Finding{
				Severity: Info, Object: fmt.Sprintf("node %d", n.ID),
				Evidence: []string{
					fmt.Sprintf("%v and no CPUs online%s; CPUs %s of the host are offline (%s)", n.Memory,
						nearest(v.topology, n.ID), v.topology.Offline, orUnknown(v.topology.Source)),
				},
				Effect: "its memory is local to no CPU that is online",
				Fix:    "bring its CPUs online if the offline CPUs belong to it",
			})
			continue
		}
		if n.Memory > 0 && n.CPUs.IsEmpty() {
			found = append(found, Finding{
				Severity: Info, Object: fmt.Sprintf("node %d", n.ID),
				Evidence: []string{
					fmt.Sprintf("%v and no CPUs%s (%s)", n.Memory, nearest(v.topology, n.ID),
						orUnknown(v.topology.Source)),
				},
				Effect: "its memory (CXL, HBM or device memory) is local to no CPU; unbound VMs overflow to it",
				Fix:    "none needed; bind VMs so that they use it only on purpose",
			})
		}
	}
	return found
}

// nearest names the node with CPUs that is nearest to a node's memory.
func nearest(t *topology.Topology, memory topology.NodeID) string {
	best, text := unreachable, ""
	for _, n := range t.Nodes {
		if d, ok := t.Distance(n.ID, memory); ok && !n.CPUs.IsEmpty() && d < best {
			best, text = d, fmt.Sprintf(", nearest to node %d (distance %d)", n.ID, d)
		}
	}
	return text
}
