package competitors

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Off returns a value of kernel.numa_balancing without balancing between nodes.
// It leaves memory tiering unchanged.
func Off(value string) string {
	mode, err := strconv.Atoi(value)
	if err != nil {
		return value
	}
	return strconv.Itoa(mode &^ 1)
}

func kernelBalancing(f Facts) (*status.Competitor, []plan.Remedy) {
	mode, err := strconv.Atoi(f.Kernel.NUMABalancing)
	if err != nil || mode&1 == 0 {
		return nil, nil
	}
	r := &status.Competitor{Name: "kernel NUMA balancing", What: fmt.Sprintf("on (kernel.numa_balancing %d)", mode)}
	if f.Window > 0 && f.Moves.Balancing > 0 {
		r.What += fmt.Sprintf("; moves %v a second", topology.Bytes(float64(f.Moves.Balancing)/f.Window.Seconds()))
	}
	if f.Movers.KernelBalancing != policy.AnswerOff || len(f.movable()) == 0 || f.Mode != policy.ModeAuto {
		r.Answer = "left on: it does not move memory that has an explicit NUMA policy; it moves other pages to the " +
			"vCPUs that use them"
		// This is the default of every distribution. The alarm kernel-moves covers how much it moves.
		r.Expected = true
		return r, nil
	}
	t := f.Tried[plan.WriteSetting]
	stop := []plan.Remedy{{Kind: plan.WriteSetting, Path: plan.NUMABalancingPath,
		From: f.Kernel.NUMABalancing, Value: Off(f.Kernel.NUMABalancing), Why: "one owner of page moves: " + r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being disabled while the daemon runs (policy movers.kernel_balancing)"
		return r, stop
	case !t.Done():
		due, again := t.retry(f.Now)
		r.Answer = "left on: disabling it failed: " + t.Failed + again
		if due {
			return r, stop
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf("left on: the daemon disabled it at %s, and it has been enabled since", clock(t.At))
	default:
		r.Answer = "disabled while the daemon runs (policy movers.kernel_balancing)"
	}
	return r, nil
}

// restoreBalancing enables kernel balancing again if the policy no longer
// disables it, in any mode.
func restoreBalancing(f Facts) []plan.Remedy {
	disabled := f.Set == "" || f.Set == Off(f.Former)
	wanted := f.Pulling
	if disabled {
		wanted = f.Movers.KernelBalancing == policy.AnswerOff && f.Mode == policy.ModeAuto
	}
	if f.Former == "" || wanted {
		return nil
	}
	if t := f.Tried[plan.RestoreSetting]; t.Failed != "" && f.Now.Sub(t.At) < RetryAfter {
		return nil
	}
	why := "the policy no longer disables it"
	if !disabled {
		why = "no move needs it any more"
	}
	return []plan.Remedy{RestoreBalancing(f.Former, f.Set, why)}
}

// RestoreBalancing restores kernel balancing to its former value, unless it no
// longer has the value that the daemon set; empty: the one without balancing.
func RestoreBalancing(former, set, why string) plan.Remedy {
	return plan.Remedy{
		Kind:  plan.RestoreSetting,
		Path:  plan.NUMABalancingPath,
		From:  cmp.Or(set, Off(former)),
		Value: former,
		Why:   why,
	}
}
