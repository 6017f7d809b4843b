package diagnose

import "github.com/numavisor/numavisor/internal/inventory"

// scaleWithoutAgent: the number of vCPUs of a guest is to follow its demand, and it has no agent that takes vCPUs out
// of use.
func scaleWithoutAgent(v *view) (found []Finding) {
	for _, s := range v.guests {
		state := s.Seen.Scaled
		if s.Placement == nil || s.Placement.Scale == nil || s.State != "running" ||
			state != nil && state.Answers() && state.Means != inventory.NoMeans {
			continue
		}
		f := Finding{
			Severity: Warning, Object: s.object(),
			Evidence: []string{"the daemon has not recorded which vCPUs it uses (scale.json)"},
			Effect: "the number of vCPUs that it uses does not follow its demand: it uses all of them, or as many as " +
				"its agent last arranged, also where its nodes have fewer CPUs",
			Fix:     "start the daemon, which decides on the number of vCPUs while it runs",
			Command: "systemctl enable --now numavisor",
		}
		if state != nil {
			f.Evidence = []string{state.AgentText() + " (the daemon's scale.json)"}
			f.Fix = "install and start the agent in the VM (docs/howto/guest-agent.md); the domain needs the " +
				"virtio-serial port org.numavisor.guest.0, or a vsock"
			f.Command = "systemctl enable --now numavisor-guest # in the VM"
		}
		if state != nil && state.Answers() {
			f.Fix = "boot a kernel from Linux 6.1 on in the VM, with cgroup v2 and the cpuset controller " +
				"(systemd.unified_cgroup_hierarchy=1), and restart numavisor-guest"
		}
		found = append(found, f)
	}
	return found
}
