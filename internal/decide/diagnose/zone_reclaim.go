package diagnose

import "github.com/numavisor/numavisor/internal/plan"

// zoneReclaim: the kernel reclaims a full node before it uses free memory of others.
func zoneReclaim(v *view) []Finding {
	mode := v.host.Kernel.ZoneReclaim
	if mode == "" || mode == "0" || len(v.guests) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{"vm.zone_reclaim_mode is " + mode + " (/proc/sys/vm/zone_reclaim_mode)"},
		Effect: "allocations stall while the kernel reclaims page cache of a full node, although other nodes have " +
			"free memory",
		Fix:     "disable it: bindings decide which nodes VMs use",
		Command: "sysctl -w vm.zone_reclaim_mode=0",
		Safe:    true,
		Action:  &plan.Remedy{Kind: plan.WriteSetting, Path: "/proc/sys/vm/zone_reclaim_mode", From: mode, Value: "0"},
	}}
}
