// Package alarm decides which faults a host has. It compares measured values with
// thresholds, with hysteresis in value and in time: a value that wavers around a
// threshold raises one alarm and not a hundred.
//
// A value that cannot be read is neither good nor bad. An alarm keeps its state
// while its source is unreadable, and a separate alarm reports that source.
package alarm

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// mostGap is the longest time without a value after which the value still counts
// as unchanged: long enough for a restart, too short for an outage.
const mostGap = time.Minute

// Judge applies the rules to the values read at now and continues from the state
// before. It returns the new state, and the alarms that were raised, changed
// their severity or were cleared. Alarms that merely last appear only in the state.
func Judge(rules policy.Alarms, in Input, before alarm.State, now time.Time) (alarm.State, []alarm.Alarm) {
	j := judgement{
		rules:  rules.WithDefaults(),
		in:     &in,
		now:    now,
		before: make(map[key]alarm.Track, len(before.Tracks)),
		there:  make(map[inventory.Ref]bool, len(in.Sample.Nodes)+len(in.Sample.Guests)),
	}
	for _, t := range before.Tracks {
		j.before[key{t.Quantity, t.Object}] = t
	}
	readings := j.readings()
	seen := make(map[key]bool, len(readings))
	for i := range readings {
		r := &readings[i]
		if k := (key{r.quantity, r.object}); !seen[k] {
			seen[k] = true
			j.judge(r)
		}
	}
	for _, t := range before.Tracks {
		if !seen[key{t.Quantity, t.Object}] {
			j.missing(t)
		}
	}
	slices.SortFunc(j.after.Tracks, func(a, b alarm.Track) int {
		return cmp.Or(cmp.Compare(a.Quantity, b.Quantity), a.Object.Compare(b.Object))
	})
	slices.SortFunc(j.changes, func(a, b alarm.Alarm) int {
		return cmp.Or(cmp.Compare(a.Quantity, b.Quantity), a.Object.Compare(b.Object))
	})
	return j.after, j.changes
}

type key struct {
	quantity alarm.Quantity
	object   inventory.Ref
}

type judgement struct {
	rules   policy.Alarms
	in      *Input
	now     time.Time
	before  map[key]alarm.Track
	there   map[inventory.Ref]bool // nodes and guests that were sampled
	after   alarm.State
	changes []alarm.Alarm
}

// reading is the value of one quantity of one object now.
type reading struct {
	quantity alarm.Quantity
	object   inventory.Ref
	// unread means that the object exists and its value cannot be read now.
	unread bool
	value  float64
	source string
	says   func() string  // the value in words; nil: none
	causes func() []cause // the causes, greatest first; nil: no guest can be named
}

// judge follows one reading.
func (j *judgement) judge(r *reading) {
	rule := j.rules[r.quantity]
	t, known := j.before[key{r.quantity, r.object}]
	if rule.Disabled {
		j.clear(t, "no longer watched: disabled by the policy")
		return
	}
	if r.unread || known && estimateOnly(&t, r) {
		if known {
			j.after.Tracks = append(j.after.Tracks, t)
		}
		return
	}
	if !known {
		t = alarm.Track{Quantity: r.quantity, Object: r.object, Source: r.source, At: j.now}
	}
	elapsed, unbroken := j.elapsed(&t)
	unbroken = unbroken && t.Source == r.source
	t.Warning = stay(t.Warning, r.value, rule.Warning, rule.Clear, elapsed, unbroken)
	t.Critical = stay(t.Critical, r.value, rule.Critical, rule.Clear, elapsed, unbroken)
	t.Source, t.At = r.source, j.now
	j.step(&t, r, rule)
	if t.Alarm != nil || t.Warning.Side == alarm.Beyond {
		j.after.Tracks = append(j.after.Tracks, t)
	}
}

// estimateOnly reports whether an alarm that measured accesses raised would now be
// judged by an estimate. An estimate must not clear it.
func estimateOnly(t *alarm.Track, r *reading) bool {
	const estimate = string(inventory.AccessEstimate)
	return t.Alarm != nil && r.quantity == alarm.GuestRemote && r.source == estimate && t.Source != estimate
}

// elapsed returns the time since the track's latest value, and whether the value
// counts as unchanged since then.
func (j *judgement) elapsed(t *alarm.Track) (d time.Duration, unbroken bool) {
	d = max(j.now.Sub(t.At), 0) // an operator may have set the clock back
	return d, d <= max(mostGap, 2*j.in.Sample.Window)
}

// stay updates the side of a threshold that a value is on; a threshold of 0 means no threshold.
func stay(before alarm.Stay, value, threshold, clear float64, elapsed time.Duration, unbroken bool) alarm.Stay {
	side := alarm.Between
	switch {
	case threshold > 0 && value >= threshold:
		side = alarm.Beyond
	case threshold == 0 || value < threshold*clear:
		side = alarm.Under
	}
	if side != before.Side || !unbroken {
		return alarm.Stay{Side: side}
	}
	return alarm.Stay{Side: side, Lasted: before.Lasted + elapsed}
}

// step raises, changes or clears the alarm of a track.
func (j *judgement) step(t *alarm.Track, r *reading, rule policy.Threshold) {
	had := alarm.Severity("")
	if t.Alarm != nil {
		had = t.Alarm.Severity
	}
	severity := next(had, t, rule)
	if severity == "" {
		if t.Alarm != nil {
			a := *t.Alarm
			a.Value, a.Cleared = r.value, j.now
			j.changes = append(j.changes, a)
			t.Alarm = nil
		}
		return
	}
	a := alarm.Alarm{Quantity: t.Quantity, Object: t.Object, First: j.now}
	if t.Alarm != nil {
		a = *t.Alarm
	}
	a.Severity, a.Threshold = severity, rule.Warning
	if severity == alarm.Critical {
		a.Threshold = rule.Critical
	}
	a.Value, a.Worst = r.value, max(a.Worst, r.value)
	if r.value >= a.Threshold || severity != had && r.says != nil {
		a.Guests, a.Why = r.explain(a.Threshold)
	}
	if r.value >= a.Threshold && j.now.After(a.Last) {
		a.Last = j.now
	}
	t.Alarm = &a
	if severity != had {
		j.changes = append(j.changes, a)
	}
}

// next returns the next severity: higher after the value was beyond the threshold
// for long enough, lower after it was under it for long enough.
func next(had alarm.Severity, t *alarm.Track, rule policy.Threshold) alarm.Severity {
	up := func(s alarm.Stay) bool { return s.Side == alarm.Beyond && s.Lasted >= time.Duration(rule.For) }
	down := func(s alarm.Stay) bool { return s.Side == alarm.Under && s.Lasted >= time.Duration(rule.Quiet) }
	switch {
	case up(t.Critical):
		return alarm.Critical
	case had == alarm.Critical && !down(t.Critical):
		return alarm.Critical
	case up(t.Warning):
		return alarm.Warning
	case had != "" && !down(t.Warning):
		return alarm.Warning
	}
	return ""
}

// missing follows a track without a reading: its object is gone or cannot be read.
func (j *judgement) missing(t alarm.Track) {
	if j.unseen(t.Object) && !j.rules[t.Quantity].Disabled {
		j.after.Tracks = append(j.after.Tracks, t)
		return
	}
	j.clear(t, fmt.Sprintf("%s is no longer there", t.Object))
}

func (j *judgement) clear(t alarm.Track, why string) {
	if t.Alarm != nil {
		a := *t.Alarm
		a.Cleared, a.Why = j.now, a.Why+"; "+why
		j.changes = append(j.changes, a)
	}
}
