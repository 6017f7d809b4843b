package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/text"
)

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
