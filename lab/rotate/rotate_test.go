package rotate

import (
	"strconv"
	"testing"
)

func TestTurn_EveryCaseHasOneTurnInThree(t *testing.T) {
	for i := range 10 {
		turns := 0
		for part := range Parts {
			t.Setenv(Variable, strconv.Itoa(part))
			if Turn(i) {
				turns++
			}
		}
		if turns != Parts/3 {
			t.Errorf("case %d has %d turns in %d landings", i, turns, Parts)
		}
		if t.Setenv(Variable, "all"); !Turn(i) {
			t.Errorf("case %d does not run with all", i)
		}
	}
}

// recorder notes that a test is skipped.
type recorder struct {
	testing.TB
	skipped bool
}

func (*recorder) Helper() {}

func (r *recorder) Skipf(string, ...any) { r.skipped = true }

func TestTest_RunsOnceInSix(t *testing.T) {
	for part := range Parts {
		runs := 0
		for now := range Parts {
			t.Setenv(Variable, strconv.Itoa(now))
			r := &recorder{TB: t}
			if Test(r, part); !r.skipped {
				runs++
			}
		}
		if runs != 1 {
			t.Errorf("a test of part %d runs %d times in %d landings", part, runs, Parts)
		}
	}
}
