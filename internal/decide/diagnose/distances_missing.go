package diagnose

import "fmt"

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
