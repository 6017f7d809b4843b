package journal_test

import (
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/journal"
)

// The timeline of a move that was stopped and resumed has the seconds of both
// runs, and the VMs that wait for others.
func TestTimelineOf(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	copies := func(guest string, at time.Duration) journal.Moment {
		return journal.Moment{At: at, Length: time.Second, Guest: guest, Step: journal.TraceCopy,
			Took: 900 * time.Millisecond, Copied: 7}
	}
	entries := []journal.Entry{
		{Kind: journal.MoveBegan, ID: "m1", At: began.Add(-time.Hour), Guests: []string{"x"}},
		{Kind: journal.MoveDone, ID: "m1", At: began.Add(-time.Minute), Trace: []journal.Moment{copies("x", 0)}},
		{Kind: journal.MoveBegan, ID: "m2", At: began, Guests: []string{"a", "b"}, What: "batch", Why: "far"},
		{Kind: journal.MoveStep, ID: "m2", At: began.Add(2 * time.Second), Took: 2 * time.Second, Trace: []journal.Moment{
			{At: 10, Length: time.Second, Guest: "a", Step: journal.TracePin, Took: 5}, copies("a", 500), copies("a", time.Second)}},
		{Kind: journal.MoveDone, ID: "m2", At: began.Add(102 * time.Second), Took: 2 * time.Second,
			Trace: []journal.Moment{copies("b", 1500*time.Millisecond)}},
	}
	line, ok := journal.TimelineOf(entries, "")
	if !ok || line.ID != "m2" || line.End != journal.MoveDone || line.What != "batch" || len(line.Seconds) != 3 {
		t.Fatalf("%v: %+v", ok, line)
	}
	for i, want := range []struct {
		since   time.Duration
		waiting []string
		longest journal.TraceStep
	}{{0, []string{"b"}, journal.TraceCopy}, {time.Second, []string{"b"}, journal.TraceCopy}, {101 * time.Second, nil, ""}} {
		s := line.Seconds[i]
		longest, _ := s.Longest("a")
		if s.Since != want.since || !slices.Equal(s.Waiting, want.waiting) || longest != want.longest ||
			s.Copied() != 7 {
			t.Errorf("second %d: %+v", i, s)
		}
	}
	if one, ok := journal.TimelineOf(entries, "m1"); !ok || len(one.Seconds) != 1 {
		t.Errorf("m1: %v %+v", ok, one)
	}
	if _, ok := journal.TimelineOf(entries, "m9"); ok {
		t.Error("a timeline of no move")
	}
}
