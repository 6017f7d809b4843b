package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Thresholds of memoryFar: less than a tenth far is within what sharing and
// migration leave behind, and little memory is not worth a word.
const (
	nearEnough = 0.9
	worthAWord = 64 * topology.MiB
)

// memoryFar: the guest's vCPUs reach much of its memory over the interconnect.
// Guests with a placement are judged by drift, wide ones by numa-hidden;
// memory that was asked to be spread is as it was asked for.
func memoryFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.Placement != nil || s.memory < worthAWord || v.isSmall(s) && !s.cpuHeld ||
			len(s.Config.Cells) <= 1 && v.tooWide(s) != "" ||
			s.spread() {
			continue
		}
		share := drift.LocalShare(*s.Guest, v.topology)
		if share == nil || *share >= nearEnough {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{s.memoryEvidence(), v.ranOn(s),
				fmt.Sprintf(
					"local share %.0f %% (of memory by node and vCPUs by node, by %s; a model, no count of accesses)",
					100**share, drift.LocalBy(s.Guest, v.topology))},
			Effect: fmt.Sprintf(
				"about %.0f %% of its memory accesses that miss the caches go to another node; in a guest STREAM "+
					"ran 20-40 %% faster from local memory than from a neighbour's, and about twice as fast as "+
					"from a remote node's (High Technology Letters 2021/4)",
				100*(1-*share),
			),
		}))
	}
	return found
}

// spread reports whether the guest's memory was asked to lie on several nodes alike.
func (s *subject) spread() bool {
	t := s.Config.NUMATune
	return t != nil && t.Mode == string(guest.MemoryInterleave)
}

// ranOn says where the guest's vCPUs may run, or where they ran where that is anywhere.
func (v *view) ranOn(s *subject) string {
	if s.cpuHeld {
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
	return fmt.Sprintf("vCPUs may run anywhere, last ran on CPUs %s, nodes %s (%s)", on, v.topology.NodesOf(on),
		orUnknown(s.Seen.ThreadSource))
}

// helpersFar: emulator, vhost and I/O threads copy between devices and guest
// memory; from another node each copy crosses the interconnect. Those of the
// host's housekeeping CPUs were put there on purpose.
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
			Evidence: append(evidence, fmt.Sprintf("the guest is held to nodes %s", home)),
			Effect:   "disk and network data is copied over the interconnect, and buffers are allocated on other nodes",
		})
		if s.pinned() { // threads can move, whatever pins the memory
			f.Fix, f.Command = "pin the emulator to CPUs of the guest's nodes", fmt.Sprintf(
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

// meant reports whether the placement put the thread there.
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

// deviceFar: a device's DMA and its interrupts cross the interconnect.
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
					fmt.Sprintf("device %s (%s) hangs on node %d (%s)", d.Address, d.Kind, d.Node,
						orUnknown(v.topology.Source)),
					s.memoryEvidence(),
				},
				Effect:  "every transfer of the device crosses the interconnect",
				Fix:     fmt.Sprintf("bind the guest to node %d, or give it a device of nodes %s", d.Node, nodes),
				Command: fmt.Sprintf("numavisor bind %s --nodes %d", text.ShellWord(s.Name), d.Node),
			}
			if s.pinned() {
				f.Fix = fmt.Sprintf(
					"shut the guest down and bind its configuration to node %d (vfio pins its memory while it "+
						"runs), or give it a device of nodes %s",
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
