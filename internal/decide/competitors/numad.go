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
	r := &status.Competitor{Name: "numad", What: "runs, and moves processes between nodes"}
	if f.Movers.Numad != policy.AnswerExclude || f.Mode != policy.ModeAuto || len(f.ours()) == 0 {
		r.Answer = "left to it"
		return r, nil
	}
	var told, telling, deaf, answers []string
	var why string
	var do []plan.Remedy
	for _, g := range f.Guests {
		if g.Mode != policy.ModeAuto {
			continue
		}
		switch {
		case g.Told.Done():
			told = append(told, g.Name)
			continue
		case g.Told.At.IsZero():
			telling = append(telling, g.Name)
		default:
			deaf, why = append(deaf, g.Name), g.Told.Failed
		}
		if g.Told.At.IsZero() || f.Now.Sub(g.Told.At) >= Again {
			do = append(
				do,
				plan.Remedy{
					Kind:  plan.ExcludeFromNumad,
					Guest: g.Name,
					PID:   g.PID,
					Why:   "numad runs, and balancing may move this guest",
				},
			)
		}
	}
	for _, part := range []struct {
		words  string
		guests []string
	}{{"told to leave alone ", told}, {"being told to leave alone ", telling}, {"could not be told to leave alone " +
		"", deaf}} {
		if len(part.guests) > 0 {
			answers = append(answers, part.words+strings.Join(part.guests, ", "))
		}
	}
	r.Answer = strings.Join(answers, "; ")
	if why != "" {
		r.Answer += fmt.Sprintf(" (%s); it is tried again every %v", why, Again)
	}
	return r, do
}
