package diagnose

import "fmt"

// housekeepingTaken: a guest is pinned to housekeeping CPUs of the host. Unpinned
// guests are left to the scheduler.
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
				fmt.Sprintf("CPUs %s are housekeeping CPUs (configuration, isolcpus or cpuset partitions)", keep)},
			Effect: fmt.Sprintf(
				"the VM's vCPUs compete with the host's interrupts and daemons for CPUs %s",
				shared),
		}))
	}
	return found
}
