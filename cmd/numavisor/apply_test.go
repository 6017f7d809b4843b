package main

import (
	"errors"
	"strings"
	"testing"
)

// That there is nothing to move is said only where that is so.
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
