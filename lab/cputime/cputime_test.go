package cputime

import (
	"testing"
	"time"
)

func TestParseBusy_LeavesOutIdleTime(t *testing.T) {
	if got := parseBusy("cpu  100 20 30 5000 600 7 8 9 1000 1000"); got != 1740*time.Millisecond {
		t.Errorf("%v", got)
	}
}

func TestClock_CountsThisProgramAsOwn(t *testing.T) {
	c := Start()
	for c.Own() < 10*time.Millisecond {
		if c.Wall() > time.Minute {
			t.Fatalf("a loop of a minute used %v of CPU time", c.Own())
		}
	}
	if share := c.Others(); share < 0 || share > 1.1 {
		t.Errorf("others used %v of the machine", share)
	}
}
