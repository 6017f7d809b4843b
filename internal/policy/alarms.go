package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/strictyaml"
)

// Alarms are the thresholds of the quantities that are watched, by quantity.
// What is left out has the documented default (AlarmDefaults).
type Alarms map[alarm.Quantity]Threshold

// Threshold says when an alarm for a quantity begins and ends. Fields left at
// zero have the quantity's default.
type Threshold struct {
	// Disabled: the quantity is not watched.
	Disabled bool `json:"disabled,omitempty"`
	// Warning and Critical are the values, in the quantity's unit, at which its
	// alarm has that severity. Where the default has no Critical, the alarm never
	// is critical unless one is given.
	Warning  float64 `json:"warning,omitempty"`
	Critical float64 `json:"critical,omitempty"`
	// Clear is the share of a threshold under which the value must be to leave
	// its severity.
	Clear float64 `json:"clear,omitempty"`
	// For is how long the value must be at a threshold or beyond without a break
	// before the alarm is raised; Quiet how long under Clear before it is cleared.
	// An alarm cannot come and go faster than these.
	For   Duration `json:"for,omitempty"`
	Quiet Duration `json:"quiet,omitempty"`
}

// watched is a quantity's default threshold, and the greatest one allowed.
type watched struct {
	quantity alarm.Quantity
	most     float64
	Threshold
}

const (
	share = 1   // the most that a share can be
	many  = 1e6 // of quantities without a natural bound
)

// alarmDefaults: a minute distinguishes load from a burst. Alarms about what
// balancing corrects use the thresholds of Balance, and leave balancing the
// time to act first.
var alarmDefaults = []watched{
	// Balancing fills nodes to 0.9 itself (MaxNodeCPU): more than that has no room for a burst. A VM may use all
	// of its CPUs, so use alone is never critical: waiting is (NodeWait, GuestWait).
	{alarm.NodeCPU, share, Threshold{Warning: 0.95, Clear: 0.95, For: minutes(1), Quiet: minutes(1)}},
	// A tenth of a thread waiting for each CPU is the threshold of a degraded guest (Balance.Wait).
	{alarm.NodeWait, many, Threshold{Warning: 0.1, Critical: 0.5, Clear: 0.7, For: minutes(1), Quiet: minutes(1)}},
	// The host keeps 2 % of a node for itself (KeepFree); below that, memory goes to other nodes.
	{alarm.NodeMemory, share,
		Threshold{Warning: 0.95, Critical: 0.98, Clear: 0.98, For: minutes(1), Quiet: minutes(1)}},
	// Full pools are the normal use of huge pages; an alarm only means that the
	// next guest gets none here.
	{alarm.NodeHugePages, share, Threshold{Warning: 1, Clear: 1, For: minutes(1), Quiet: minutes(1)}},
	// From 0.8 on latency grows steeply (Balance.Traffic).
	{alarm.NodeTraffic, share, Threshold{Warning: 0.8, Critical: 0.95, Clear: 0.9, For: minutes(1), Quiet: minutes(1)}},
	// Any lasting wait for memory is swapping or reclaim, which a host of guests
	// must avoid.
	{alarm.HostPressure, share,
		Threshold{Warning: 0.1, Critical: 0.4, Clear: 0.7, For: Duration(30 * time.Second), Quiet: minutes(1)}},
	// As Balance.Wait; a third of the time lost is an outage to most guests.
	{alarm.GuestWait, share, Threshold{Warning: 0.1, Critical: 0.3, Clear: 0.7, For: minutes(1), Quiet: minutes(1)}},
	// Balancing acts within a minute; what is still remote after five stays so.
	{alarm.GuestRemote, share, Threshold{Warning: 0.2, Critical: 0.5, Clear: 0.7, For: minutes(5), Quiet: minutes(1)}},
	// A twentieth is what helpers and overflow leave elsewhere; binding again takes a few minutes.
	{alarm.GuestDrift, share, Threshold{Warning: 0.05, Critical: 0.25, Clear: 0.8, For: minutes(5), Quiet: minutes(1)}},
	// The kernel ships with balancing on: that it moves some memory is no fault. At 50 MB/s
	// a CPU copies for 5 % of its time, and VMs take faults for each page; ten times that is felt.
	{alarm.KernelMoves, many, Threshold{Warning: 50, Critical: 500, Clear: 0.5, For: minutes(1), Quiet: minutes(5)}},
	// Facts, of which there is no little: half a minute passes over one that is just being answered.
	{alarm.CompetingMover, many, Threshold{Warning: 1, Clear: 1, For: Duration(30 * time.Second), Quiet: minutes(1)}},
	{alarm.SourceUnreadable, many, Threshold{Warning: 1, Clear: 1, For: Duration(30 * time.Second), Quiet: minutes(1)}},
	// The count is over an hour already. One may be bad luck; three of the same guest are not.
	{alarm.StuckMove, many, Threshold{Warning: 1, Critical: 3, Clear: 1}},
	// A guest boots and starts its agent within two minutes.
	{alarm.GuestAgent, share, Threshold{Warning: 1, Clear: 1, For: minutes(2), Quiet: minutes(1)}},
	// The guest promised that the vCPU was idle: one that runs has a faulty agent or kernel, or a hostile one.
	{alarm.GuestMisbehaves, many, Threshold{Warning: 1, Clear: 1, Quiet: minutes(1)}},
}

func minutes(n int) Duration { return Duration(time.Duration(n) * time.Minute) }

// AlarmDefaults returns the default threshold of every quantity.
func AlarmDefaults() Alarms {
	all := Alarms{}
	for _, d := range alarmDefaults {
		all[d.quantity] = d.Threshold
	}
	return all
}

// WithDefaults returns the thresholds of all quantities, with defaults where a has none.
func (a Alarms) WithDefaults() Alarms {
	all := AlarmDefaults()
	for q, t := range a {
		d := all[q]
		t.Warning = cmp.Or(t.Warning, d.Warning)
		t.Critical = cmp.Or(t.Critical, d.Critical)
		t.Clear = cmp.Or(t.Clear, d.Clear)
		t.For = cmp.Or(t.For, d.For)
		t.Quiet = cmp.Or(t.Quiet, d.Quiet)
		all[q] = t
	}
	return all
}

// most of a time: what is longer would never come.
const mostTime = Duration(24 * time.Hour)

func (a Alarms) check(c *checker) {
	if len(a) == 0 {
		return // the defaults are valid
	}
	whole := a.WithDefaults()
	for _, q := range slices.Sorted(maps.Keys(a)) {
		if words := q.Words(); !slices.Contains(words, string(q)) {
			c.fail(strictyaml.Join("alarms", string(q)), "no quantity", "%s", strings.Join(words, ", "))
		}
	}
	for _, d := range alarmDefaults {
		whole[d.quantity].check(c, "alarms."+string(d.quantity), d.most)
	}
}

func (t Threshold) check(c *checker, field string, most float64) {
	if !(t.Warning > 0 && t.Warning <= most) {
		c.fail(field+".warning", t.Warning, "values above 0, to %v", most)
	} else if t.Critical != 0 && !(t.Critical >= t.Warning && t.Critical <= most) {
		c.fail(field+".critical", t.Critical, "%v (its warning) to %v", t.Warning, most)
	}
	if !(t.Clear > 0 && t.Clear <= 1) {
		c.fail(field+".clear", t.Clear, "shares of the threshold above 0, to 1")
	}
	c.time(field+".for", t.For, mostTime)
	c.time(field+".quiet", t.Quiet, mostTime)
}
