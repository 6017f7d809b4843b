package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/drift"
)

// drifted: the state of a guest differs from its placement.
func drifted(v *view) (found []Finding) {
	const most = 8
	for _, s := range v.guests {
		differences := drift.Of(*s.Guest, v.topology)
		if len(differences) == 0 {
			continue
		}
		var evidence []string
		for i, d := range differences {
			if i == most {
				evidence = append(evidence, fmt.Sprintf("and %d more", len(differences)-most))
				break
			}
			evidence = append(evidence, d.String())
		}
		f := s.binding(Finding{Severity: Warning, Evidence: evidence,
			Effect: "the VM is not where it was placed: it and other VMs may use each other's CPUs and memory"})
		switch {
		case s.busy != nil:
			f.Severity, f.Effect = Info, "none: the VM is being bound or moved, and is between its old and its "+
				"new placement"
		case s.Placement != nil && s.limited(s.Placement.Nodes) != nil:
			l := s.limited(s.Placement.Nodes)
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s allows nodes %s", l.File, l.Nodes))
			f.Fix = "widen the cgroup above the VM (with systemd: AllowedMemoryNodes of the unit), then bind the VM"
			f.Command, f.Action, f.Safe = l.Widen(l.Wanted), nil, false
		case !s.pinned():
			f.Fix = "bind the VM to its placement again; it keeps running"
		}
		found = append(found, f)
	}
	return found
}
