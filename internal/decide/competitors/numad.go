package competitors

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

func numad(f Facts) (*status.Competitor, []plan.Remedy) {
	if !f.Kernel.NumadRunning {
		return nil, nil
	}
	r := &status.Competitor{Name: "numad", What: "runs and moves processes between nodes"}
	if f.Movers.Numad != policy.AnswerExclude || f.Mode != policy.ModeAuto || len(f.movable()) == 0 {
		r.Answer = "left running, without excluding any VM"
		return r, nil
	}
	var excluded, pending, failed, answers []string
	var why string
	var do []plan.Remedy
	for _, g := range f.Guests {
		if g.Mode != policy.ModeAuto {
			continue
		}
		switch {
		case g.NumadExcluded.Done():
			excluded = append(excluded, g.Name)
			continue
		case g.NumadExcluded.At.IsZero():
			pending = append(pending, g.Name)
		default:
			failed, why = append(failed, g.Name), g.NumadExcluded.Failed
		}
		if g.NumadExcluded.At.IsZero() || f.Now.Sub(g.NumadExcluded.At) >= RetryAfter {
			do = append(
				do,
				plan.Remedy{
					Kind:  plan.ExcludeFromNumad,
					Guest: g.Name,
					PID:   g.PID,
					Why:   "numad runs, and the daemon may move this VM",
				},
			)
		}
	}
	for _, part := range []struct {
		words  string
		guests []string
	}{{"excluded from numad: ", excluded}, {"being excluded from numad: ", pending},
		{"could not be excluded from numad: ", failed}} {
		if len(part.guests) > 0 {
			answers = append(answers, part.words+strings.Join(part.guests, ", "))
		}
	}
	r.Answer = strings.Join(answers, "; ")
	if why != "" {
		r.Answer += fmt.Sprintf(" (%s); the daemon retries every %v", why, RetryAfter)
	}
	return r, do
}
