package diagnose

import "fmt"

// vcpusCrowded: capacity goes before locality. A guest held to fewer CPUs than
// it has vCPUs waits for itself.
func vcpusCrowded(v *view) (found []Finding) {
	for _, s := range v.guests {
		online := s.vcpus.Intersect(v.topology.CPUSet())
		if !s.cpuHeld || online.IsEmpty() || s.Config.VCPUs <= online.Len() {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{fmt.Sprintf("%d vCPUs (configuration) on %d CPUs", s.Config.VCPUs, online.Len()),
				v.vcpuEvidence(s)},
			Effect: "its vCPUs wait for each other whenever all are busy, and one that spins on a lock keeps its " +
				"holder from running; crowding a guest onto one node has cost 40-75 % where it was measured " +
				"(xapi-project/xen-api pull request 6763)",
		}))
	}
	return found
}

// housekeepingTaken: CPUs that serve the host itself, given to a guest by its
// pins. Guests held to nothing are the scheduler's matter.
func housekeepingTaken(v *view) (found []Finding) {
	keep := v.topology.Housekeeping
	for _, s := range v.guests {
		shared := s.vcpus.Intersect(keep)
		if shared.IsEmpty() || v.topology.CPUSet().SubsetOf(s.vcpus) {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{v.vcpuEvidence(s),
				fmt.Sprintf("CPUs %s are for the host itself (configuration, isolcpus or cpuset partitions)", keep)},
			Effect: fmt.Sprintf(
				"interrupts and daemons of the host take CPUs %s from the guest's vCPUs, and they from the host",
				shared),
		}))
	}
	return found
}
