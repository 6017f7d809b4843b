package diagnose

import (
	"fmt"
	"slices"
)

// placedForAnotherHost: the guest came from another host with the placement
// that was made there.
func placedForAnotherHost(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.PlacedFor == nil {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{
				fmt.Sprintf("its metadata holds a placement for host %s (id %s), this host has the id %q", s.PlacedFor,
					s.PlacedFor.ID, v.host.ID),
			},
			Effect: "that placement names nodes and CPUs of the other host: it is not used here, and what libvirt " +
				"took over of it may bind the guest to the wrong nodes",
		}))
	}
	return found
}
