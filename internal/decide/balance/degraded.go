package balance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
)

// markDegraded marks the degraded guests and lists them, and those that wait a little.
// A guest that was degraded at the last plan remains so until its figures are below
// Clear times the threshold, so that a figure that fluctuates around the threshold does
// not restart the time for which the guest has been degraded.
func (m *model) markDegraded(r Request) (degraded, waiting []plan.Degraded) {
	since, waited := times(r.Past.Degraded), times(r.Past.Waiting)
	for i := range m.guests {
		g := &m.guests[i]
		g.initialCost = m.ownCost(g)
		if g.demand < m.policy.Balance.MinCPUDemand || r.Past.Unmeasured[g.name()] {
			continue
		}
		at, known := since[g.name()]
		threshold := 1.0
		if known {
			threshold = m.policy.Balance.Clear
		} else {
			at = r.Now.Add(-r.Past.Worked[g.name()])
		}
		if !m.isDegraded(g, threshold) {
			if !known {
				at = waited[g.name()]
			}
			waiting = m.markWaiting(g, at, r, waiting)
			continue
		}
		s := m.degradation(g, threshold)
		s.Since = at
		g.degraded, g.since = true, r.Now.Sub(at)
		g.eligible = r.Lasting || r.Now.Sub(at) >= time.Duration(m.policy.Balance.DegradedFor) && !m.spansMove(g, r)
		degraded = append(degraded, s)
	}
	return degraded, waiting
}

func times(of []plan.Degraded) map[string]time.Time {
	since := map[string]time.Time{}
	for _, s := range of {
		since[s.Guest] = s.Since
	}
	return since
}

// A guest that waits less than a degraded one moves as well if its wait is at least
// mildShare of the threshold and lasts mildFor times DegradedFor; with the defaults
// 5 % and 5 minutes. A node at 90 % makes its guests wait 4 %.
const (
	mildShare = 0.5
	mildFor   = 30
)

// markWaiting marks a guest that waits a little and adds it to the list. since is zero
// if it did not at the last plan. Only a measured wait counts.
func (m *model) markWaiting(g *subject, since time.Time, r Request, list []plan.Degraded) []plan.Degraded {
	part := mildShare
	if since.IsZero() {
		since = r.Now
	} else {
		part *= m.policy.Balance.Clear
	}
	wait := m.waits(g)
	if g.load == nil || wait < part*m.policy.Balance.Wait {
		return list
	}
	g.mild, g.since = true, r.Now.Sub(since)
	lasts := mildFor * time.Duration(m.policy.Balance.DegradedFor)
	g.eligible = r.Lasting || r.Now.Sub(since) >= lasts && !m.spansMove(g, r)
	return append(list, plan.Degraded{
		Guest: g.name(), Since: since, Wait: wait, Reasons: []plan.DegradedReason{plan.CPUWait},
	})
}

// counts reports whether a guest that was marked still has a reason to move. One that waits only a little has none
// once an earlier move of the plan has helped it: how much it waits then should be measured first.
func (m *model) counts(g *subject) bool {
	if g.mild {
		b, waits := &m.policy.Balance, m.waits(g)
		return waits >= mildShare*b.Clear*b.Wait && waits > (1-b.MinGain)*ratio(g.load.Wait, g.load.Demand())
	}
	return m.isDegraded(g, m.policy.Balance.Clear)
}

// spansMove reports whether the figures of a guest are means over a time in which
// another one came to its nodes or left them. They describe neither state.
func (m *model) spansMove(g *subject, r Request) bool {
	nodes := m.nodeSet(g.layout())
	return g.load != nil && slices.ContainsFunc(r.Past.Moves, func(past Moved) bool {
		return r.Now.Sub(past.At) < g.load.Window && past.From.Union(past.To).Intersects(nodes)
	})
}

// degradation compares a guest's figures with the thresholds times part, and
// explains those that reach them. Why is empty if the guest is not degraded.
func (m *model) degradation(g *subject, part float64) plan.Degraded {
	s := plan.Degraded{Guest: g.name()}
	s.Wait, s.Access, s.Use = m.pressure(g)
	b := m.policy.Balance
	var why []string
	if s.Wait >= part*b.Wait {
		s.Reasons = append(s.Reasons, plan.CPUWait)
		why = append(why, fmt.Sprintf("its vCPUs wait for CPUs %.0f %% of the time they are runnable%s", 100*s.Wait,
			g.label()))
	}
	if s.Access >= part*b.Access {
		s.Reasons = append(s.Reasons, plan.RemoteAccess)
		why = append(why,
			fmt.Sprintf("its memory accesses take %.2f times the best latency (%s)", 1+g.layout().excessLatency,
				g.source()))
	}
	if s.Use >= part*b.Traffic {
		s.Reasons = append(s.Reasons, plan.MemoryBandwidth)
		why = append(why, fmt.Sprintf("the memory bandwidth of its nodes is %.0f %% used", 100*s.Use))
	}
	s.Why = strings.Join(why, "; ")
	return s
}

// isDegraded reports whether degradation would find a reason; it builds no text.
func (m *model) isDegraded(g *subject, part float64) bool {
	wait, access, use := m.pressure(g)
	b := m.policy.Balance
	return wait >= part*b.Wait || access >= part*b.Access || use >= part*b.Traffic
}

// pressure returns the three figures that decide whether a guest is degraded:
//
//   - wait: the share of its CPU demand that it waits for, 0 to 1: as measured, or
//     predicted from that if moves of the plan have changed its nodes or their use.
//     Without a measurement it is predicted from the use of the nodes' CPUs.
//   - access: how far its mean access latency is above the lowest that any of
//     its layouts gives, as a ratio to the host's best latency, times intensity.
//     Latency that no layout avoids does not count.
//   - use: the share of memory bandwidth in use on the nodes of its memory,
//     0 to 1, and 0 for a guest with an intensity of up to 0.5.
func (m *model) pressure(g *subject) (wait, access, use float64) {
	wait = m.waits(g)
	least := g.layout().excessLatency // a move cannot go below this
	for i := range g.layouts {
		least = min(least, g.layouts[i].excessLatency)
	}
	for _, on := range g.layout().on {
		if g.intensity > 0.5 {
			use += on.mem * m.busy(on.node)
		}
	}
	return wait, g.intensity * (g.layout().excessLatency - least), use
}

func (g *subject) label() string {
	if g.load != nil {
		return ""
	}
	return " (estimated from vCPU counts, not measured)"
}

// source gives the share of remote accesses and how it was obtained.
func (g *subject) source() string {
	if l := g.load; l != nil && l.Remote != nil {
		return fmt.Sprintf("%.0f %% remote, %s", 100*l.Remote.Share, l.Remote.Source)
	}
	return fmt.Sprintf("%.0f %% remote, placement estimate", 100*remote(g.layout()))
}

func (m *model) anyEligible() bool {
	for i := range m.guests {
		if m.guests[i].eligible {
			return true
		}
	}
	return false
}
