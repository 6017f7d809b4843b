package alarm

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// point is a value at a time, as the law's witness records it.
type point struct {
	at    time.Time
	value float64
}

// lasted returns how long, up to now, all values have satisfied the condition without a break.
func lasted(points []point, holds func(float64) bool) time.Duration {
	now := points[len(points)-1].at
	var d time.Duration
	for i := len(points) - 1; i >= 0 && holds(points[i].value); i-- {
		d = now.Sub(points[i].at)
	}
	return d
}

// noise draws values that waver around the thresholds, with stretches on one
// side, so that alarms are raised and cleared.
func noise(t *rapid.T) []float64 {
	var values []float64
	for range rapid.IntRange(1, 25).Draw(t, "stretches") {
		level := rapid.SampledFrom([]float64{0, 0.5, 0.69, 0.7, 0.8, 0.95, 1.1, 1.45, 1.9, 2, 2.5}).Draw(t, "level")
		jitter := rapid.SampledFrom([]float64{0, 0, 0.02, 0.5}).Draw(t, "jitter")
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			values = append(values, max(level+rapid.Float64Range(-jitter, jitter).Draw(t, "noise"), 0))
		}
	}
	return values
}

func drawRule(t *rapid.T) policy.Threshold {
	seconds := func(name string) policy.Duration {
		return policy.Duration(time.Duration(rapid.IntRange(1, 40).Draw(t, name)) * time.Second)
	}
	return policy.Threshold{Warning: 1, Critical: 2, Clear: rapid.SampledFrom([]float64{0.5, 0.7, 1}).Draw(t, "clear"),
		For: seconds("for"), Quiet: seconds("quiet")}
}

// atWait is a host with one non-zero reading: threads that wait on one node of one CPU.
func atWait(v float64, window time.Duration) Input {
	return Input{Sample: inventory.Sample{Window: window,
		Nodes: []inventory.NodeSample{{NodeLoad: inventory.NodeLoad{Wait: v}, CPUs: 1}}}}
}

func TestLawsOfHysteresis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := drawRule(t)
		quick := policy.Alarms{alarm.NodeWait: rule}
		var state alarm.State
		var active *alarm.Alarm
		var latest turn
		var points []point
		now := start
		for _, v := range noise(t) {
			step := time.Duration(rapid.IntRange(500, 3000).Draw(t, "step")) * time.Millisecond
			now = now.Add(step)
			points = append(points, point{now, v})
			var changes []alarm.Alarm
			state, changes = Judge(quick, atWait(v, step), state, now)
			if len(changes) > 1 {
				t.Fatalf("%+v changed at once", changes)
			}
			for _, c := range changes {
				lawOfChange(t, rule, points, active, c)
				latest = lawOfRate(t, rule, active, c, latest, now)
			}
			active = lawOfLasting(t, state, active, v, changes)
		}
	})
}

// Every change needs the required time on its side of the threshold.
func lawOfChange(t *rapid.T, rule policy.Threshold, points []point, before *alarm.Alarm, c alarm.Alarm) {
	beyond := func(threshold float64) time.Duration {
		return lasted(points, func(v float64) bool { return v >= threshold })
	}
	under := func(threshold float64) time.Duration {
		return lasted(points, func(v float64) bool { return v < threshold*rule.Clear })
	}
	switch {
	case !c.Active():
		if before == nil || under(rule.Warning) < time.Duration(rule.Quiet) {
			t.Fatalf("cleared after %v of quiet, %v are wanted", under(rule.Warning), rule.Quiet)
		}
	case c.Severity == alarm.Critical:
		if beyond(rule.Critical) < time.Duration(rule.For) || c.Threshold != rule.Critical {
			t.Fatalf("critical after %v beyond, %v are wanted", beyond(rule.Critical), rule.For)
		}
	case before != nil:
		if under(rule.Critical) < time.Duration(rule.Quiet) || c.Threshold != rule.Warning {
			t.Fatalf("a warning again after %v under, %v are wanted", under(rule.Critical), rule.Quiet)
		}
	case beyond(rule.Warning) < time.Duration(rule.For):
		t.Fatalf("raised after %v beyond, %v are wanted", beyond(rule.Warning), rule.For)
	}
}

// No flapping: between rising and falling, in either direction, the time that the
// rule requires must pass.
func lawOfRate(t *rapid.T, rule policy.Threshold, before *alarm.Alarm, c alarm.Alarm, last turn, now time.Time) turn {
	rose := before == nil || c.Active() && c.Severity == alarm.Critical
	wanted := time.Duration(rule.Quiet)
	if rose {
		wanted = time.Duration(rule.For)
	}
	if !last.at.IsZero() && rose != last.rose && now.Sub(last.at) < wanted {
		t.Fatalf("%+v only %v after the turn before", c, now.Sub(last.at))
	}
	return turn{now, rose}
}

// turn records when an alarm rose or fell.
type turn struct {
	at   time.Time
	rose bool
}

// While it lasts, the alarm reports its true value.
func lawOfLasting(t *rapid.T, s alarm.State, before *alarm.Alarm, v float64, changes []alarm.Alarm) *alarm.Alarm {
	all := s.Active()
	if len(all) == 0 {
		if before != nil && len(changes) == 0 {
			t.Fatal("an alarm ended silently")
		}
		return nil
	}
	a := all[0]
	if a.Value != v || a.Worst < v ||
		before != nil && (a.Worst < before.Worst || !a.First.Equal(before.First) || a.Last.Before(before.Last)) {
		t.Fatalf("%+v at %v, before %+v", a, v, before)
	}
	if (before == nil || before.Severity != a.Severity) && len(changes) == 0 {
		t.Fatal("an alarm changed silently")
	}
	return &a
}

// The minimum duration of an alarm bounds the number of alarms, whatever the noise.
func TestNoiseBoundsTheNumberOfAlarms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := drawRule(t)
		var state alarm.State
		raised, now := 0, start
		for _, v := range noise(t) {
			now = now.Add(time.Second)
			var changes []alarm.Alarm
			state, changes = Judge(policy.Alarms{alarm.NodeWait: rule}, atWait(v, time.Second), state, now)
			for _, c := range changes {
				if c.Active() && c.First.Equal(now) {
					raised++
				}
			}
		}
		if most := 1 + int(now.Sub(start)/time.Duration(rule.For+rule.Quiet)); raised > most {
			t.Fatalf("raised %d times in %v, at most %d are allowed", raised, now.Sub(start), most)
		}
	})
}
