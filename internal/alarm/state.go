package alarm

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// State is the state of the rules between two samples: active alarms, and
// values that approach a threshold. A restarted daemon resumes from it.
type State struct {
	Tracks []Track `json:"tracks,omitempty"` // ascending by quantity and object
}

// Track is one quantity of one object that is an alarm or may become one.
type Track struct {
	Quantity Quantity      `json:"quantity"`
	Object   inventory.Ref `json:"object"`
	// Source is the source of its latest value, At the time of that value.
	Source string    `json:"source,omitempty"`
	At     time.Time `json:"at"`
	// Warning and Critical are the position of the value relative to the two thresholds.
	Warning  Stay `json:"warning"`
	Critical Stay `json:"critical"`
	// Alarm is the active alarm; nil: not raised.
	Alarm *Alarm `json:"alarm,omitempty"`
}

// Side is the position of a value relative to a threshold.
type Side string

// Sides. Between is below the threshold but not below the share of it at which the alarm clears.
const (
	Beyond  Side = "beyond"
	Between Side = "between"
	Under   Side = "under"
)

// Stay is the side of a threshold that a value is on, and how long it has been observed there.
type Stay struct {
	Side   Side          `json:"side"`
	Lasted time.Duration `json:"lasted_ns"`
}

// Active returns the active alarms, critical ones first, then the oldest.
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
