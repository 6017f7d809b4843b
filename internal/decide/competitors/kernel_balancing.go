package competitors

import (
	"fmt"
	"strconv"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Off is a value of kernel.numa_balancing without the balancing of nodes;
// memory tiering stays as it is.
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
	if f.Movers.KernelBalancing != policy.AnswerOff || len(f.ours()) == 0 || f.Mode != policy.ModeAuto {
		r.Answer = "left on: memory with an explicit policy it does not touch, other pages it brings to the vCPUs " +
			"that use them"
		// every distribution ships it so; how much it moves is watched on its own (alarm kernel-moves)
		r.Expected = true
		return r, nil
	}
	t := f.Tried[plan.WriteSetting]
	stop := []plan.Remedy{{Kind: plan.WriteSetting, Path: plan.NUMABalancingPath,
		From: f.Kernel.NUMABalancing, Value: Off(f.Kernel.NUMABalancing), Why: "one owner of page moves: " + r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being switched off while the daemon runs (policy movers.kernel_balancing)"
		return r, stop
	case !t.Done():
		due, again := t.again(f.Now)
		r.Answer = "left on: it could not be switched off: " + t.Failed + again
		if due {
			return r, stop
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf("left on: it was switched off at %s already, and on again since", clock(t.At))
	default:
		r.Answer = "switched off while the daemon runs (policy movers.kernel_balancing)"
	}
	return r, nil
}

// giveBack has kernel balancing switched on again where the policy no longer
// wants it off, whatever the mode is now.
func giveBack(f Facts) []plan.Remedy {
	if f.Former == "" || f.Movers.KernelBalancing == policy.AnswerOff && f.Mode == policy.ModeAuto {
		return nil
	}
	if t := f.Tried[plan.RestoreSetting]; t.Failed != "" && f.Now.Sub(t.At) < Again {
		return nil
	}
	return []plan.Remedy{GiveBack(f.Former, "the policy no longer wants it off")}
}

// GiveBack restores kernel balancing to a former value, unless it is no longer
// off as the daemon sets it.
func GiveBack(former, why string) plan.Remedy {
	return plan.Remedy{
		Kind:  plan.RestoreSetting,
		Path:  plan.NUMABalancingPath,
		From:  Off(former),
		Value: former,
		Why:   why,
	}
}
