package competitors_test

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/policy"
)

// A VM that has drifted again after a repair is left alone, because the change is
// deliberate. A VM whose CPUs went offline is repaired all the same.
func TestAnswer_RepairsVMWithOfflineCPUs(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for lost, repairs := range map[bool]int{false: 0, true: 1} {
		g := competitors.Guest{Name: "g", PID: 1, Mode: policy.ModeAuto, Drift: []string{"vCPU 0 may run on CPUs 0-3"},
			Since: at.Add(-time.Minute), Repaired: competitors.Attempt{At: at.Add(-10 * time.Minute)}, LostCPUs: lost}
		seen, do := competitors.Answer(
			competitors.Facts{Mode: policy.ModeAuto, Movers: policy.Movers{Changes: policy.AnswerRepair},
				Guests: []competitors.Guest{g}, Now: at},
		)
		if len(do) != repairs {
			t.Errorf("CPUs lost %v: %d actions, want %d: %+v", lost, len(do), repairs, do)
		}
		want := map[bool]string{false: "changes to VM g", true: "CPUs that VM g lost"}[lost]
		if len(seen) != 1 || seen[0].Name != want {
			t.Errorf("CPUs lost %v: reported as %+v, want %q", lost, seen, want)
		}
	}
}
