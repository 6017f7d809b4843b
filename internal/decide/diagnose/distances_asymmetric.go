package diagnose

import "fmt"

// distancesAsymmetric: correct on a few machines, a firmware error on most. Nodes
// without CPUs have no distances of their own.
func distancesAsymmetric(v *view) []Finding {
	const most = 4
	var pairs []string
	count := 0
	for i, a := range v.topology.Nodes {
		for _, b := range v.topology.Nodes[i+1:] {
			there, ok1 := v.topology.Distance(a.ID, b.ID)
			back, ok2 := v.topology.Distance(b.ID, a.ID)
			_, measured := v.topology.Latency(a.ID, b.ID)
			if !ok1 || !ok2 || there == back || measured || a.CPUs.IsEmpty() || b.CPUs.IsEmpty() ||
				there >= unreachable ||
				back >= unreachable {
				continue
			}
			if count++; count <= most {
				pairs = append(
					pairs,
					fmt.Sprintf("node %d to node %d: %d, back: %d (SLIT, %s)", a.ID, b.ID, there, back,
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
		Severity: Info, Object: "host", Evidence: pairs,
		Effect: "placement uses the distance of each direction; if it is wrong, placement prefers the wrong nodes",
		Fix:    "provide measured latencies, which take precedence",
	}}
}
