package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/plan"
)

// ksmAcrossNodes: a page merged across nodes is local to at most one of its users.
func ksmAcrossNodes(v *view) []Finding {
	k := &v.host.Kernel
	if k.KSMRun != "1" || k.KSMAcrossNodes != "1" || k.KSMPagesShared == 0 && len(v.guests) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{
			fmt.Sprintf("run 1, merge_across_nodes 1, pages_shared %d (/sys/kernel/mm/ksm)", k.KSMPagesShared)},
		Effect: "the kernel merges identical pages of VMs on different nodes into one page on one node, which is " +
			"remote for all other VMs regardless of their binding",
		Fix: "restrict KSM to merging within nodes; the kernel must unmerge all pages first, which takes memory",
		Command: "echo 2 > /sys/kernel/mm/ksm/run && echo 0 > /sys/kernel/mm/ksm/merge_across_nodes && echo 1 > " +
			"/sys/kernel/mm/ksm/run",
		Safe:   k.KSMPagesShared == 0, // nothing to unmerge
		Action: &plan.Remedy{Kind: plan.KSMWithinNodes},
	}}
}
