package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// helpersFar: emulator, vhost and I/O threads copy data between devices and guest
// memory. If they run on another node, each copy crosses the interconnect.
// Threads on housekeeping CPUs are there on purpose.
func helpersFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		home := v.home(s)
		if home.IsEmpty() || s.Placement != nil && len(drift.Of(*s.Guest, v.topology)) > 0 {
			continue
		}
		var evidence []string
		for _, role := range []inventory.ThreadRole{inventory.RoleEmulator, inventory.RoleVhost,
			inventory.RoleIOThread} {
			if cpus := s.away(v, role, home); !cpus.IsEmpty() {
				evidence = append(
					evidence,
					fmt.Sprintf("%s threads may run on CPUs %s, nodes %s (%s)", role, cpus, v.topology.NodesOf(cpus),
						orUnknown(s.Seen.ThreadSource)),
				)
			}
		}
		if len(evidence) == 0 {
			continue
		}
		f := s.binding(Finding{
			Severity: Warning,
			Evidence: append(evidence, fmt.Sprintf("the VM is restricted to nodes %s", home)),
			Effect:   "disk and network data is copied over the interconnect, and buffers are allocated on other nodes",
		})
		if s.pinned() { // threads can move even if the memory cannot
			f.Fix, f.Command = "pin the emulator to CPUs of the VM's nodes", fmt.Sprintf(
				"virsh emulatorpin %s %s --live", text.ShellWord(s.Name), v.topology.CPUsOf(home))
		}
		found = append(found, f)
	}
	return found
}

// away returns the CPUs of the threads of a role that cannot run on any of the
// guest's nodes; empty if all can.
func (s *subject) away(v *view, role inventory.ThreadRole, home topology.NodeSet) topology.CPUSet {
	var far topology.CPUSet
	for _, t := range s.Seen.Threads {
		on := v.topology.NodesOf(t.Affinity)
		if t.Role != role || on.IsEmpty() || on.Intersects(home) || t.Affinity.SubsetOf(v.topology.Housekeeping) ||
			s.meant(t) {
			continue
		}
		far = far.Union(t.Affinity)
	}
	return far
}

// meant reports whether the placement puts the thread there.
func (s *subject) meant(t inventory.Thread) bool {
	if s.Placement == nil {
		return false
	}
	want := s.Placement.Emulator
	if t.Role == inventory.RoleIOThread {
		want = s.Placement.IOThread
	}
	return !want.IsEmpty() && t.Affinity.SubsetOf(want)
}
