package competitors

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// changed answers changes to a managed guest whose state differs from its placement.
func changed(f Facts, g Guest) (*status.Competitor, *plan.Remedy) {
	if len(g.Drift) == 0 {
		return nil, nil
	}
	r := &status.Competitor{Name: "changes to VM " + g.Name, What: strings.Join(g.Drift, "; ")}
	if g.LostCPUs { // nothing changed the VM
		r.Name = "CPUs that VM " + g.Name + " lost"
	}
	switch {
	case g.Mode != policy.ModeAuto:
		r.Answer = fmt.Sprintf("not repaired: its mode is %s; run 'numavisor bind %s' to restore it", g.Mode, g.Name)
	case f.Movers.Changes != policy.AnswerRepair:
		r.Answer = fmt.Sprintf("not repaired (policy movers.changes); run 'numavisor bind %s' to restore it", g.Name)
	case g.Repaired.Done() && !g.LostCPUs && f.Now.Sub(g.Repaired.At) < OneRepair:
		r.Answer = fmt.Sprintf(
			"not repaired: it was repaired at %s and has been changed since; run 'numavisor bind %s' to restore it",
			clock(g.Repaired.At), g.Name)
	case g.Repaired.Failed != "" && f.Now.Sub(g.Repaired.At) < RetryAfter:
		r.Answer = fmt.Sprintf("not repaired: %s; the daemon retries every %v", g.Repaired.Failed, RetryAfter)
	default:
		r.Answer = "being repaired: bound to its placement again"
		if f.Now.Sub(g.Since) >= RepairAfter {
			return r, &plan.Remedy{Kind: plan.BindGuest, Guest: g.Name, PID: g.PID, Why: r.What}
		}
	}
	return r, nil
}
