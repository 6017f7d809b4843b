package apply_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/plan"
)

// Memory that an interrupted step did not reach does not count as arrived.
func TestOutcome_Arrived(t *testing.T) {
	step := plan.Step{Kind: plan.MoveRange, Bytes: 1024 * mib}
	moved := &plan.Moved{Moved: 100 * mib, Failed: 4 * mib}
	for name, c := range map[string]struct {
		o    apply.Outcome
		want int
	}{
		"done":            {apply.Outcome{Status: apply.Done, Moved: &plan.Moved{Moved: 1000 * mib}}, 1024},
		"pages left":      {apply.Outcome{Status: apply.Partial, Moved: moved}, 1020},
		"stopped":         {apply.Outcome{Status: apply.Partial, Moved: moved, Unfinished: true}, 100},
		"failed":          {apply.Outcome{Status: apply.Failed, Moved: moved}, 100},
		"not a copy":      {apply.Outcome{Status: apply.Done}, 0},
		"more than known": {apply.Outcome{Status: apply.Failed, Moved: &plan.Moved{Moved: 2048 * mib}}, 1024},
	} {
		c.o.Step = step
		if got := int(c.o.Arrived() / mib); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got, c.want)
		}
	}
}
