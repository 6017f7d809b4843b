package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// restrictiveMemnodes: in mode restrictive libvirt gives QEMU no memory policy
// for cells; it only writes the cpuset of each vCPU.
func restrictiveMemnodes(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		tune := s.Config.NUMATune
		if tune == nil {
			continue
		}
		var cells []string
		different := false
		var first topology.NodeSet
		for _, c := range tune.Cells {
			if c.Mode != string(guest.MemoryRestrictive) {
				continue
			}
			if len(cells) == 0 {
				first = c.Nodes
			}
			different = different || !c.Nodes.Equal(first)
			cells = append(cells, fmt.Sprintf("cell %d: nodes %s", c.Cell, c.Nodes))
		}
		if !different {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{"memnode mode restrictive, " + strings.Join(cells, ", ") + " (configuration)",
				s.memoryEvidence()},
			Effect: "the cells are not placed: memory allocated at start is anywhere on these nodes, and memory " +
				"allocated on demand is near the vCPU of any cell that touches it first",
			Fix:     "set mode strict or preferred for the cells in the configuration, and restart the VM",
			Command: s.rewriteCommand(" --memory-binding preferred"),
		})
	}
	return found
}
