package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
)

// handsOver reports whether the guest is a mirrored one that hands CPUs over.
func (s *subject) handsOver() bool { return s.Placement != nil && s.Placement.Handoff != nil }

// grantEvidence says what the daemon records of a mirrored guest.
func (s *subject) grantEvidence() []string {
	h := s.Seen.HandedOver
	if h == nil {
		return []string{"no CPUs are on record for it (the daemon's handoff.json)"}
	}
	return []string{
		h.AgentText() + " (the daemon's handoff.json)",
		fmt.Sprintf("has %s of its %d: %s; its minimum is %d (the daemon's handoff.json)",
			text.Count(h.CPUs.Len(), "CPU", "CPUs"), len(s.Placement.VCPUs), text.Set(h.CPUs), h.Min),
	}
}

// handoffWithoutAgent: the policy hands CPUs over, and a mirrored guest has no agent that answers.
func handoffWithoutAgent(v *view) (found []Finding) {
	for _, s := range v.guests {
		h := s.Seen.HandedOver
		if !s.handsOver() || v.policy.Handoff.CPUs.IsEmpty() || s.State != "running" || h != nil && h.Answers() {
			continue
		}
		f := Finding{
			Severity: Warning, Object: s.object(), Evidence: s.grantEvidence(),
			Effect: "it neither gets CPUs when its load rises nor releases any when it is idle; all of its vCPUs " +
				"share the CPUs that it has",
			Fix: "install and start the agent in the VM (docs/howto/guest-agent.md); the domain needs the " +
				"virtio-serial port org.numavisor.guest.0, or a vsock",
			Command: "systemctl enable --now numavisor-guest # in the VM",
		}
		if h == nil {
			f.Fix = "start the daemon, which hands CPUs over while it runs"
			f.Command = "systemctl enable --now numavisor"
		}
		found = append(found, f)
	}
	return found
}

// handoffSlow: the kernel of a mirrored guest frees vCPUs by a slow means, or by none.
func handoffSlow(v *view) (found []Finding) {
	for _, s := range v.guests {
		h := s.Seen.HandedOver
		if !s.handsOver() || h == nil || !h.Answers() {
			continue
		}
		f := Finding{Object: s.object(), Evidence: s.grantEvidence(),
			Fix: "boot a kernel from Linux 6.1 on in the VM, with cgroup v2 and the cpuset controller " +
				"(systemd.unified_cgroup_hierarchy=1), and restart numavisor-guest"}
		switch h.Means {
		case inventory.OfflineMeans:
			f.Severity = Info
			f.Effect = "its kernel has no partitions of cgroup v2: each hand-over takes a vCPU offline, which takes " +
				"10 to 200 times as long as a change of a partition"
		case inventory.NoMeans:
			f.Severity = Warning
			f.Effect = "it releases no CPU that it has; only another VM's minimum takes some by force"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}
