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

// autoWithoutNumad: libvirt runs the program numad once for each start of a
// guest. This does not require the numad daemon to run.
func autoWithoutNumad(v *view) (found []Finding) {
	severity, evidence := Error, "numad is not installed"
	switch installed := v.host.Kernel.NumadInstalled; {
	case v.host.Kernel.NumadRunning || installed != nil && *installed:
		return nil
	case installed == nil:
		severity, evidence = Info, "numad is not running (processes); the inventory does not say whether it is "+
			"installed"
	}
	for i := range v.host.Guests { // includes shut-off guests, because their start fails
		g := &v.host.Guests[i]
		if !g.Config.AutoPlacement && (g.Config.NUMATune == nil || !g.Config.NUMATune.Auto) {
			continue
		}
		s := &subject{Guest: g}
		found = append(found, Finding{
			Severity: severity, Object: s.object(),
			Evidence: []string{"placement='auto' (configuration)", evidence},
			Effect: "libvirt asks numad for nodes at each start; without the program the VM does not start, and " +
				"nothing revises numad's advice while the VM runs",
			Fix:     "replace placement='auto' by explicit nodes in the configuration",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}

// numaHidden: a guest that is larger than a node but has no virtual NUMA cells
// cannot keep a task's memory near the task.
func numaHidden(v *view) (found []Finding) {
	for _, s := range v.guests {
		if len(s.Config.Cells) > 1 || s.Spec != nil && s.Spec.Topology.Mode == guest.TopologyOff {
			continue // the spec requests mode off
		}
		wide := v.tooWide(s)
		if wide == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{wide, fmt.Sprintf("the VM has %d virtual NUMA cells (configuration)",
				len(s.Config.Cells)),
				s.memoryEvidence()},
			Effect: "its kernel does not know which memory is near a task: on n nodes about 1 in n accesses is " +
				"local",
			Fix:     "configure virtual NUMA cells for its next start",
			Command: s.rewriteCommand(" --topology auto --memory-binding preferred"),
		})
	}
	return found
}

// tooWide returns why a guest does not fit on one node, or "" if it does.
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
		return fmt.Sprintf("%d vCPUs (configuration); the largest node has %d CPUs", s.Config.VCPUs, cpus)
	case s.Config.Memory > memory:
		return fmt.Sprintf("%v (configuration); the largest node has %v", s.Config.Memory, memory)
	}
	return ""
}
