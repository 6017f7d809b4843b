package guest

import (
	"fmt"
	"strings"
)

// Notes returns the consequences of a spec that its author may not have
// intended: they are allowed, but not silently. Call it on the spec as the user
// gave it; Normalize writes the consequences into the spec.
func (s Spec) Notes() []string {
	var notes []string
	var passed []string
	for _, d := range s.Devices {
		if d.Passthrough {
			passed = append(passed, fullAddress(d.Address))
		}
	}
	if len(passed) > 0 && s.Movable == nil {
		notes = append(
			notes,
			fmt.Sprintf(
				"movable is false: vfio pins all of the VM's memory for %s, so it cannot move while the VM runs",
				strings.Join(passed, ", ")),
		)
	}
	if s.PageSize > 0 && !s.Binding.Immediate {
		notes = append(notes,
			fmt.Sprintf("memory_binding.immediate is true: huge pages of %v are allocated at start", s.PageSize))
	}
	if s.Binding.Mode == MemoryInterleave && s.seesCells() {
		notes = append(
			notes,
			"memory_binding.mode interleave spreads each cell over all of the VM's nodes: the distances that "+
				"the VM sees between its cells mean nothing",
		)
	}
	return notes
}

// seesCells reports whether the spec names several cells, or a mirror.
func (s Spec) seesCells() bool {
	t := &s.Topology
	return t.Mode == TopologyMirror || (t.Mode == "" || t.Mode == TopologyCells) && max(t.Count, len(t.Cells)) > 1
}
