package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Thresholds of memoryFar. A tenth of remote memory is normal after page sharing
// and migration, and a small amount of memory is not worth a finding.
const (
	minLocalShare  = 0.9
	minMemoryBytes = 64 * topology.MiB
)

// memoryFar: much of the memory that the guest's vCPUs access is on other nodes.
// The rule drift covers guests with a placement, numa-hidden those larger than a
// node. Memory with policy interleave is remote as requested.
func memoryFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.Placement != nil || s.memory < minMemoryBytes || v.isSmall(s) && !s.cpuRestricted ||
			len(s.Config.Cells) <= 1 && v.tooWide(s) != "" ||
			s.spread() {
			continue
		}
		share := drift.LocalShare(*s.Guest, v.topology)
		if share == nil || *share >= minLocalShare {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{s.memoryEvidence(), v.ranOn(s),
				fmt.Sprintf(
					"local share %.0f %% (estimated from memory and vCPUs by node, by %s; accesses were not counted)",
					100**share, drift.LocalBy(s.Guest, v.topology))},
			Effect: fmt.Sprintf(
				"about %.0f %% of its cache misses go to another node; in a VM, STREAM with local memory ran "+
					"20-40 %% faster than with a neighbour's memory, and about twice as fast as with remote memory "+
					"(High Technology Letters 2021/4)",
				100*(1-*share),
			),
		}))
	}
	return found
}

// spread reports whether the guest's configuration interleaves its memory.
func (s *subject) spread() bool {
	t := s.Config.NUMATune
	return t != nil && t.Mode == string(guest.MemoryInterleave)
}

// ranOn reports the CPUs on which the guest's vCPUs may run, or on which they last
// ran if they are not pinned.
func (v *view) ranOn(s *subject) string {
	if s.cpuRestricted {
		return v.vcpuEvidence(s)
	}
	var on topology.CPUSet
	for i := range s.Seen.Threads {
		t := &s.Seen.Threads[i]
		if t.VCPU == nil {
			continue
		}
		if c, known := v.topology.CPU(t.LastCPU); known {
			on = on.With(c.ID)
		} else {
			on = on.Union(t.Affinity)
		}
	}
	return fmt.Sprintf("vCPUs may run anywhere and last ran on CPUs %s, nodes %s (%s)", on, v.topology.NodesOf(on),
		orUnknown(s.Seen.ThreadSource))
}

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

// deviceFar: the guest's memory is on another node than its device, so the
// device's DMA and interrupts cross the interconnect.
func deviceFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		nodes := v.home(s)
		if memory := v.memoryHome(s); !memory.IsEmpty() {
			nodes = memory
		}
		if nodes.IsEmpty() {
			continue
		}
		for _, d := range v.topology.Devices {
			if _, known := v.topology.Node(d.Node); !known || !s.uses(d.Address) || nodes.Contains(d.Node) {
				continue
			}
			f := Finding{
				Severity: Warning, Object: s.object(),
				Evidence: []string{
					fmt.Sprintf("device %s (%s) is attached to node %d (%s)", d.Address, d.Kind, d.Node,
						orUnknown(v.topology.Source)),
					s.memoryEvidence(),
				},
				Effect:  "every transfer of the device crosses the interconnect",
				Fix:     fmt.Sprintf("bind the VM to node %d, or assign it a device of nodes %s", d.Node, nodes),
				Command: fmt.Sprintf("numavisor bind %s --nodes %d", text.ShellWord(s.Name), d.Node),
			}
			if s.pinned() {
				f.Fix = fmt.Sprintf(
					"shut the VM down and bind its configuration to node %d (vfio pins its memory while it runs), "+
						"or assign it a device of nodes %s",
					d.Node,
					nodes,
				)
				f.Command = s.rewriteCommand(fmt.Sprintf(" --nodes %d", d.Node))
			}
			found = append(found, f)
		}
	}
	return found
}

func (s *subject) uses(address string) bool {
	for _, d := range s.Config.Devices {
		if d == address {
			return true
		}
	}
	if s.Placement != nil {
		for _, d := range s.Placement.Devices {
			if d.Address == address {
				return true
			}
		}
	}
	return false
}
