package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	judge "github.com/numavisor/numavisor/internal/decide/alarm"
	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// judge holds thresholds against what was seen, and writes down what changed.
func (s *state) judge() {
	now := time.Now()
	var changes []alarm.Alarm
	s.alarms.State, changes = judge.Judge(s.policy.Alarms, s.facts(), s.alarms.State, now)
	s.alarms.Keep(changes, now)
	for _, a := range changes {
		s.noteAlarm(a)
	}
	if len(changes) > 0 || now.Sub(s.alarms.Written) >= record.AlarmsEvery {
		s.saveAlarms()
	}
}

// facts are what alarms are judged by. That a host has no means to measure
// accesses is no fault of it.
func (s *state) facts() judge.Input {
	sample := s.sample
	sample.Gaps = slices.DeleteFunc(slices.Clone(sample.Gaps), func(g inventory.Gap) bool { return strings.HasPrefix(g.What, inventory.AccessGap) })
	in := judge.Input{Sample: sample, Topology: &s.host.Topology, Rivals: s.rivals, Gaps: slices.Concat(s.host.Gaps, s.damaged), FailedMoves: map[string]int{}}
	if s.blind != "" {
		in.Gaps = append([]inventory.Gap{{Object: "host", What: "its VMs and settings", Why: s.blind}}, in.Gaps...)
	}
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if g.State != "running" {
			continue
		}
		known := judge.Guest{Name: g.Name, PageSize: g.Config.PageSize}
		if len(g.Seen.Threads) > 0 {
			known.LocalShare = drift.LocalShare(*g, &s.host.Topology)
		}
		if g.Placement != nil && !s.onTheMove(g.Name) {
			known.Nodes = g.Placement.Nodes
			if there, _ := drift.OnIntended(*g); there != nil {
				away := 1 - *there
				known.DriftShare = &away
			}
		}
		in.Guests = append(in.Guests, known)
	}
	for name, times := range s.failed {
		in.FailedMoves[name] = len(times)
	}
	return in
}

func (s *state) noteAlarm(a alarm.Alarm) {
	e := journal.Entry{Kind: journal.Raised, Guests: a.Guests, What: string(a.Severity) + ": " + a.Object + ": " + string(a.Quantity), Why: a.Why, By: "thresholds"}
	if !a.Active() {
		e.Kind = journal.Cleared
	}
	s.note(e)
}

func (s *state) saveAlarms() {
	s.alarms.Written = time.Now()
	if err := record.SaveAlarms(s.d.Records, s.alarms); err != nil {
		s.d.Log.Error("alarms cannot be kept", "error", err)
	}
}
