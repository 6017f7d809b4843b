package handoff

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// counted plays records at times in milliseconds, for guests a and b.
type counted struct {
	tally

	t     *testing.T
	start time.Time
	hands *Hands
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	c := &counted{t: t, start: time.Unix(1_800_000_000, 0), hands: New(Options{}, Record{})}
	c.record(Record{}, c.start)
	for _, name := range []string{"a", "b"} {
		c.hands.members[name] = &member{Guest: handoff.Guest{Name: name, Min: 1, Weight: 7}}
	}
	c.guests(c.hands)
	return c
}

func (c *counted) at(ms int) time.Time { return c.start.Add(time.Duration(ms) * time.Millisecond) }

func (c *counted) play(ms int, epochs []string, grants ...handoff.Grant) {
	r := Record{Grants: grants, Epochs: map[string]handoff.Epoch{}, Guests: map[string]State{"a": {Taken: len(grants)}}}
	for _, name := range epochs {
		r.Epochs[name] = 1
	}
	c.record(r, c.at(ms))
	c.guests(c.hands)
}

var both = []string{"a", "b"}

func has(cpu topology.CPUID, guest string) handoff.Grant {
	return handoff.Grant{CPU: cpu, Guest: guest}
}

func (c *counted) leaves(cpu topology.CPUID, guest string, since int) handoff.Grant {
	return handoff.Grant{CPU: cpu, Guest: guest, Leaving: true, Since: c.at(since)}
}

// The time from the request until the CPU is free counts, at the guest that was asked.
func TestTallyCountsTheTimeOfARelease(t *testing.T) {
	c := newCounted(t)
	c.play(0, both, has(0, "a"), has(1, "a"))
	c.play(10, both, has(0, "a"), c.leaves(1, "a", 10))
	c.play(14, both, has(0, "a"))
	c.play(15, both, has(0, "a"), has(1, "b"))
	holds := c.holdings(c.at(20))
	var want inventory.HandoverTimes
	want.Add(4 * time.Millisecond)
	if diff := cmp.Diff(want, holds["a"].Times); diff != "" {
		t.Errorf("times of a (-want +got):\n%s", diff)
	}
	if h := holds["b"]; h.Times.Count() != 0 {
		t.Errorf("b has %+v", h.Times)
	}
	if h := holds["a"]; h.Taken != 2 || h.Min != 1 || h.Weight != 7 || h.Demand != nil ||
		!h.CPUs.Equal(topology.SetOf[topology.CPUID](0)) {
		t.Errorf("a has %+v", h)
	}
	if open := holds["a"].Open; open != (14*2+6*1)/20.0 {
		t.Errorf("a had %v CPUs on average", open)
	}
	if open := c.holdings(c.at(30))["b"].Open; open != 1 {
		t.Errorf("b had %v CPUs on average since", open)
	}
}

// A release that the guest refuses counts as one, and has no time.
func TestTallyCountsRefusals(t *testing.T) {
	c := newCounted(t)
	c.play(0, both, has(0, "a"), c.leaves(1, "a", 0))
	c.play(1000, both, has(0, "a"), handoff.Grant{CPU: 1, Guest: "a", Stuck: true})
	c.play(1100, both, has(0, "a"), handoff.Grant{CPU: 1, Guest: "a", Stuck: true})
	if h := c.holdings(c.at(1200))["a"]; h.Refused != 1 || h.Times.Count() != 0 {
		t.Errorf("a has %+v", h)
	}
	c.play(1300, both, has(0, "a")) // it released the CPU late
	if h := c.holdings(c.at(1400))["a"]; h.Refused != 1 || h.Times.Count() != 1 || h.Times.Sum != 1300*time.Millisecond {
		t.Errorf("after a late release a has %+v", h)
	}
	c.play(1500, both, has(1, "b"))
	c.play(1600, both)
	if h := c.holdings(c.at(1700))["b"]; h.Times.Count() != 0 {
		t.Errorf("b was not asked, and has %+v", h.Times)
	}
}

// A guest that stops releases nothing, and is forgotten.
func TestTallyForgetsAGuestThatStops(t *testing.T) {
	c := newCounted(t)
	c.play(0, both, has(0, "a"), c.leaves(1, "a", 0), has(2, "b"))
	delete(c.hands.members, "a")
	c.play(50, []string{"b"}, has(2, "b"))
	if holds := c.holdings(c.at(60)); len(holds) != 1 || holds["b"].CPUs.Len() != 1 {
		t.Errorf("holdings %+v", holds)
	}
}

// What a guest's agent says it could use is shown.
func TestTallyShowsTheDemand(t *testing.T) {
	c := newCounted(t)
	c.hands.members["b"].demand = handoff.Demand{Guest: "b", Running: 1.5, Waiting: 0.25}
	c.play(0, both, has(0, "a"), has(2, "b"))
	if d := c.holdings(c.at(1))["b"].Demand; d == nil || *d != 1.75 {
		t.Errorf("demand %v", d)
	}
}

// A guest that is being created has CPUs reserved, and is not shown before it runs.
func TestTallyShowsNoGuestBeforeItRuns(t *testing.T) {
	c := newCounted(t)
	c.hands.members["a"].starting = true
	c.play(0, both, has(0, "a"), has(1, "b"))
	if holds := c.holdings(c.at(1)); len(holds) != 1 || holds["b"].CPUs.Len() != 1 {
		t.Errorf("holdings %+v", holds)
	}
	c.hands.members["a"].starting = false
	c.play(2, both, has(0, "a"), has(1, "b"))
	if holds := c.holdings(c.at(3)); len(holds) != 2 {
		t.Errorf("once it runs: %+v", holds)
	}
}
