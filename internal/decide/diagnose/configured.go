package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// restrictiveMemnodes: libvirt gives QEMU no policy for cells in mode
// restrictive, it only writes each vCPU's cpuset.
func restrictiveMemnodes(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		tune := s.Config.NUMATune
		if tune == nil {
			continue
		}
		var told []string
		different := false
		var first topology.NodeSet
		for _, c := range tune.Cells {
			if c.Mode != string(guest.MemoryRestrictive) {
				continue
			}
			if len(told) == 0 {
				first = c.Nodes
			}
			different = different || !c.Nodes.Equal(first)
			told = append(told, fmt.Sprintf("cell %d: nodes %s", c.Cell, c.Nodes))
		}
		if !different {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{"memnode mode restrictive, " + strings.Join(told, ", ") + " (configuration)",
				s.memoryEvidence()},
			Effect: "the cells are not placed: memory allocated at start lies anywhere in these nodes, memory on " +
				"demand where a vCPU of any cell touches it first",
			Fix:     "give the cells mode strict or preferred in the configuration, and start the guest anew",
			Command: s.rewriteCommand(" --memory-binding preferred"),
		})
	}
	return found
}

// autoWithoutNumad: libvirt runs the program numad once, at each start; the
// daemon need not run for that.
func autoWithoutNumad(v *view) (found []Finding) {
	severity, evidence := Error, "numad is not installed"
	switch installed := v.host.Kernel.NumadInstalled; {
	case v.host.Kernel.NumadRunning || installed != nil && *installed:
		return nil
	case installed == nil:
		severity, evidence = Info, "numad is not running (processes), whether it is installed was not seen"
	}
	for i := range v.host.Guests { // those shut off too: it is their start that fails
		g := &v.host.Guests[i]
		if !g.Config.AutoPlacement && (g.Config.NUMATune == nil || !g.Config.NUMATune.Auto) {
			continue
		}
		s := &subject{Guest: g}
		found = append(found, Finding{
			Severity: severity, Object: s.object(),
			Evidence: []string{"placement='auto' (configuration)", evidence},
			Effect: "libvirt asks numad for nodes at each start: without the program the guest does not start, " +
				"and the advice is never revised while it runs",
			Fix:     "replace placement='auto' by a placement of its own in the configuration",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}

// numaHidden: a guest larger than a node that sees one flat memory cannot keep
// a task's memory near the task.
func numaHidden(v *view) (found []Finding) {
	for _, s := range v.guests {
		if len(s.Config.Cells) > 1 || s.Spec != nil && s.Spec.Topology.Mode == guest.TopologyOff {
			continue // off was asked for
		}
		wide := v.tooWide(s)
		if wide == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{wide, fmt.Sprintf("the guest sees %d NUMA cells (configuration)", len(s.Config.Cells)),
				s.memoryEvidence()},
			Effect: "its kernel spreads tasks and their memory without knowing which is near: on n nodes about 1 " +
				"in n accesses is local",
			Fix:     "show it cells of its own at its next start",
			Command: s.rewriteCommand(" --topology auto --memory-binding preferred"),
		})
	}
	return found
}

// tooWide says why a guest does not fit on one node; "" if it does.
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
		return fmt.Sprintf("%d vCPUs (configuration), the largest node has %d CPUs", s.Config.VCPUs, cpus)
	case s.Config.Memory > memory:
		return fmt.Sprintf("%v (configuration), the largest node has %v", s.Config.Memory, memory)
	}
	return ""
}
