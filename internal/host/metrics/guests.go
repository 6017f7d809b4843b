package metrics

import (
	"cmp"
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// guests sends the facts of each guest, and the measurements of running ones.
func (e *exposition) guests(s *status.Status) {
	degraded, stays, waits := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, x := range s.Degraded {
		degraded[x.Guest] = true
	}
	for _, x := range s.Blocked {
		stays[x.Guest] = true
	}
	for _, a := range s.Advice {
		for _, g := range a.Move.Guests {
			waits[g.Guest] = true
		}
	}
	for _, g := range s.Guests {
		e.send(guestInfo, 1, g.Name, g.State, fmt.Sprint(g.Managed), string(g.Mode))
		e.send(guestVCPUs, float64(g.VCPUs), g.Name)
		e.send(guestSize, float64(g.Memory), g.Name)
		e.send(guestDrift, float64(len(g.Drift)), g.Name)
		e.send(guestDegraded, oneIf(degraded[g.Name]), g.Name)
		e.send(guestBlocked, oneIf(stays[g.Name]), g.Name)
		e.send(guestInCooldown, oneIf(!g.CooldownUntil.IsZero()), g.Name)
		e.send(guestAdvised, oneIf(waits[g.Name]), g.Name)
		if g.LocalShare != nil {
			e.send(guestLocal, *g.LocalShare, g.Name)
		}
	}
	for i := range s.Sample.Guests {
		e.measured(&s.Topology, &s.Sample.Guests[i])
		e.handedOver(&s.Sample.Guests[i])
		e.scaled(&s.Sample.Guests[i])
	}
}

// handedOver sends what a mirrored guest has of the CPUs that guests hand to each other.
func (e *exposition) handedOver(g *inventory.GuestSample) {
	h := g.HandedOver
	if h == nil {
		return
	}
	e.send(guestGranted, float64(h.CPUs.Len()), g.Name)
	e.send(guestMinimum, float64(h.Min), g.Name)
	e.send(guestWeight, float64(h.Weight), g.Name)
	e.send(guestUngranted, g.Load.Ungranted, g.Name)
	if h.Demand != nil {
		e.send(guestDemanded, *h.Demand, g.Name)
	}
	e.send(guestAgentUp, oneIf(h.Answers()), g.Name, cmp.Or(h.Means, "unknown"))
	e.send(guestTaken, float64(h.Taken), g.Name)
	e.sendTimes(guestRelease, &h.Times, g.Name)
	e.send(guestRefused, float64(h.Refused), g.Name)
	e.send(guestMisbehaved, float64(h.Misbehaved), g.Name)
}

// scaled sends which vCPUs a guest uses whose number of vCPUs follows its demand.
func (e *exposition) scaled(g *inventory.GuestSample) {
	s := g.Scaled
	if s == nil {
		return
	}
	if !s.Used.IsEmpty() {
		e.send(guestVCPUsUsed, float64(s.Used.Len()), g.Name)
	}
	if s.Demand != nil {
		e.send(guestVCPUsDemanded, *s.Demand, g.Name)
	}
	e.send(guestWeight, float64(s.Weight), g.Name)
	e.send(guestAgentUp, oneIf(s.Answers()), g.Name, cmp.Or(s.Means, "unknown"))
}

// measured sends the last sample of a guest.
func (e *exposition) measured(t *topology.Topology, g *inventory.GuestSample) {
	e.send(guestUsed, g.Load.CPU, g.Name)
	e.send(guestWaited, g.Load.Wait, g.Name)
	e.send(guestThrottled, g.Load.Throttled, g.Name)
	for node, bytes := range g.MemoryByNode {
		if bytes > 0 {
			e.send(guestMemory, float64(bytes), g.Name, nodeLabel(node))
		}
	}
	if r := g.Load.Remote; r != nil {
		e.send(guestRemote, r.Share, g.Name, string(r.Source))
	}
	if g.Load.MemoryMBps > 0 {
		e.send(guestTraffic, g.Load.MemoryMBps*bytesPerMB, g.Name)
	}
	if len(g.Accesses) == 0 {
		return
	}
	// By class and not by pair of nodes: three series, not N times N.
	shares := map[topology.Class]float64{}
	for _, a := range g.Accesses {
		class := topology.Remote
		if n, ok := t.Node(a.From); ok && n.Classes[a.To] != "" {
			class = n.Classes[a.To]
		}
		shares[class] += a.Share
	}
	for _, class := range []topology.Class{topology.Local, topology.Neighbour, topology.Remote} {
		e.send(guestAccess, shares[class], g.Name, string(class))
	}
}
