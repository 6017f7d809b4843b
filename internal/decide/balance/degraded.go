package balance

import (
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
)

// markDegraded marks the guests that have a reason to move and lists them. What
// was degraded before remains so until it is well below the threshold, so that
// figures about the threshold do not begin it anew all the time.
func (m *model) markDegraded(r Request) []plan.Degraded {
	since := map[string]time.Time{}
	for _, s := range r.Past.Degraded {
		since[s.Guest] = s.Since
	}
	var out []plan.Degraded
	for i := range m.guests {
		g := &m.guests[i]
		g.costAtFirst = m.own(g)
		if g.demand < m.policy.Balance.MinCPUDemand {
			continue
		}
		at, known := since[g.name()]
		threshold := 1.0
		if known {
			threshold = m.policy.Balance.Clear
		} else {
			at = r.Now
		}
		if !m.isDegraded(g, threshold) {
			continue
		}
		s := m.degradation(g, threshold)
		s.Since = at
		g.degraded = true
		g.patient = r.Lasting || r.Now.Sub(at) >= time.Duration(m.policy.Balance.DegradedFor)
		out = append(out, s)
	}
	return out
}

// degradation measures a guest against the thresholds, lowered to a part of
// them. Why is empty where it is not degraded.
func (m *model) degradation(g *subject, part float64) plan.Degraded {
	s := plan.Degraded{Guest: g.name()}
	s.Wait, s.Access, s.Use = m.pains(g)
	b := m.policy.Balance
	var why []string
	if s.Wait >= part*b.Wait {
		s.Reasons = append(s.Reasons, plan.CPUWait)
		why = append(why, fmt.Sprintf("waits for CPUs %.0f %% of the time it wants%s", 100*s.Wait, g.label()))
	}
	if s.Access >= part*b.Access {
		s.Reasons = append(s.Reasons, plan.RemoteAccess)
		why = append(why,
			fmt.Sprintf("its accesses take %.2f times the best latency (%s)", 1+g.layout().far, g.source()))
	}
	if s.Use >= part*b.Traffic {
		s.Reasons = append(s.Reasons, plan.MemoryBandwidth)
		why = append(why, fmt.Sprintf("its memory's bandwidth is in use by %.0f %%", 100*s.Use))
	}
	s.Why = strings.Join(why, "; ")
	return s
}

// isDegraded is degradation without the words.
func (m *model) isDegraded(g *subject, part float64) bool {
	wait, access, use := m.pains(g)
	b := m.policy.Balance
	return wait >= part*b.Wait || access >= part*b.Access || use >= part*b.Traffic
}

// pains are the share of CPU time that a guest wants and does not get, the
// latency of its accesses above what some place on this host would give, and
// how busy its memory is where it depends on that.
func (m *model) pains(g *subject) (wait, access, use float64) {
	if g.load != nil && !g.moved {
		wait = ratio(g.load.Wait, g.load.Demand())
	}
	least := g.layout().far // what no place on this host would spare it is no reason to move
	for i := range g.layouts {
		least = min(least, g.layouts[i].far)
	}
	for _, on := range g.layout().on {
		if load := m.use(on.node); load > 1 && g.load == nil {
			wait += (on.cpu - on.alone) * (1 - 1/load)
		}
		if g.intensity > 0.5 {
			use += on.mem * m.busy(on.node)
		}
	}
	return wait, g.intensity * (g.layout().far - least), use
}

func (g *subject) label() string {
	if g.load != nil {
		return ""
	}
	return " (by vCPUs placed: not measured)"
}

// source says where the figure about a guest's accesses is from.
func (g *subject) source() string {
	if l := g.load; l != nil && l.Remote != nil {
		return fmt.Sprintf("%.0f %% leave the node, %s", 100*l.Remote.Share, l.Remote.Source)
	}
	return fmt.Sprintf("%.0f %% leave the node, placement estimate", 100*remote(g.layout()))
}

func (m *model) anyPatient() bool {
	for i := range m.guests {
		if m.guests[i].patient {
			return true
		}
	}
	return false
}
