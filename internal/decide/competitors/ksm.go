package competitors

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

func ksm(f Facts) (*status.Competitor, []plan.Remedy) {
	k := f.Kernel
	if k.KSMRun != "1" || k.KSMAcrossNodes != "1" {
		return nil, nil
	}
	r := &status.Competitor{
		Name: "KSM across nodes",
		What: fmt.Sprintf(
			"merges pages of different nodes (merge_across_nodes 1, %d pages shared), which are then local to at "+
				"most one of their users",
			k.KSMPagesShared,
		),
	}
	if f.Movers.KSM != policy.AnswerWithin || f.Mode != policy.ModeAuto {
		r.Answer = "left on: disabling it requires unmerging all pages, which takes memory (policy movers.ksm)"
		return r, nil
	}
	t := f.Tried[plan.KSMWithinNodes]
	unmerge := []plan.Remedy{{Kind: plan.KSMWithinNodes, Why: r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being unmerged and restricted to merging within nodes (policy movers.ksm)"
		return r, unmerge
	case !t.Done():
		due, again := t.retry(f.Now)
		r.Answer = "left on: restricting it to merging within nodes failed: " + t.Failed + again
		if due {
			return r, unmerge
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf(
			"left on: the daemon restricted it to merging within nodes at %s, and it has been changed since",
			clock(t.At))
	default:
		r.Answer = "unmerged and restricted to merging within nodes (policy movers.ksm)"
	}
	return r, nil
}
