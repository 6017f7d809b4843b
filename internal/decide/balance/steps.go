package balance

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// planner collects the moves of a round. Its host and model are always as
// they will be after the moves so far.
type planner struct {
	model   *model
	host    inventory.Host
	round   plan.Plan
	budget  budget
	refused map[string]string // why a guest that should move did not, by name
}

// budget is what is left of a round's.
type budget struct {
	bytes  topology.Bytes
	guests int
}

// searches bounds how often a pass looks for a better state: once for each
// move refused on the way to the last.
const searches = 12

// pass plans the moves that the mode allows: in auto those of guests that may
// be moved, in advise all that would help, on top of the former.
func (p *planner) pass(mode policy.Mode) {
	for range searches {
		movable := p.movable(mode)
		if len(movable) == 0 || p.budget.guests == 0 {
			return
		}
		again := false
		for _, wanted := range p.model.targets(movable, 2*p.budget.guests) {
			if again = p.approach(p.model.sparing(wanted)); again {
				break // one state may be out of reach, the other is not
			}
		}
		if !again {
			return
		}
	}
}

// movable lists the guests that a pass may move.
func (p *planner) movable(mode policy.Mode) []int {
	var out []int
	for i := range p.model.guests {
		g := &p.model.guests[i]
		if !g.fixed() && !g.moved && (g.mode == policy.ModeAuto || mode == policy.ModeAdvise) && len(g.layouts) > 1 {
			out = append(out, i)
		}
	}
	return out
}

// approach makes the wanted changes one by one, or two at once, as far as
// each is worth making; again reports whether another search may find more.
func (p *planner) approach(wanted []change) (again bool) {
	if few := len(wanted) > 1 && len(wanted) <= exchangedAtOnce; few && !p.orderable(wanted) && p.commit(wanted) == "" {
		return true
	}
	for len(wanted) > 0 && p.budget.guests > 0 {
		group := p.next(wanted)
		if group == nil {
			return again
		}
		why := p.commit(group)
		for _, c := range group {
			g := &p.model.guests[c.guest]
			if why != "" {
				p.refused[g.name()] = why
			}
		}
		if why != "" && len(group) == 1 {
			p.model.guests[group[0].guest].layouts[group[0].layout].barred = true
		}
		wanted = minus(wanted, group)
		again = true
	}
	return again
}

// orderable reports whether the changes can be made in the order in which
// next would, down to the last.
func (p *planner) orderable(wanted []change) bool {
	first := p.model.state()
	defer p.model.restore(first)
	for len(wanted) > 0 {
		group := p.next(wanted)
		if group == nil {
			return false
		}
		p.model.make(group...)
		wanted = minus(wanted, group)
	}
	return true
}

// next is the change that helps most now, or the few that do together where
// fewer do not.
func (p *planner) next(wanted []change) []change {
	for size := 1; size <= exchangedAtOnce; size++ {
		if size > 2 && len(wanted) > fewWanted {
			break
		}
		var best []change
		low := -enough
		eachGroup(wanted, size, nil, func(group []change) {
			if rise, ok := p.model.try(group...); ok && rise < low {
				best, low = append(best[:0], group...), rise
			}
		})
		if len(best) > 0 {
			return best
		}
	}
	return nil
}

// Guests that only move together are looked for up to so many at once, among
// so many.
const (
	exchangedAtOnce = 5
	fewWanted       = 12
)

// eachGroup yields every group of so many changes.
func eachGroup(from []change, size int, group []change, yield func([]change)) {
	if size == 0 {
		yield(group)
		return
	}
	for i := range from {
		eachGroup(from[i+1:], size-1, append(group, from[i]), yield)
	}
}

func minus(all, some []change) []change {
	var out []change
	for _, c := range all {
		keep := true
		for _, s := range some {
			keep = keep && c != s
		}
		if keep {
			out = append(out, c)
		}
	}
	return out
}

// commit checks a move against gates and rules and adds it to the round; it
// says why where it does not.
func (p *planner) commit(group []change) (why string) {
	bytes := p.bytes(group)
	if len(group) > p.budget.guests {
		return "the round's budget of guests is used up"
	}
	if alone := len(p.round.Moves) == 0; bytes > p.budget.bytes && !alone {
		return fmt.Sprintf("%v to copy, the round's budget has %v left", bytes, p.budget.bytes)
	}
	if _, ok := p.model.try(group...); !ok {
		return "a node would lack CPUs or memory"
	}
	benefit, price, relief := p.weigh(group, bytes)
	if why := p.gate(benefit, price, relief); why != "" {
		return why
	}
	host, moves, why := p.settle(group)
	if why != "" {
		return why
	}
	move := plan.Move{Guests: moves, Benefit: benefit, Cost: price}
	move.Kind = p.kind(group)
	move.Advised = p.advised(group)
	move.Why = p.why(group, relief, benefit, price)
	p.host = host
	p.model.make(group...)
	for _, c := range group {
		p.model.guests[c.guest].moved = true
	}
	p.budget.bytes -= min(bytes, p.budget.bytes)
	p.budget.guests -= len(group)
	p.round.Moves = append(p.round.Moves, move)
	return ""
}

// advised reports whether a move is only to be shown: a guest's mode does not
// allow it, or it was found on top of another that is only shown, and may count
// on what that one leaves.
func (p *planner) advised(group []change) bool {
	for _, c := range group {
		if p.model.guests[c.guest].mode != policy.ModeAuto {
			return true
		}
	}
	n := len(p.round.Moves)
	return n > 0 && p.round.Moves[n-1].Advised
}

// settle places the guests of a group under all rules, on the host as it will
// be then.
func (p *planner) settle(group []change) (inventory.Host, []plan.GuestMove, string) {
	host := p.host
	lifted := make([]inventory.Guest, len(group))
	for i, c := range group {
		host, lifted[i] = without(host, p.model.guests[c.guest].name())
	}
	if len(group) > 1 && !p.canExchange(group) {
		return host, nil, "there is no room on any node to exchange memory through"
	}
	moves := make([]plan.GuestMove, len(group))
	for i, c := range group {
		g := &p.model.guests[c.guest]
		l := &g.layouts[c.layout]
		placed, err := place.On(place.Request{Host: &host, Spec: g.spec, Policy: p.model.policy}, l.homes)
		if err != nil {
			return host, nil, err.Error()
		}
		placed = adopt.Align(placed, lifted[i].Config)
		host = with(host, lifted[i], g.spec, placed)
		moves[i] = plan.GuestMove{
			Guest: g.name(), Placement: placed, Bytes: topology.Bytes(l.copied * float64(g.resident)),
			Undo: plan.Undo{
				Placement: g.seen.Placement,
				VCPUNodes: p.model.vcpuNodes(g.layout()),
				Memory:    g.seen.Seen.MemoryByNode,
			},
		}
	}
	for i, c := range group {
		spec := p.model.guests[c.guest].spec
		if broken := check.Placement(&host, p.model.policy, spec, moves[i].Placement); len(broken) > 0 {
			return host, nil, check.Error(spec.Name, broken).Error()
		}
	}
	return host, moves, ""
}

// exchangeRoom is what must be free somewhere to exchange the memory of two
// guests chunk by chunk.
const exchangeRoom = 64 * topology.MiB

// canExchange reports whether the memory of one of the guests can begin to
// move: where nothing is free anywhere, none can make room for another.
func (p *planner) canExchange(group []change) bool {
	copies := false
	for _, c := range group {
		g := &p.model.guests[c.guest]
		bytes := topology.Bytes(g.layouts[c.layout].copied * float64(g.resident))
		roomy := true
		for _, s := range g.layouts[c.layout].on {
			roomy = roomy && free(&p.host.Topology.Nodes[s.node], g.spec.PageSize) >= min(exchangeRoom, bytes)
		}
		if bytes > 0 && roomy {
			return true
		}
		copies = copies || bytes > 0
	}
	return !copies
}

// free is what can be taken of a node at once in pages of a size.
func free(n *topology.Node, size topology.Bytes) topology.Bytes {
	for _, p := range n.HugePages {
		if p.Size == size && size > 0 {
			return topology.Bytes(p.Free) * size
		}
	}
	return n.Free + n.Reclaimable
}

func (m *model) vcpuNodes(l *layout) topology.NodeSet {
	var s topology.NodeSet
	for _, on := range l.on {
		if on.cpu > 0 {
			s = s.With(m.nodes[on.node].id)
		}
	}
	return s
}

// normal writes out the defaults that the checker reads.
func normal(s guest.Spec) guest.Spec {
	if n, err := s.Normalize(); err == nil {
		return n
	}
	return s // a guest made by others may be what no new one could ask for
}
