package diagnose

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// demotionAgainstBinding: on a host with slow memory the kernel demotes cold
// pages to it. Up to at least Linux 6.12 demotion "ignores all cpuset and
// mempolicy settings" (mm/vmscan.c, can_demote); later kernels respect the cpuset.
func demotionAgainstBinding(v *view) []Finding {
	k := &v.host.Kernel
	if k.Demotion != "true" && k.Demotion != "1" {
		return nil
	}
	var slow topology.NodeSet
	for id := range v.memoryNodes.All() {
		if n, ok := v.topology.Node(id); ok && n.CPUs.IsEmpty() {
			slow = slow.With(id)
		}
	}
	names, _ := v.boundNames()
	if slow.IsEmpty() || len(names) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{
			fmt.Sprintf("demotion_enabled is %s (/sys/kernel/mm/numa/demotion_enabled), Linux %s", k.Demotion,
				orUnknown(k.Release)),
			fmt.Sprintf("nodes %s have memory and %s (%s)", slow, v.noCPUs(), orUnknown(v.topology.Source)),
			"bound: " + strings.Join(names, ", "),
		},
		Effect: fmt.Sprintf(
			"when a node fills up, the kernel moves cold pages of bound VMs to nodes %s; up to Linux 6.12 even "+
				"pages of VMs with strict binding",
			slow,
		),
		Fix:     "disable demotion, or bind VMs that tolerate slow memory to those nodes explicitly",
		Command: "echo false > /sys/kernel/mm/numa/demotion_enabled",
		Action: &plan.Remedy{
			Kind:  plan.WriteSetting,
			Path:  "/sys/kernel/mm/numa/demotion_enabled",
			Value: "false",
		}, // not safe: other workloads may depend on demotion
	}}
}
