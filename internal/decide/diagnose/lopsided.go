package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

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

// lopsided is the largest normal ratio between the memory of two nodes. Firmware
// and kernel reserve some memory, more on the first node.
const lopsided = 1.25

// memoryLopsided: a node with CPUs and much less memory than others fills up first.
func memoryLopsided(v *view) (found []Finding) {
	var largest *topology.Node
	for i := range v.topology.Nodes {
		n := &v.topology.Nodes[i]
		if !n.CPUs.IsEmpty() && (largest == nil || n.Memory > largest.Memory) {
			largest = n
		}
	}
	for _, n := range v.topology.Nodes {
		if n.CPUs.IsEmpty() || n.Memory == 0 || float64(n.Memory)*lopsided >= float64(largest.Memory) {
			continue
		}
		found = append(found, Finding{
			Severity: Info, Object: fmt.Sprintf("node %d", n.ID),
			Evidence: []string{
				fmt.Sprintf("%v of memory; node %d has %v (%s)", n.Memory, largest.ID, largest.Memory,
					orUnknown(v.topology.Source)),
			},
			Effect: "it fills up first; the memory of unbound VMs there overflows to other nodes",
			Fix:    "check whether a memory module is missing or failed; placement uses the present sizes",
		})
	}
	return found
}
