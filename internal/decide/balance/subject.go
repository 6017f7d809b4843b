package balance

import (
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// subject is a guest as balancing sees it.
type subject struct {
	seen    *inventory.Guest
	spec    guest.Spec
	mode    policy.Mode
	blocked plan.Blocked // why it cannot move at all; no kind if it can
	pinned  bool         // its memory cannot move: vfio pins it, or its hypervisor moves none of a running guest

	load      *inventory.GuestLoad // nil: not measured, or figures that cannot be
	demand    float64              // CPUs it asks for, as measured; else its vCPUs
	intensity float64              // how much its speed depends on memory, 0 to 1
	mbps      float64
	stretch   float64 // measured remote share over the one expected from where things lie
	resident  topology.Bytes
	dedicated float64 // CPUs that its vCPUs have alone, idle siblings included
	size      int     // of its pages, an index into model.sizes

	layouts []layout // the first is how it is now
	at      int
	left    topology.NodeSet // nodes it left not long ago
	limited error            // of a layout left out: an inventory.NodeLimitError

	degraded, patient, moved bool
	costAtFirst              float64
}

func (g *subject) name() string    { return g.seen.Name }
func (g *subject) layout() *layout { return &g.layouts[g.at] }
func (g *subject) exclusive() bool { return g.spec.CPU.Binding == guest.CPUExclusive }

// fixedCost is the part of a guest's cost that does not depend on others.
func (g *subject) fixedCost() float64 { return g.costOf(g.layout()) }

func (g *subject) costOf(l *layout) float64 {
	return g.demand * (g.intensity*l.access + l.price)
}

// addGuests adds every guest that takes something of the host. They are in
// the order of their names.
func (m *model) addGuests(r Request) {
	held := map[string][]inventory.Holding{}
	for _, h := range r.Host.Holdings("") {
		held[h.Name] = append(held[h.Name], h)
	}
	claimed := map[string]bool{}
	for _, c := range r.Host.Claims {
		claimed[c.Name] = true
	}
	for i := range r.Host.Guests {
		g := &r.Host.Guests[i]
		if g.State == "shutoff" || g.Config.VCPUs == 0 && g.Placement == nil {
			continue
		}
		s := m.subject(g)
		if i > 0 && r.Host.Guests[i-1].Name == g.Name || i+1 < len(r.Host.Guests) && r.Host.Guests[i+1].Name == g.Name {
			s.blocked = plan.Blocked{Kind: plan.BlockedAmbiguous, Why: "has the name of another guest"}
		}
		s.rest(r, m.policy.Balance)
		if claimed[g.Name] {
			s.blocked = plan.Blocked{Kind: plan.BlockedBusy, Why: "is being created or moved already"}
		}
		now := m.asItIs(&s, held[g.Name])
		s.layouts = append(s.layouts, now)
		m.guests = append(m.guests, s)
		for _, on := range now.on { // what it holds is counted already
			a := &m.asked[on.node]
			a.cpu += s.demand * on.cpu
			a.alone += s.demand * on.alone
			a.mem += s.demand * on.mem
			a.bound += s.demand * s.intensity * on.mem
			a.traffic += s.mbps * on.mem
		}
	}
	for i := range m.guests {
		if !m.guests[i].fixed() {
			m.addLayouts(&m.guests[i])
		}
	}
}

func (m *model) subject(g *inventory.Guest) subject {
	s := subject{seen: g, mode: m.policy.Balance.ModeOf(g.Name, g.Ours()), stretch: 1, intensity: 1}
	s.spec = specOf(g)
	s.size = m.size(s.spec.PageSize)
	s.demand = float64(s.spec.VCPUs)
	if l := g.Seen.Load; l != nil && l.IsValid() {
		s.load, s.mbps = l, l.MemoryMBps
		s.demand = min(l.Demand(), float64(max(s.spec.VCPUs, 1)))
		s.intensity = cost.Intensity(l.MemoryMBps, l.CPU)
	}
	for _, b := range g.Seen.MemoryByNode {
		s.resident += b
	}
	s.pinned = !g.Can.MoveMemory || len(g.Config.Devices) > 0 ||
		slices.ContainsFunc(s.spec.Devices, func(d guest.DeviceSpec) bool { return d.Passthrough })
	switch {
	case s.mode == policy.ModeOff:
		s.blocked = plan.Blocked{Kind: plan.BlockedModeOff, Why: "mode off"}
	case g.State != "running":
		s.blocked = plan.Blocked{Kind: plan.BlockedNotRunning, Why: "is " + g.State}
	case s.size < 0:
		s.blocked = plan.Blocked{Kind: plan.BlockedPageSize,
			Why: fmt.Sprintf("has pages of %v; the host has more page sizes than are told apart", s.spec.PageSize)}
	case s.spec.CPU.Binding == guest.CPUNone || s.spec.Binding.Mode == guest.MemoryNone:
		s.blocked = plan.Blocked{Kind: plan.BlockedUnbound, Why: "asks not to be bound"}
	case s.spec.Topology.Mode == guest.TopologyMirror:
		s.blocked = plan.Blocked{Kind: plan.BlockedMirror, Why: "mirrors the host: it is on all nodes"}
	}
	return s
}

// fixed reports whether the guest cannot move at all.
func (g *subject) fixed() bool { return g.blocked.Kind != "" }

// specOf is what a guest asked for, or would have.
func specOf(g *inventory.Guest) guest.Spec {
	s := adopt.Spec(*g)
	if g.Spec != nil {
		s = *g.Spec
	}
	s.Name = g.Name
	return normal(s)
}

// rest keeps a guest where it is that moved not long ago, and notes where it
// shall not return to.
func (g *subject) rest(r Request, b policy.Balance) {
	recent, last := 0, time.Time{}
	for _, past := range r.Past.Moves {
		if past.Guest != g.name() || r.Now.Sub(past.At) >= time.Duration(b.NoReturn) {
			continue
		}
		recent++
		g.left = g.left.Union(past.From.Minus(past.To))
		if past.At.After(last) {
			last = past.At
		}
	}
	if recent == 0 || g.fixed() {
		return
	}
	cooldown := time.Duration(b.Cooldown) << min(recent-1, 16)
	if until := last.Add(cooldown); r.Now.Before(until) {
		g.blocked = plan.Blocked{Kind: plan.BlockedCooldown, Until: until.UTC(),
			Why: fmt.Sprintf("in cooldown until %s: %d moves within %v", until.UTC().Format(time.RFC3339), recent,
				b.NoReturn)}
	}
}
