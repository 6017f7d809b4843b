package demo

import (
	"fmt"
	"io"
	"time"
)

// expected is how long each step takes on two CPUs that do nothing else, from measured runs. The demo
// scales what is left by how long the steps before took here.
var expected = []time.Duration{
	26 * time.Second, 85 * time.Second, 60 * time.Second, 40 * time.Second, 24 * time.Second, 37 * time.Second,
}

// steps numbers the parts of the demo and estimates the time that is left.
type steps struct {
	out   io.Writer
	now   func() time.Time
	begun time.Time
	at    int // steps begun
}

func newSteps(out io.Writer) *steps { return &steps{out: out, now: time.Now, begun: time.Now()} }

// next announces a step: "== [2/6] 0:24, about 2:10 left: start three VMs".
func (s *steps) next(format string, args ...any) {
	took := s.now().Sub(s.begun)
	fmt.Fprintf(s.out, "\n== [%d/%d] %s, about %s left: %s\n\n", s.at+1, len(expected), clock(took),
		clock(s.left(took)), fmt.Sprintf(format, args...))
	s.at++
}

// done ends the last step.
func (s *steps) done() { fmt.Fprintf(s.out, "\n== after %s\n\n", clock(s.now().Sub(s.begun))) }

// left estimates the time that the steps from here on take.
func (s *steps) left(took time.Duration) time.Duration {
	var before, after time.Duration
	for i, d := range expected {
		if i < s.at {
			before += d
		} else {
			after += d
		}
	}
	if before > 0 {
		return time.Duration(float64(after) * float64(took) / float64(before))
	}
	return after
}

// clock writes minutes and seconds: "2:05".
func clock(d time.Duration) string {
	d = d.Round(time.Second)
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
