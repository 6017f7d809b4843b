package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

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
