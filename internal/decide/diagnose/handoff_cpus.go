package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// handed are the online CPUs that guests hand to each other by the policy.
func (v *view) handed() topology.CPUSet { return v.policy.Handoff.CPUs.Intersect(v.topology.CPUSet()) }

// handoffOutsidePolicy: a mirrored guest runs with CPUs that the policy does not name for hand-over.
func handoffOutsidePolicy(v *view) (found []Finding) {
	for _, s := range v.guests {
		if !s.handsOver() {
			continue
		}
		var own topology.CPUSet
		for _, c := range s.Placement.VCPUs {
			own = own.Union(c.CPUs)
		}
		outside := own.Minus(v.policy.Handoff.CPUs)
		if outside.IsEmpty() {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{fmt.Sprintf("it mirrors CPUs %s (placement), and the policy's handoff.cpus is %s", own,
				text.Set(v.policy.Handoff.CPUs))},
			Effect: fmt.Sprintf("the daemon does not hand CPUs %s over: the VM has its first CPUs, %s, at most, or "+
				"other VMs use them, too", outside, s.Placement.Handoff.First),
			Fix: fmt.Sprintf("add CPUs %s to handoff.cpus in the policy and restart the daemon, or create the VM again",
				outside),
			Command: "systemctl restart numavisor",
		})
	}
	return found
}

// handoffTaken: other guests, processes or the host's own work may run on CPUs that guests hand over.
func handoffTaken(v *view) (found []Finding) {
	handed := v.handed()
	if handed.IsEmpty() {
		return nil
	}
	const effect = "a mirrored VM waits for CPUs that it is granted, although each CPU should serve one VM"
	for _, s := range v.guests {
		allowed := topology.CPUSet{}
		if s.handsOver() && len(s.Placement.VCPUs) > 0 {
			allowed = s.Placement.VCPUs[0].CPUs // QEMU's own threads may use the anchor
		}
		evidence := s.on(handed.Minus(allowed))
		if len(evidence) == 0 {
			continue
		}
		f := s.binding(Finding{Severity: Warning, Evidence: evidence, Effect: effect})
		if s.Placement != nil {
			f.Command += " --recompute" // its recorded placement may have these CPUs
			f.Action, f.Safe = nil, false
		}
		found = append(found, f)
	}
	for i := range v.host.Claims {
		c := &v.host.Claims[i]
		if on := cpusOf(c).Intersect(handed); c.PID != 0 && !on.IsEmpty() {
			found = append(found, Finding{
				Severity: Warning, Object: "host", Effect: effect,
				Evidence: []string{fmt.Sprintf("process %d (%s) is bound to CPUs %s (reservation)", c.PID, c.Name, on)},
				Fix:      "bind the process again: placing leaves out CPUs that are handed over",
				Command:  fmt.Sprintf("numavisor bind --pid %d", c.PID),
			})
		}
	}
	if on := v.topology.Housekeeping.Intersect(handed); !on.IsEmpty() {
		found = append(found, Finding{
			Severity: Warning, Object: "host", Effect: effect,
			Evidence: []string{fmt.Sprintf("CPUs %s are for the host's own work (configuration, isolcpus or cpuset "+
				"partitions) and in the policy's handoff.cpus", on)},
			Fix: fmt.Sprintf("take CPUs %s out of handoff.cpus in the policy, or of the host's housekeeping CPUs", on),
		})
	}
	return found
}

// on says which threads of a guest may run on some CPUs; vCPUs of mirrored guests belong there.
func (s *subject) on(cpus topology.CPUSet) (evidence []string) {
	for _, role := range []inventory.ThreadRole{inventory.RoleVCPU, inventory.RoleEmulator, inventory.RoleIOThread} {
		var on topology.CPUSet
		for i := range s.Seen.Threads {
			if t := &s.Seen.Threads[i]; t.Role == role && (role != inventory.RoleVCPU || !s.handsOver()) {
				on = on.Union(t.Affinity.Intersect(cpus))
			}
		}
		if !on.IsEmpty() {
			evidence = append(evidence, fmt.Sprintf("%s threads may run on CPUs %s, which VMs hand to each other (%s)",
				role, on, orUnknown(s.Seen.ThreadSource)))
		}
	}
	return evidence
}

// cpusOf are the CPUs of a reservation.
func cpusOf(c *inventory.Claim) (cpus topology.CPUSet) {
	for _, v := range c.Placement.VCPUs {
		cpus = cpus.Union(v.CPUs)
	}
	return cpus.Union(c.Placement.Emulator).Union(c.Placement.IOThread)
}

// handoffCoresSplit: the policy demands that a core serves one guest, and one serves two.
func handoffCoresSplit(v *view) (found []Finding) {
	if !v.policy.Handoff.WholeCores {
		return nil
	}
	handed := v.handed()
	serves := map[topology.CPUID]string{}
	for _, s := range v.guests {
		if h := s.Seen.HandedOver; h != nil {
			for cpu := range h.CPUs.All() {
				serves[cpu] = s.Name
			}
		}
	}
	var outside, shared []string
	for i := range v.topology.CPUs {
		c := &v.topology.CPUs[i]
		if first, ok := c.Siblings.First(); !ok || first != c.ID || !c.Siblings.Intersects(handed) {
			continue
		}
		if others := c.Siblings.Minus(handed); !others.IsEmpty() {
			outside = append(outside, fmt.Sprintf("of the core with CPUs %s, handoff.cpus has only %s", c.Siblings,
				c.Siblings.Intersect(handed)))
		}
		if names := split(c.Siblings, serves); names != "" {
			shared = append(shared, fmt.Sprintf("CPUs %s are one core and serve %s (the daemon's handoff.json)",
				c.Siblings, names))
		}
	}
	const effect = "one VM can observe another, or the host, through the caches and buffers of a core"
	if len(outside) > 0 {
		found = append(found, Finding{Severity: Warning, Object: "host", Evidence: outside, Effect: effect,
			Fix: "name all SMT siblings of a core in handoff.cpus, or none of them, and restart the daemon"})
	}
	if len(shared) > 0 {
		found = append(found, Finding{Severity: Warning, Object: "host", Evidence: shared, Effect: effect,
			Fix: "start the daemon, which brings the siblings together; " +
				"VMs whose agent does not answer keep theirs",
			Command: "systemctl restart numavisor"})
	}
	return found
}

// split names the guests that CPUs serve if there are several.
func split(cpus topology.CPUSet, serves map[topology.CPUID]string) string {
	var names []string
	for cpu := range cpus.All() {
		if name := serves[cpu]; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) < 2 {
		return ""
	}
	return strings.Join(names, " and ")
}
