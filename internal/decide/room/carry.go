package room

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// carried is a set of moves in a legal order, and the place of the new guest.
type carried struct {
	moves     []plan.GuestMove
	placement guest.Placement
	why       place.Why
}

// choice is one move of a set.
type choice struct {
	candidate *candidate
	option    *option
}

// choices lists the moves of a set, those of the first candidate first.
func (s *search) choices(of *set) (all []choice) {
	for ; of.before != nil; of = of.before {
		c := &s.all[of.candidate]
		all = append(all, choice{c, &c.options[of.option]})
	}
	slices.Reverse(all)
	return all
}

// carryOut finds an order in which moves are legal with the room of the
// new guest reserved; nil if there is none, or the new guest does not fit after them.
func (s *search) carryOut(choices []choice) *carried {
	_, last, ok := s.inOrder(*s.host, choices, nil, nil)
	if !ok {
		return nil
	}
	s.try()
	placed, why, err := place.Place(place.Request{Host: &last, Spec: s.spec, Policy: s.policy, WithoutAdvice: true})
	if err != nil {
		return nil
	}
	reserved := *s.host
	reserved.Claims = append(slices.Clone(reserved.Claims), inventory.Claim{Name: s.spec.Name, Placement: placed})
	moves, last, ok := s.inOrder(reserved, choices, nil, &placed)
	if !ok {
		return nil
	}
	return &carried{moves: moves, placement: placed, why: why}
}

// inOrder makes the moves in the first order in which each is legal, after those that
// are done. After the last one, the placement of the new guest must be legal too, if
// it is given.
func (s *search) inOrder(
	host inventory.Host, choices []choice, done []plan.GuestMove, placed *guest.Placement,
) ([]plan.GuestMove, inventory.Host, bool) {
	if len(choices) == 0 {
		legal := placed == nil || len(check.Placement(&host, s.policy, s.spec, *placed)) == 0
		return done, host, legal
	}
	for i, c := range choices {
		if s.exhausted() {
			s.partial = true
			return nil, host, false
		}
		move, next, ok := s.move(&host, c)
		if !ok {
			continue
		}
		rest := slices.Concat(choices[:i], choices[i+1:])
		if moves, last, ok := s.inOrder(next, rest, append(slices.Clip(done), move), placed); ok {
			return moves, last, true
		}
	}
	return nil, host, false
}

// move makes one move on a host, if all rules permit it.
func (s *search) move(host *inventory.Host, c choice) (plan.GuestMove, inventory.Host, bool) {
	s.try()
	g, _ := host.Guest(c.candidate.guest.Name)
	request := place.Request{Host: host, Spec: c.candidate.spec, Policy: s.policy, Ignore: g.Name}
	placed, err := place.On(request, c.option.homes)
	if err != nil {
		return plan.GuestMove{}, *host, false
	}
	placed = adopt.Align(placed, g.Config)
	m := plan.GuestMove{Guest: g.Name, Placement: placed, Bytes: copied(g, &placed), Undo: plan.Undo{
		Placement: g.Placement, VCPUNodes: g.VCPUNodes(&host.Topology), Memory: g.Seen.MemoryByNode}}
	if balance.Legal(host, s.policy, []plan.GuestMove{m}) != nil {
		return m, *host, false
	}
	next := after(host, m)
	return m, next, s.bearable(&next, c)
}

// bearable reports whether no target of a move becomes busier than the policy allows,
// and than the busiest of the nodes that the guest leaves was.
func (s *search) bearable(next *inventory.Host, c choice) bool {
	if !s.measured {
		return true
	}
	limit := s.policy.Balance.MaxNodeCPU
	for _, n := range c.candidate.sources {
		limit = max(limit, s.use[n])
	}
	now := uses(capacity.Available(next, s.policy, ""))
	for i := range c.option.takes {
		if n := c.option.takes[i].node; now[n] > max(limit, s.use[n])+slack {
			return false
		}
	}
	return true
}

// uses returns for each node the demand for its shared CPUs over their number.
func uses(nodes []capacity.Node) []float64 {
	all := make([]float64, len(nodes))
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Demand <= slack:
		case n.Shared.IsEmpty():
			all[i] = math.Inf(1)
		default:
			all[i] = n.Demand / float64(n.Shared.Len())
		}
	}
	return all
}

// after returns the host after a move. The measured load of its nodes follows the guest.
func after(host *inventory.Host, m plan.GuestMove) inventory.Host {
	next := balance.After(host, []plan.GuestMove{m})
	g, _ := host.Guest(m.Guest)
	l := g.Seen.Load
	if l == nil || !l.IsValid() || len(host.Load) == 0 {
		return next
	}
	was, is := runs(host, m.Guest), runs(&next, m.Guest)
	next.Load = slices.Clone(host.Load)
	for i := range next.Load {
		at := &next.Load[i]
		before, after := was[at.Node]*l.Demand(), is[at.Node]*l.Demand()
		taken := min(at.CPU, before)
		at.CPU -= taken
		at.Wait = max(0, at.Wait-(before-taken))
		at.CPU += after
	}
	return next
}

// runs returns the share of a guest's vCPUs on each node.
func runs(h *inventory.Host, name string) map[topology.NodeID]float64 {
	all, sum := map[topology.NodeID]float64{}, 0.0
	for _, held := range h.Holdings("") {
		if held.Name == name {
			run := held.VCPUs + float64(held.Exclusive.Len())
			all[held.Node] += run
			sum += run
		}
	}
	for n := range all {
		if sum > 0 {
			all[n] /= sum
		}
	}
	return all
}
