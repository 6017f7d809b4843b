package main

import (
	"errors"
	"strings"
	"testing"
)

// The command says that there is nothing to move only where that is true.
func TestARefusedPlanIsNotNothingToMove(t *testing.T) {
	for _, c := range []struct {
		ended error
		want  string
	}{{nil, "nothing to move\n"}, {errors.New("the plan is stale"), ""}} {
		var printed strings.Builder
		printMoved(&printed, nil, c.ended)
		if printed.String() != c.want {
			t.Errorf("ended by %v: printed %q, want %q", c.ended, printed.String(), c.want)
		}
	}
}
