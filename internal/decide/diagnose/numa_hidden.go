package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// numaHidden: a guest that is larger than a node but has no virtual NUMA cells
// cannot keep a task's memory near the task.
func numaHidden(v *view) (found []Finding) {
	for _, s := range v.guests {
		if len(s.Config.Cells) > 1 || s.Spec != nil && s.Spec.Topology.Mode == guest.TopologyOff {
			continue // the spec requests mode off
		}
		wide := v.tooWide(s)
		if wide == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{wide, fmt.Sprintf("the VM has %d virtual NUMA cells (configuration)",
				len(s.Config.Cells)),
				s.memoryEvidence()},
			Effect: "its kernel does not know which memory is near a task: on n nodes about 1 in n accesses is " +
				"local",
			Fix:     "configure virtual NUMA cells for its next start",
			Command: s.rewriteCommand(" --topology auto --memory-binding preferred"),
		})
	}
	return found
}

// tooWide returns why a guest does not fit on one node, or "" if it does.
func (v *view) tooWide(s *subject) string {
	cpus, memory := 0, topology.Bytes(0)
	for _, n := range v.topology.Nodes {
		if !n.CPUs.IsEmpty() {
			cpus, memory = max(cpus, n.CPUs.Len()), max(memory, n.Memory)
		}
	}
	switch {
	case cpus == 0 || memory == 0:
		return ""
	case s.Config.VCPUs > cpus:
		return fmt.Sprintf("%d vCPUs (configuration); the largest node has %d CPUs", s.Config.VCPUs, cpus)
	case s.Config.Memory > memory:
		return fmt.Sprintf("%v (configuration); the largest node has %v", s.Config.Memory, memory)
	}
	return ""
}
