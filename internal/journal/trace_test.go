package journal_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// For any activities: the trace has their sums, in the order of time, and is
// bounded.
func TestTrace_IsBoundedAndLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var trace journal.Trace
		var took time.Duration
		var copied topology.Bytes
		for range rapid.IntRange(0, 3000).Draw(t, "activities") {
			at := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "at"))
			length := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "length"))
			bytes := topology.Bytes(rapid.IntRange(0, 1<<28).Draw(t, "bytes"))
			guest := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "guest")
			step := rapid.SampledFrom([]journal.TraceStep{journal.TraceCopy, journal.TracePace}).Draw(t, "step")
			trace.Add(guest, step, at, at+length, bytes)
			took, copied = took+length, copied+bytes
		}
		last := time.Duration(0)
		all := trace.Moments()
		if len(all) > 512 {
			t.Fatalf("%d moments", len(all))
		}
		for _, m := range all {
			if m.At < last || m.Length < time.Second {
				t.Fatalf("%+v after %v", m, last)
			}
			last, took, copied = m.At, took-m.Took, copied-m.Copied
		}
		if took != 0 || copied != 0 {
			t.Errorf("%v and %v are missing", took, copied)
		}
	})
}

// Activities of the same second, VM and step are one moment.
func TestTrace_JoinsWithinASecond(t *testing.T) {
	var trace journal.Trace
	const ms = time.Millisecond
	trace.Add("a", journal.TraceCopy, 100*ms, 300*ms, 10)
	trace.Add("a", journal.TracePace, 300*ms, 400*ms, 0)
	trace.Add("a", journal.TraceCopy, 400*ms, 1400*ms, 20)
	trace.Add("a", journal.TraceCopy, 1400*ms, 1500*ms, 40)
	want := []journal.Moment{
		{At: 100 * ms, Length: time.Second, Guest: "a", Step: journal.TraceCopy, Took: 1200 * ms, Copied: 30},
		{At: 300 * ms, Length: time.Second, Guest: "a", Step: journal.TracePace, Took: 100 * ms},
		{At: 1400 * ms, Length: time.Second, Guest: "a", Step: journal.TraceCopy, Took: 100 * ms, Copied: 40},
	}
	got := trace.Moments()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}
