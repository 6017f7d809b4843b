package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// unreachable is the SLIT distance between nodes without a path (ACPI).
const unreachable = 255

// distancesMissing: without distances, placement cannot tell near nodes from far ones.
func distancesMissing(v *view) []Finding {
	const most = 4
	var pairs []string
	count := 0
	for _, from := range v.topology.Nodes {
		for _, to := range v.topology.Nodes {
			if from.ID == to.ID || from.CPUs.IsEmpty() || to.Memory == 0 {
				continue
			}
			d, known := v.topology.Distance(from.ID, to.ID)
			if _, measured := v.topology.Latency(from.ID, to.ID); measured || known && d < unreachable {
				continue
			}
			if count++; count <= most {
				pairs = append(
					pairs,
					fmt.Sprintf("node %d to node %d: %s (SLIT, %s)", from.ID, to.ID, distanceText(d, known),
						orUnknown(v.topology.Source)),
				)
			}
		}
	}
	if count == 0 {
		return nil
	}
	if count > most {
		pairs = append(pairs, fmt.Sprintf("and %d more pairs", count-most))
	}
	return []Finding{{
		Severity: Warning, Object: "host", Evidence: pairs,
		Effect: "placement treats these nodes as unreachable from each other: no VM is spread over them, and near " +
			"nodes are not preferred to far ones",
		Fix: "correct the firmware's SLIT, or provide measured latencies, which take precedence",
	}}
}

func distanceText(d int, known bool) string {
	if !known {
		return "none"
	}
	return fmt.Sprintf("%d, unreachable", d)
}

// nodeWithoutMemory: every memory access of its CPUs is remote.
func nodeWithoutMemory(v *view) (found []Finding) {
	for _, n := range v.topology.Nodes {
		if n.Memory == 0 && !n.CPUs.IsEmpty() {
			found = append(found, Finding{
				Severity: Warning, Object: fmt.Sprintf("node %d", n.ID),
				Evidence: []string{fmt.Sprintf("CPUs %s and no memory (%s)", n.CPUs, orUnknown(v.topology.Source))},
				Effect:   "all memory accesses of its CPUs are remote",
				Fix: "populate its memory slots, or check whether a module failed; placement uses its CPUs only " +
					"as a last resort",
			})
		}
	}
	return found
}

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
