package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// unreachable is the SLIT distance of pairs without a path (ACPI).
const unreachable = 255

// distancesMissing: placement compares distances; without them all other nodes are alike.
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
		Effect: "these nodes count as out of reach: guests are not spread over them, and nearer cannot be told " +
			"from farther",
		Fix: "have the firmware's SLIT corrected, or give measured latencies, which take precedence",
	}}
}

func distanceText(d int, known bool) string {
	if !known {
		return "none"
	}
	return fmt.Sprintf("%d, unreachable", d)
}

// nodeWithoutMemory: every access of its CPUs goes elsewhere.
func nodeWithoutMemory(v *view) (found []Finding) {
	for _, n := range v.topology.Nodes {
		if n.Memory == 0 && !n.CPUs.IsEmpty() {
			found = append(found, Finding{
				Severity: Warning, Object: fmt.Sprintf("node %d", n.ID),
				Evidence: []string{fmt.Sprintf("CPUs %s and no memory (%s)", n.CPUs, orUnknown(v.topology.Source))},
				Effect:   "its CPUs have no local memory, only other nodes'",
				Fix: "populate its memory slots, or see whether a module failed; placement gives its CPUs to " +
					"guests last",
			})
		}
	}
	return found
}

// memoryOnlyNode: worth knowing, since free memory there looks like any other.
func memoryOnlyNode(v *view) (found []Finding) {
	for _, n := range v.topology.Nodes {
		if n.Memory > 0 && n.CPUs.IsEmpty() && !v.topology.Offline.IsEmpty() {
			// The kernel does not tell which node a CPU that is switched off belongs to.
			found = append(found, Finding{
				Severity: Info, Object: fmt.Sprintf("node %d", n.ID),
				Evidence: []string{
					fmt.Sprintf("%v and no CPUs online%s; CPUs %s of the host are offline (%s)", n.Memory,
						nearest(v.topology, n.ID), v.topology.Offline, orUnknown(v.topology.Source)),
				},
				Effect: "its memory is local to no CPU that is online",
				Fix:    "bring its CPUs online, if the offline ones are its own",
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
				Effect: "its memory (CXL, HBM or of a device) is local to no CPU; unbound guests overflow to it",
				Fix:    "none needed; bind guests so that they use it on purpose only",
			})
		}
	}
	return found
}

// nearest names the node with CPUs that is nearest to some memory.
func nearest(t *topology.Topology, memory topology.NodeID) string {
	best, text := unreachable, ""
	for _, n := range t.Nodes {
		if d, ok := t.Distance(n.ID, memory); ok && !n.CPUs.IsEmpty() && d < best {
			best, text = d, fmt.Sprintf(", nearest to node %d (distance %d)", n.ID, d)
		}
	}
	return text
}
