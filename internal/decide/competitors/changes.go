package competitors

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// changed is about a guest of ours that lies otherwise than we bound it.
func changed(f Facts, g Guest) (*status.Competitor, *plan.Remedy) {
	if len(g.Drift) == 0 {
		return nil, nil
	}
	r := &status.Competitor{Name: "changes to guest " + g.Name, What: strings.Join(g.Drift, "; ")}
	switch {
	case g.Mode != policy.ModeAuto:
		r.Answer = fmt.Sprintf("reported only: its mode is %s; 'numavisor bind %s' binds it again", g.Mode, g.Name)
	case f.Movers.Changes != policy.AnswerRepair:
		r.Answer = fmt.Sprintf("left so (policy movers.changes); 'numavisor bind %s' binds it again", g.Name)
	case g.Repaired.Done() && !g.LostCPUs && f.Now.Sub(g.Repaired.At) < Insistence:
		r.Answer = fmt.Sprintf(
			"left so: it was bound again at %s already, and changed again since; 'numavisor bind %s' settles it",
			clock(g.Repaired.At), g.Name)
	case g.Repaired.Failed != "" && f.Now.Sub(g.Repaired.At) < Again:
		r.Answer = fmt.Sprintf("left so for now: %s; it is tried again every %v", g.Repaired.Failed, Again)
	default:
		r.Answer = "bound again"
		if f.Now.Sub(g.Since) >= DegradedFor {
			return r, &plan.Remedy{Kind: plan.BindGuest, Guest: g.Name, PID: g.PID, Why: r.What}
		}
	}
	return r, nil
}
