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
			"merges pages of different nodes (merge_across_nodes 1, %d pages shared): they are local to one of "+
				"their users at most",
			k.KSMPagesShared,
		),
	}
	if f.Movers.KSM != policy.AnswerWithin || f.Mode != policy.ModeAuto {
		r.Answer = "left so: to change it, all pages must be unmerged, which takes memory (policy movers.ksm)"
		return r, nil
	}
	t := f.Tried[plan.KSMWithinNodes]
	unmerge := []plan.Remedy{{Kind: plan.KSMWithinNodes, Why: r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being unmerged, to merge within nodes only (policy movers.ksm)"
		return r, unmerge
	case !t.Done():
		due, again := t.again(f.Now)
		r.Answer = "left so: it could not be unmerged, to merge within nodes only: " + t.Failed + again
		if due {
			return r, unmerge
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf(
			"left so: it was set to merge within nodes only at %s already, and to merge across them since", clock(t.At))
	default:
		r.Answer = "unmerged, and merging within nodes only (policy movers.ksm)"
	}
	return r, nil
}
