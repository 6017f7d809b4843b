package diagnose

// cpusetsMissing: only the cpuset controller restricts threads and memory to nodes.
func cpusetsMissing(v *view) []Finding {
	if has := v.host.Kernel.Cpusets; has == nil || *has {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{"cgroup v2 has no cpuset controller (cgroup.controllers)"},
		Effect: "no VM can be restricted to nodes: a bind pins vCPUs and then fails or is done in part, and memory " +
			"goes to other nodes",
		Fix: "boot with cgroup v2 alone (kernel parameter systemd.unified_cgroup_hierarchy=1), on a kernel that has " +
			"the controller",
	}}
}
