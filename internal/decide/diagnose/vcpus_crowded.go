package diagnose

import "fmt"

// vcpusCrowded: capacity comes before locality. The vCPUs of a guest restricted
// to fewer CPUs than it has vCPUs wait for each other. A mirrored guest has few of its
// CPUs at times, and its agent frees the other vCPUs.
func vcpusCrowded(v *view) (found []Finding) {
	for _, s := range v.guests {
		online := s.vcpus.Intersect(v.topology.CPUSet())
		if s.handsOver() || !s.cpuRestricted || online.IsEmpty() || s.Config.VCPUs <= online.Len() {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{fmt.Sprintf("%d vCPUs (configuration) on %d CPUs", s.Config.VCPUs, online.Len()),
				v.vcpuEvidence(s)},
			Effect: "its vCPUs wait for each other when all are busy, and a vCPU that spins on a lock prevents the " +
				"lock's holder from running; restricting a VM to one node cost 40-75 % of performance in a " +
				"measurement (xapi-project/xen-api pull request 6763)",
		}))
	}
	return found
}
