package journal

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Timeline is what one move did second by second.
type Timeline struct {
	ID      string    `json:"id"`
	Decided time.Time `json:"decided"` // when it began
	What    string    `json:"what"`
	Why     string    `json:"why,omitempty"`
	End     Kind      `json:"end,omitempty"` // empty: it has not ended
	Guests  []string  `json:"guests"`
	// Seconds are the parts of the move in which something was done, oldest first.
	Seconds []Second `json:"seconds"`
}

// Second is a part of a move: a second, or more in the trace of a long move.
type Second struct {
	At     time.Time     `json:"at"`
	Since  time.Duration `json:"since_began_ns"`
	Length time.Duration `json:"length_ns"`
	Did    []Moment      `json:"did"`
	// Waiting are the VMs whose memory is to be copied after this part.
	Waiting []string `json:"waiting,omitempty"`
}

// TimelineOf returns the timeline of a move, or of the latest one if id is empty.
// False: there is no such move.
func TimelineOf(entries []Entry, id string) (Timeline, bool) {
	var t Timeline
	for _, e := range slices.Backward(entries) {
		if e.Kind == MoveBegan && (id == "" || e.ID == id) {
			t = Timeline{ID: e.ID, Decided: e.At, What: e.What, Why: e.Why, Guests: e.Guests, Seconds: []Second{}}
			break
		}
	}
	if t.ID == "" {
		return t, false
	}
	for _, e := range entries {
		if e.ID != t.ID || e.At.Before(t.Decided) {
			continue
		}
		if e.Ends() {
			t.End = e.Kind
		}
		for _, m := range e.Trace {
			t.add(e.At.Add(-e.Took), m)
		}
	}
	t.fillWaiting()
	return t, true
}

// add adds a moment of a trace that began at a time.
func (t *Timeline) add(began time.Time, m Moment) {
	at := began.Add(m.At.Truncate(max(m.Length, 1)))
	i := slices.IndexFunc(t.Seconds, func(s Second) bool { return s.At.Equal(at) })
	if i < 0 {
		t.Seconds = append(t.Seconds, Second{At: at, Since: at.Sub(t.Decided), Length: m.Length})
		i = len(t.Seconds) - 1
	}
	t.Seconds[i].Did = append(t.Seconds[i].Did, m)
}

// fillWaiting finds the VMs that wait for others: they are copied later, and not now.
func (t *Timeline) fillWaiting() {
	slices.SortStableFunc(t.Seconds, func(a, b Second) int { return a.At.Compare(b.At) })
	copies := func(s Second, guest string) bool {
		return slices.ContainsFunc(s.Did, func(m Moment) bool {
			return m.Guest == guest && (m.Step == TraceCopy || m.Step == TracePull)
		})
	}
	for _, guest := range t.Guests {
		last := -1
		for i, s := range t.Seconds {
			if copies(s, guest) {
				last = i
			}
		}
		for i := range max(0, last) {
			if !copies(t.Seconds[i], guest) {
				t.Seconds[i].Waiting = append(t.Seconds[i].Waiting, guest)
			}
		}
	}
}

// Copied is the memory copied in a second.
func (s *Second) Copied() (sum topology.Bytes) {
	for _, m := range s.Did {
		sum += m.Copied
	}
	return sum
}

// Longest is the step that took most of a guest's time in a second, and that time;
// "": none.
func (s *Second) Longest(guest string) (TraceStep, time.Duration) {
	var most Moment
	for _, m := range s.Did {
		if m.Guest == guest && cmp.Compare(m.Took, most.Took) > 0 {
			most = m
		}
	}
	return most.Step, most.Took
}
