package top

import (
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// trendSpan is the time span of sparklines. At one status a second that is 300
// moments.
const trendSpan = 5 * time.Minute

// trendTitle heads the column of sparklines.
const trendTitle = "CPU, 5 MIN"

// moment are the values of one status for the sparklines. It never changes, so
// models may share it.
type moment struct {
	at      time.Time
	selfCPU time.Duration // of the daemon, since it started
	started time.Time
	guests  map[string]guestMoment
	nodes   map[topology.NodeID]nodeMoment
}

type guestMoment struct{ demand, wait, remote float64 } // remote: NaN if not measured
type nodeMoment struct{ cpu, wait, used float64 }

func momentOf(s *status.Status) moment {
	m := moment{at: s.Sample.Taken, selfCPU: s.Self.CPU, started: s.Started,
		guests: make(map[string]guestMoment,
			len(s.Sample.Guests)), nodes: make(map[topology.NodeID]nodeMoment, len(s.Sample.Nodes))}
	for i := range s.Sample.Guests {
		g := &s.Sample.Guests[i]
		remote := math.NaN()
		if g.Load.Remote != nil {
			remote = g.Load.Remote.Share
		}
		m.guests[g.Name] = guestMoment{g.Load.Demand(), waitShare(&g.Load), remote}
	}
	for _, n := range s.Sample.Nodes {
		m.nodes[n.Node] = nodeMoment{n.CPU, n.Wait, used(n)}
	}
	return m
}

// remember adds a status to the earlier moments and drops those that are too
// old. A sample that it has already adds nothing; if the clock was set back,
// the trend restarts.
func remember(seen []moment, s *status.Status) []moment {
	if n := len(seen); n > 0 && !s.Sample.Taken.After(seen[n-1].at) {
		if s.Sample.Taken.Equal(seen[n-1].at) {
			return seen
		}
		seen = nil
	}
	oldest := s.Sample.Taken.Add(-trendSpan)
	first := max(0, slices.IndexFunc(seen, func(m moment) bool { return !m.at.Before(oldest) }))
	if len(seen) > 0 && seen[len(seen)-1].at.Before(oldest) {
		first = len(seen)
	}
	return append(slices.Clone(seen[first:]), momentOf(s))
}

// trend returns the means of a value over trendSpan in a number of parts, the
// latest last; NaN for a part without a value.
func trend(seen []moment, width int, value func(moment) (float64, bool)) []float64 {
	means := make([]float64, max(width, 0))
	counts := make([]float64, len(means))
	if len(seen) == 0 || len(means) == 0 {
		return means
	}
	latest := seen[len(seen)-1].at
	for _, m := range seen {
		v, ok := value(m)
		if !ok || math.IsNaN(v) {
			continue
		}
		back := int(latest.Sub(m.at) * time.Duration(width) / (trendSpan + 1))
		at := max(0, width-1-back)
		means[at] += v
		counts[at]++
	}
	for i := range means {
		if counts[i] == 0 {
			means[i] = math.NaN()
			continue
		}
		means[i] /= counts[i]
	}
	return means
}

// guestTrend is trend for one guest.
func guestTrend(seen []moment, name string, width int, value func(guestMoment) float64) []float64 {
	return trend(seen, width, func(m moment) (float64, bool) {
		g, ok := m.guests[name]
		if !ok {
			return 0, false
		}
		return value(g), true
	})
}

// nodeTrend is trend for one node.
func nodeTrend(seen []moment, id topology.NodeID, width int, value func(nodeMoment) float64) []float64 {
	return trend(seen, width, func(m moment) (float64, bool) {
		n, ok := m.nodes[id]
		if !ok {
			return 0, false
		}
		return value(n), true
	})
}

// settled is the time after its start from which a daemon's mean CPU use says
// what it takes: the start itself takes some 50 ms.
const settled = 10 * time.Second

// selfShare is the share of one CPU that the daemon uses: over the recorded
// moments, or since its start if there is only one. It is unknown if the daemon
// has just started.
func selfShare(s *status.Status, seen []moment) (share float64, known bool) {
	since, cpu := s.Sample.Taken.Sub(s.Started), s.Self.CPU
	if len(seen) > 1 && seen[0].started.Equal(s.Started) {
		since, cpu = seen[len(seen)-1].at.Sub(seen[0].at), seen[len(seen)-1].selfCPU-seen[0].selfCPU
	}
	if since <= 0 || s.Sample.Taken.Sub(s.Started) < settled {
		return 0, false
	}
	return cpu.Seconds() / since.Seconds(), true
}

// waitShare is the share of a guest's CPU demand that it waits for.
func waitShare(l *inventory.GuestLoad) float64 {
	if l.Demand() <= 0 {
		return 0
	}
	return l.Wait / l.Demand()
}

// used is the used share of a node's memory.
func used(n inventory.NodeSample) float64 {
	if n.Memory == 0 || n.Free > n.Memory {
		return 0
	}
	return float64(n.Memory-n.Free) / float64(n.Memory)
}
