package diagnose

import "fmt"

// memoryOnlyNodeUsed: guest memory got to a node without CPUs (CXL, HBM) by
// overflow or demotion.
func memoryOnlyNodeUsed(v *view) (found []Finding) {
	for _, s := range v.guests {
		for _, n := range v.topology.Nodes {
			bytes := s.Seen.MemoryByNode[n.ID]
			meant := s.Placement != nil && s.Placement.Nodes.Contains(n.ID)
			if !n.CPUs.IsEmpty() || meant || bytes < minMemoryBytes || bytes < s.memory/50 {
				continue
			}
			evidence := []string{
				fmt.Sprintf("node %d has memory and %s (%s)", n.ID, v.noCPUs(), orUnknown(v.topology.Source)),
				s.memoryEvidence()}
			if d := v.host.Kernel.Demotion; d != "" {
				evidence = append(evidence, "demotion_enabled is "+d+" (/sys/kernel/mm/numa)")
			}
			found = append(found, s.binding(Finding{Severity: Warning, Evidence: evidence,
				Effect: fmt.Sprintf("%v of its memory is local to no CPU and slow for every vCPU", bytes)}))
		}
	}
	return found
}

// noCPUs says of a node without CPUs that they may be offline: the kernel does
// not tell which node a CPU that is switched off belongs to.
func (v *view) noCPUs() string {
	if v.topology.Offline.IsEmpty() {
		return "no CPUs"
	}
	return fmt.Sprintf("no CPUs online; CPUs %s of the host are offline", v.topology.Offline)
}
