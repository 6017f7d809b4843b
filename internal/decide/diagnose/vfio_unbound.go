package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// vfioUnbound: assigning a device allocates and pins all guest memory.
func vfioUnbound(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.bound || !s.pinned() || v.startsAtHome(s) {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{
				fmt.Sprintf("devices %s assigned, no numatune (configuration)", strings.Join(s.Config.Devices, ", ")),
				s.memoryEvidence(),
				"transparent huge pages: " + orUnknown(v.host.Kernel.TransparentHugePages),
			},
			Effect: "vfio allocates and pins all memory at start, on the nodes where the emulator runs; neither " +
				"first touch nor the kernel's balancing can move it later" + worthOfNUMATune,
		}))
	}
	return found
}
