package alarm

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// State is what judging remembers from one sample to the next: alarms that
// last, and values that approach one. A daemon that starts again goes on
// from it.
type State struct {
	Tracks []Track `json:"tracks,omitempty"` // ascending by quantity and object
}

// Track is one quantity of one object that is an alarm or may become one.
type Track struct {
	Quantity Quantity      `json:"quantity"`
	Object   inventory.Ref `json:"object"`
	// Source is where its latest value is from, At when that was.
	Source string    `json:"source,omitempty"`
	At     time.Time `json:"at"`
	// Warning and Critical are how the value lies to the two thresholds.
	Warning  Stay `json:"warning"`
	Critical Stay `json:"critical"`
	// Alarm is the one that lasts; nil: not raised.
	Alarm *Alarm `json:"alarm,omitempty"`
}

// Side says how a value lies to a threshold.
type Side string

// Sides. Between is under the threshold and not under the share of it where it clears.
const (
	Beyond  Side = "beyond"
	Between Side = "between"
	Under   Side = "under"
)

// Stay is on which side of a threshold a value is, and for how long it was seen there.
type Stay struct {
	Side   Side          `json:"side"`
	Lasted time.Duration `json:"lasted_ns"`
}

// Active returns the alarms that last, critical ones first, then the oldest.
func (s State) Active() []Alarm {
	var active []Alarm
	for _, t := range s.Tracks {
		if t.Alarm != nil {
			active = append(active, *t.Alarm)
		}
	}
	slices.SortStableFunc(active, func(a, b Alarm) int {
		return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), a.First.Compare(b.First))
	})
	return active
}

func (s Severity) rank() int { return map[Severity]int{Warning: 1, Critical: 2}[s] }
