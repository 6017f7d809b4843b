package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// smallPart: a guest smaller than this part of the smallest node fits wherever it
// runs, and first touch allocates its pages there.
const smallPart = 32

// bindingMattersLittle is for small guests that take memory on demand.
func bindingMattersLittle(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.bound || s.pinned() || preallocated(s.Config) != "" || !v.isSmall(s) {
			continue
		}
		found = append(found, Finding{
			Severity: Info, Object: s.object(),
			Evidence: []string{
				fmt.Sprintf("%d vCPUs, %v, allocated on demand, no numatune (configuration)", s.Config.VCPUs,
					s.Config.Memory),
				s.memoryEvidence(),
			},
			Effect:  "little: the VM is small, and first touch allocates its pages near the vCPU that uses them",
			Fix:     "none needed; bind it if its latency matters",
			Command: "numavisor bind " + text.ShellWord(s.Name),
		})
	}
	return found
}

func (v *view) isSmall(s *subject) bool {
	var least topology.Bytes
	for _, n := range v.topology.Nodes {
		if n.Memory > 0 && !n.CPUs.IsEmpty() && (least == 0 || n.Memory < least) {
			least = n.Memory
		}
	}
	return s.Config.Memory > 0 && s.Config.Memory <= least/smallPart
}
