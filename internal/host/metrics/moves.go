package metrics

import (
	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/status"
)

// moves sends completed, current and recommended moves.
func (e *exposition) moves(s *status.Status) {
	e.send(moves, float64(s.Totals.MovesDone), "done")
	e.send(moves, float64(s.Totals.MovesPart), "partial")
	e.send(moves, float64(s.Totals.MovesFailed), "failed")
	e.send(moves, float64(s.Totals.MovesCancelled), "cancelled")
	e.send(movedBytes, float64(s.Totals.MovedBytes))
	e.send(pulledBytes, float64(s.Totals.PulledBytes))
	e.send(repairs, float64(s.Totals.Repairs))
	var done, total float64
	for _, m := range s.Moving {
		share := 1.0
		if m.Total > 0 {
			share = float64(min(m.Done, m.Total)) / float64(m.Total)
		}
		for _, g := range m.Move.Guests {
			e.send(guestMoving, share, g.Guest, string(m.Move.Kind))
			e.send(guestMovePace, float64(m.BytesPerSecond), g.Guest, string(m.Move.Kind))
		}
		done += float64(min(m.Done, m.Total))
		total += float64(m.Total)
	}
	e.send(moving, float64(len(s.Moving)))
	e.send(movingDone, done)
	e.send(movingAll, total)
	var saving float64
	for _, a := range s.Advice {
		saving += a.Move.Benefit.AccessCPUs + a.Move.Benefit.WaitCPUs
	}
	e.send(advised, float64(len(s.Advice)))
	e.send(advisedSaving, saving)
}

// alarms sends the active alarms.
func (e *exposition) alarms(s *status.Status) {
	count := map[alarm.Severity]int{}
	for _, a := range s.Alarms {
		if !a.Active() {
			continue
		}
		count[a.Severity]++
		e.send(anAlarm, 1, string(a.Quantity), a.Object.String(), string(a.Severity))
		e.send(alarmSaw, a.Value, string(a.Quantity), a.Object.String(), string(a.Severity))
	}
	for _, severity := range []alarm.Severity{alarm.Warning, alarm.Critical} {
		e.send(alarms, float64(count[severity]), string(severity))
	}
}

// daemon sends the daemon's own work and cost.
func (e *exposition) daemon(s *status.Status) {
	e.sendTime(started, s.Started)
	e.send(cpuSeconds, s.Self.CPU.Seconds())
	e.send(residentB, float64(s.Self.Resident))
	e.send(samples, float64(s.Totals.Samples))
	e.sendTime(sampleAt, s.Sample.Taken)
	e.send(sampleCPU, s.Self.Sample.Seconds())
	e.send(plans, float64(s.Totals.Plans))
	e.sendTime(planAt, s.Planned)
	e.send(planCPU, s.Self.Plan.Seconds())
}
