package alarm

import (
	"cmp"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
)

// leastDemand is the CPU demand, in CPUs, below which the rules ignore a guest's
// waits and measured accesses: shares of a tiny amount are noise (as Balance.MinCPUDemand).
const leastDemand = 0.1

// guest returns the readings of a running guest.
func (j *judgement) guest(g *inventory.GuestSample, known Guest) []reading {
	all := []reading{j.guestWait(g), j.guestRemote(g, known), guestDrift(known)}
	failed := j.in.FailedMoves[g.Name]
	all = append(all, reading{quantity: alarm.StuckMove, value: float64(failed), source: "the journal",
		says: inWords("%d of its moves failed within the last hour", failed)})
	all = append(all, j.handOver(g, known)...)
	for i := range all {
		all[i].object = inventory.GuestRef(g.Name)
		all[i].causes = func() []cause { return []cause{{guest: g.Name}} }
	}
	return all
}

func (j *judgement) guestWait(g *inventory.GuestSample) reading {
	l := &g.Load
	r := reading{quantity: alarm.GuestWait, unread: l.Window <= 0,
		source: cmp.Or(j.in.Sample.CPUSource, "its vCPU threads' schedstat")}
	if l.Demand() >= leastDemand {
		r.value = l.Wait / l.Demand()
		r.says = inWords("it wants %.1f CPUs and gets %.1f: %s of the time it waits", l.Demand(), l.CPU,
			percent(r.value))
	}
	return r
}

// guestRemote uses the measured accesses, or else the location of the memory. Where
// accesses are measured, an idle guest may have made none.
func (j *judgement) guestRemote(g *inventory.GuestSample, known Guest) reading {
	r := reading{quantity: alarm.GuestRemote}
	switch m, source := g.Load.Remote, j.measuring(); {
	case g.HandedOver != nil && (m == nil || m.Source == inventory.AccessEstimate):
		r.source = string(inventory.AccessEstimate)
		r.says = inWords("its own kernel places its memory on the nodes that it mirrors; " +
			"that memory is elsewhere says little")
	case m == nil && source != "" && g.Load.Window > 0 && g.Load.Demand() < leastDemand:
		r.source = string(source)
		r.says = inWords("it makes too few accesses to judge")
	case m != nil:
		r.source = string(m.Source)
		if m.Source == inventory.AccessEstimate || g.Load.Demand() >= leastDemand {
			r.value = m.Share
		}
		r.says = inWords("%s of its accesses leave the node", percent(r.value))
	case known.LocalShare != nil:
		r.source = string(inventory.AccessEstimate)
		r.value = 1 - *known.LocalShare
		r.says = inWords("%s of its memory is not local to its vCPUs", percent(r.value))
	default:
		r.unread = true
	}
	return r
}

// measuring returns the best source that measures accesses now; it is empty if no source does.
func (j *judgement) measuring() inventory.AccessSource {
	for _, source := range j.in.Sample.Accesses {
		if source != inventory.AccessEstimate {
			return source
		}
	}
	return ""
}

// guestDrift judges only guests with intended nodes: a guest without them cannot drift.
func guestDrift(known Guest) reading {
	r := reading{quantity: alarm.GuestDrift, source: "its memory by node"}
	switch {
	case known.Nodes.IsEmpty():
	case known.DriftShare == nil:
		r.unread = true
	default:
		r.value = *known.DriftShare
		r.says = inWords("%s of its memory is not on its intended nodes %v", percent(r.value), known.Nodes)
	}
	return r
}

// handOver returns the readings of a guest that hands CPUs over, and of one that has done so.
func (j *judgement) handOver(g *inventory.GuestSample, known Guest) []reading {
	agent := reading{quantity: alarm.GuestAgent, source: "the daemon's hand-over of CPUs"}
	ran := reading{quantity: alarm.GuestMisbehaves, source: agent.source}
	h := g.HandedOver
	if h == nil {
		ref := inventory.GuestRef(g.Name)
		_, a := j.before[key{agent.quantity, ref}]
		_, b := j.before[key{ran.quantity, ref}]
		if !a && !b {
			return nil
		}
		return []reading{agent, ran}
	}
	if runs := known.Name != ""; runs && !h.Answers() { // a paused guest's agent is paused, too
		agent.value = 1
		agent.says = inWords("%s: it keeps the CPUs that it has, until another VM lacks its minimum", h.AgentText())
	}
	if h.Misbehaved > 0 && j.now.Sub(h.MisbehavedAt) < time.Hour {
		ran.value = float64(h.Misbehaved)
		ran.says = inWords(
			"%s after the VM had released it, the last at %s; each was confined to the VM's other CPUs",
			text.Count(h.Misbehaved, "vCPU ran", "vCPUs ran"), h.MisbehavedAt.UTC().Format(time.RFC3339))
	}
	return []reading{agent, ran}
}
