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

// measuredWait is how the measured wait of a guest is explained, in shares of its demand.
type measuredWait struct {
	explained float64 // what the CPU use of its nodes predicts
	unseen    float64 // the part of explained that was not measured
	bursts    float64 // what was measured beyond explained
	others    float64 // the part of bursts that does not depend on the use of its nodes
}

// subject is a guest with the figures that the planner needs.
type subject struct {
	seen    *inventory.Guest
	spec    guest.Spec
	mode    policy.Mode
	blocked plan.Blocked // why it cannot move at all; no kind if it can
	pinned  bool         // its memory cannot move: vfio pins it, or its hypervisor moves none of a running guest

	load        *inventory.GuestLoad // nil: not measured, or invalid figures
	demand      float64              // CPUs: used plus waited for, if measured; else the number of vCPUs
	intensity   float64              // how much its speed depends on memory, 0 to 1 (cost.Intensity)
	mbps        float64              // memory traffic in MB a second
	remoteScale float64              // measured share of remote accesses over the share that the layout predicts
	resident    topology.Bytes
	measuredWait
	limits    topology.CPUSet // CPUs that its limits and its CPU pool allow; empty: all
	dedicated float64         // CPUs dedicated to its vCPUs, idle SMT siblings included
	size      int             // page size, as an index into model.sizes
	devices   []int           // positions of the nodes of its devices

	layouts     []layout         // layouts[0] is the current one of the host
	at          int              // index of the layout in the model's state
	leftNodes   topology.NodeSet // nodes that it left within policy.Balance.NoReturn
	recentMoves int              // moves that Remembered covers
	everLeft    topology.NodeSet // nodes that these moves left
	limited     error            // the inventory.NodeLimitError of an excluded layout

	degraded, eligible, moved bool
	mild                      bool          // it waits less than degraded guests
	since                     time.Duration // for how long it has been degraded, or has waited a little
	waiting                   bool          // a move of it is proposed for a later plan
	initialCost               float64
}

func (g *subject) name() string    { return g.seen.Name }
func (g *subject) layout() *layout { return &g.layouts[g.at] }
func (g *subject) exclusive() bool { return g.spec.CPU.Binding == guest.CPUExclusive }

// fixedCost is the part of a guest's cost that does not depend on other
// guests: see costOf.
func (g *subject) fixedCost() float64 { return g.costOf(g.layout()) }

// costOf returns the cost of a layout, in units of the price list times CPUs:
//
//	demand intensity access + price
//
// demand is in CPUs; intensity (0 to 1) scales the access cost because a guest
// that rarely misses its caches loses little to slow memory; price is the
// one-time price of getting there.
func (g *subject) costOf(l *layout) float64 {
	return g.demand*g.intensity*l.access + l.price
}

// addGuests adds every guest that uses resources of the host, in the order of
// their names.
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
			s.blocked = plan.Blocked{Kind: plan.BlockedAmbiguous, Why: "another VM has the same name"}
		}
		s.applyCooldown(r, m.policy.Balance)
		if claimed[g.Name] {
			s.blocked = plan.Blocked{Kind: plan.BlockedBusy, Why: "is already being created or moved"}
		}
		now := m.currentLayout(&s, held[g.Name])
		s.layouts = append(s.layouts, now)
		m.guests = append(m.guests, s)
		for _, on := range now.on { // capacity.Available has counted its promises already
			a := &m.usage[on.node]
			a.cpu += s.demand * on.cpu
			a.alone += s.demand * on.alone
			a.runnable += s.vcpusOn(&on)
			a.roaming.cpu += s.demand * on.roaming
			if on.cpu > 0 {
				a.roaming.runnable += s.vcpusOn(&on) * on.roaming / on.cpu
			}
			if on.confined {
				a.confined++
			}
			m.addConfined(&s, &on, 1)
			a.bound += s.demand * s.intensity * on.mem
			a.traffic += s.mbps * on.mem
			a.resident += on.mem * float64(s.resident)
		}
	}
	for i := range r.Host.Claims {
		m.addCreated(&r.Host.Claims[i])
	}
	for i := range m.guests {
		if !m.guests[i].fixed() {
			m.addLayouts(&m.guests[i])
		}
	}
}

// addCreated adds the vCPUs of a guest that is being created: no demand of it is known
// yet. What a claimed process uses is in the load of the nodes.
func (m *model) addCreated(c *inventory.Claim) {
	runs := func(g subject) bool { return g.name() == c.Name }
	if c.PID != 0 || c.Placement.CPUMode == guest.CPUExclusive || slices.ContainsFunc(m.guests, runs) {
		return
	}
	for _, r := range c.Placement.Reservations {
		if i := m.position(r.Node); i >= 0 {
			m.usage[i].runnable += float64(r.VCPUs)
		}
	}
}

// vcpusOn returns how many vCPUs of a guest run on the shared CPUs of a part of a layout. A vCPU
// that may run on several nodes counts on each in proportion, as its demand does.
func (g *subject) vcpusOn(s *share) float64 { return float64(g.spec.VCPUs) * (s.cpu - s.alone) }

func (m *model) subject(g *inventory.Guest) subject {
	s := subject{seen: g, mode: m.policy.Balance.ModeOf(g.Name, g.Ours()), remoteScale: 1, intensity: 1}
	s.spec = specOf(g)
	if limits, err := m.host.WithinPool(s.spec.Limits); err == nil {
		s.limits = limits.CPUs
	}
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
	s.devices = m.deviceNodes(&s.spec)
	s.pinned = MemoryPinned(g)
	if s.blocked = Immovable(g, m.policy); s.blocked.Kind == "" && s.size < 0 {
		s.blocked = plan.Blocked{Kind: plan.BlockedPageSize,
			Why: fmt.Sprintf("uses pages of %v, and the planner supports only %d page sizes for each host",
				s.spec.PageSize, maxSizes)}
	}
	return s
}

// deviceNodes returns the positions of the nodes of a guest's devices. A device whose node the firmware does not name
// is equally near to all.
func (m *model) deviceNodes(s *guest.Spec) (nodes []int) {
	for _, d := range s.Devices {
		for i := range m.host.Topology.Devices {
			if at := &m.host.Topology.Devices[i]; at.Address == d.Address {
				if node := m.position(at.Node); node >= 0 {
					nodes = append(nodes, node)
				}
			}
		}
	}
	return nodes
}

// fixed reports whether the guest cannot move at all.
func (g *subject) fixed() bool { return g.blocked.Kind != "" }

// specOf returns the guest's spec, or for an unmanaged guest the spec derived
// from its configuration.
func specOf(g *inventory.Guest) guest.Spec {
	s := adopt.Spec(*g)
	if g.Spec != nil {
		s = adopt.Fixed(*g.Spec, g.Placement)
	}
	s.Name = g.Name
	return normal(s)
}

// applyCooldown blocks a guest that moved recently, and records the nodes that it must not return to yet.
func (g *subject) applyCooldown(r Request, b policy.Balance) {
	for _, past := range r.Past.Moves {
		if past.Guest != g.name() || !past.counts(r.Now, b) {
			continue
		}
		g.recentMoves++
		g.everLeft = g.everLeft.Union(past.From.Minus(past.To))
		if r.Now.Sub(past.At) < time.Duration(b.NoReturn) {
			g.leftNodes = g.leftNodes.Union(past.From.Minus(past.To))
		}
	}
	measured := 0.0
	if g.load != nil {
		measured = g.demand
	}
	if until := r.Past.Cooldown(g.name(), measured, r.Now, b); !g.fixed() && !until.IsZero() {
		g.blocked = plan.Blocked{Kind: plan.BlockedCooldown, Until: until.UTC(),
			Why: fmt.Sprintf("in cooldown until %s (moves within the last %v: %d)",
				until.UTC().Format(time.RFC3339), Remembered(b), g.recentMoves)}
	}
}
