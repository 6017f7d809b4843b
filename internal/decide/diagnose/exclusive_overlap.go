package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// exclusiveOverlap: two guests with vCPUs pinned to one CPU each share such CPUs,
// or a guest may run on CPUs that are dedicated to another.
func exclusiveOverlap(v *view) (found []Finding) {
	for i, s := range v.guests {
		mine, promised := s.exclusive()
		if mine.IsEmpty() {
			continue
		}
		for k, other := range v.guests {
			theirs, _ := other.exclusive()
			switch shared := mine.Intersect(theirs); {
			case k == i:
			case !shared.IsEmpty() && k > i: // report each pair once
				found = append(found, v.overlap(s, other, shared, Error,
					"vCPUs of both VMs wait for each other on the same CPUs, although each should have its own"))
			case shared.IsEmpty() && promised && mine.Intersects(other.vcpus):
				found = append(found, v.overlap(s, other, mine.Intersect(other.vcpus), Warning,
					"vCPUs of the other VM may use CPUs that are dedicated to this VM"))
			}
		}
	}
	return found
}

// displaced returns share.Displaced of the host.
func (v *view) displaced() map[string]topology.CPUSet {
	if v.leaving == nil {
		v.leaving = share.Displaced(v.host, v.policy)
	}
	return v.leaving
}

func (v *view) overlap(s, other *subject, shared topology.CPUSet, severity Severity, effect string) Finding {
	mover := other
	if s.Placement == nil && other.Placement != nil {
		mover = s
	}
	f := mover.binding(Finding{Severity: severity, Effect: effect,
		Evidence: []string{
			fmt.Sprintf("vCPUs of %s and of %s may run on CPUs %s (%s)", s.Name, other.Name, shared,
				orUnknown(s.Seen.ThreadSource)),
		}})
	f.Object = s.object()
	f.Fix = fmt.Sprintf("bind VM %s to other CPUs; placement avoids reserved CPUs", mover.Name)
	f.Command = "numavisor bind " + text.ShellWord(mover.Name)
	if _, canLeave := v.displaced()[mover.Name]; mover.Placement != nil && !canLeave {
		f.Command += " --recompute" // its nodes share no other CPUs
		f.Action, f.Safe = nil, false
	}
	return f
}

// exclusive returns the CPUs dedicated to a guest: those of its placement, else
// those of its vCPUs if each is pinned to a different single CPU.
func (s *subject) exclusive() (cpus topology.CPUSet, promised bool) {
	if p := s.Placement; p != nil {
		return p.Exclusive(), true
	}
	pins := map[guest.VCPUID]topology.CPUSet{}
	for id, pin := range s.Config.Pins {
		pins[id] = pin
	}
	for _, t := range s.Seen.Threads {
		if t.VCPU != nil && !t.Affinity.IsEmpty() {
			pins[*t.VCPU] = t.Affinity
		}
	}
	for _, pin := range pins {
		if pin.Len() != 1 || pin.Intersects(cpus) {
			return topology.CPUSet{}, false
		}
		cpus = cpus.Union(pin)
	}
	return cpus, false
}
