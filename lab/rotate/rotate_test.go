package rotate

import "testing"

func TestTurn_EveryCaseHasOneTurnInThree(t *testing.T) {
	for i := range 10 {
		turns := 0
		for _, third := range []string{"0", "1", "2"} {
			t.Setenv(Variable, third)
			if Turn(i) {
				turns++
			}
		}
		if turns != 1 {
			t.Errorf("case %d has %d turns", i, turns)
		}
		if t.Setenv(Variable, "all"); !Turn(i) {
			t.Errorf("case %d does not run with all", i)
		}
	}
}
