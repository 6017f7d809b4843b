package diagnose

import "fmt"

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
