package diagnose

import (
	"fmt"
	"slices"
)

// placedForAnotherHost: the guest was migrated here with a placement made for
// another host.
func placedForAnotherHost(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.PlacedFor == nil {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{
				fmt.Sprintf("its metadata contains a placement for host %s (id %s); this host has the id "+
					"%q", s.PlacedFor,
					s.PlacedFor.ID, v.host.ID),
			},
			Effect: "the placement names nodes and CPUs of the other host, so Numavisor ignores it; pins and " +
				"numatune " +
				"that libvirt carried over may bind the VM to the wrong nodes",
		}))
	}
	return found
}
