package balance

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// planner collects the moves of a plan. Its host and model always represent the
// state after the moves collected so far.
type planner struct {
	model   *model
	host    inventory.Host
	round   plan.Plan
	budget  budget
	refused map[string]string // why a wanted move of a guest was refused, by name
	groups  [][]change        // of each move of the plan
	began   []usage           // before the first move

	excluded []change // changes that the plan does without
	now      time.Time
	lasting  bool                       // as in Request
	past     []plan.Degraded            // guests of the last plan, with its proposals
	proposed map[string][]plan.Proposal // moves to be made later, by the guest that they relieve
}

// budget is what remains of the policy's limits for one plan.
type budget struct {
	bytes  topology.Bytes
	guests int
}

// searches bounds how often a pass repeats the search. It repeats after each
// refused or committed group of moves.
const searches = 12

// pass plans the moves of one mode: auto considers guests in mode auto; advise
// considers all guests, on top of the moves already planned.
func (p *planner) pass(mode policy.Mode) {
	p.confirm(p.past, mode)
	for range searches {
		movable := p.movable(mode)
		if len(movable) == 0 || p.budget.guests == 0 {
			return
		}
		again := false
		for wanted := range p.model.targets(movable, 2*p.budget.guests) {
			if again = p.commitAll(p.model.preferRepin(wanted)); again {
				break // the other state may be reachable if this one is not
			}
		}
		if !again && !p.commitAlone(movable) {
			return
		}
	}
}

// commitAlone commits the single change that lowers the cost most and is worth making. The search
// looks for the best state; where no group that leads there is worth its copies, a guest of it
// or another one may still be worth moving alone.
func (p *planner) commitAlone(movable []int) bool {
	type single struct {
		change
		rise float64
	}
	var helping []single
	for _, i := range movable {
		for l := range p.model.guests[i].layouts {
			c := change{i, l}
			if l == p.model.guests[i].at || p.model.guests[i].layouts[l].rejected {
				continue
			}
			if rise, ok := p.model.tryOne(c); ok && rise < -enough {
				helping = append(helping, single{c, rise})
			}
		}
	}
	slices.SortStableFunc(helping, func(a, b single) int { return cmp.Compare(a.rise, b.rise) })
	for _, each := range helping {
		group := p.model.preferRepin([]change{each.change})
		if !p.model.guests[each.guest].waiting && p.refusal(group) == "" && p.commit(group) == "" {
			return true
		}
	}
	return false
}

// movable lists the guests that a pass may move.
func (p *planner) movable(mode policy.Mode) []int {
	return slices.DeleteFunc(p.model.free(mode), func(i int) bool {
		return p.model.guests[i].moved || p.model.guests[i].waiting
	})
}

// free lists the guests that can move in a mode, whether a plan has moved them or not.
func (m *model) free(mode policy.Mode) (out []int) {
	for i := range m.guests {
		g := &m.guests[i]
		if !g.fixed() && len(g.layouts) > 1 && (g.mode == policy.ModeAuto || mode == policy.ModeAdvise) {
			out = append(out, i)
		}
	}
	return out
}

// commitAll commits the wanted changes in the best order, in groups as small as
// possible, skipping those that are not worth making. again reports whether
// another search may find more: a move was made, or a layout was rejected.
func (p *planner) commitAll(wanted []change) (again bool) {
	if few := len(wanted) > 1 && len(wanted) <= exchangedAtOnce; few && !p.orderable(wanted) && p.commit(wanted) == "" {
		return true
	}
	for len(wanted) > 0 && p.budget.guests > 0 {
		group := p.next(wanted)
		if group == nil {
			return again
		}
		why := p.commit(group)
		if why != "" {
			if joined := p.commitJoined(group, wanted); joined != nil {
				group, why = joined, ""
			}
		}
		for _, c := range group {
			g := &p.model.guests[c.guest]
			if why != "" {
				p.refused[g.name()] = why
			}
		}
		if why != "" && len(group) == 1 {
			p.model.guests[group[0].guest].layouts[group[0].layout].rejected = true
		}
		again = again || why == "" || len(group) == 1
		wanted = minus(wanted, group)
	}
	return again
}

// commitJoined commits a group that was refused together with the changes that follow it
// and are worth it only then. It returns them all; nil if there are none. A step
// that saves next to nothing may be what makes the next one possible.
func (p *planner) commitJoined(group, wanted []change) []change {
	all := slices.Clone(group)
	for {
		was := p.model.inverse(all)
		p.model.apply(all...)
		following := p.next(minus(wanted, all))
		p.model.apply(was...)
		if following == nil || len(all)+len(following) > exchangedAtOnce {
			return nil
		}
		all = append(all, following...)
		if p.refusal(all) != "" {
			continue
		}
		if alone := p.cheaperAlone(all); alone != nil && p.commit(alone) == "" {
			return alone
		}
		if p.commit(all) == "" {
			return all
		}
	}
}

// cheaperAlone returns another change of the guest that a group moves and relieves, one that
// saves about as much as the whole group and copies less; nil if there is none.
func (p *planner) cheaperAlone(group []change) []change {
	bytes := p.bytes(group)
	_, _, relieved := p.weigh(group, bytes)
	enough := relieved.saved * (1 - p.model.policy.Balance.MinGain)
	var best []change
	for _, c := range group {
		g := &p.model.guests[c.guest]
		if g != relieved.guest {
			continue
		}
		for l := range g.layouts {
			alone := []change{{c.guest, l}}
			copied := p.bytes(alone)
			if l == g.at || g.layouts[l].rejected || copied >= bytes || p.refusal(alone) != "" {
				continue
			}
			if _, _, r := p.weigh(alone, copied); r.saved >= enough {
				best, bytes = alone, copied
			}
		}
	}
	return best
}

// orderable reports whether all changes can be made in the order that next gives.
func (p *planner) orderable(wanted []change) bool {
	first := p.model.state()
	defer p.model.restore(first)
	for len(wanted) > 0 {
		group := p.next(wanted)
		if group == nil {
			return false
		}
		p.model.apply(group...)
		wanted = minus(wanted, group)
	}
	return true
}

// next returns the change that lowers the cost most in the current state. If no
// single change lowers it, next returns the best smallest group that does, or a larger
// one that copies nothing; nil if there is none.
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
	return p.cycle(wanted)
}

// cycle returns changes that copy none of the guests' RAM, are only allowed together, and lower the cost:
// each makes room for the one before it, and the last one needs no more room. They take
// effect at once, so their number is not limited. It returns nil if there are none.
func (p *planner) cycle(wanted []change) []change {
	repins := slices.DeleteFunc(slices.Clone(wanted),
		func(c change) bool { return p.model.guests[c.guest].layouts[c.layout].copied > maxUnmovable })
	for _, first := range repins {
		group, rest := []change{first}, minus(repins, []change{first})
		for len(group) > 0 {
			if rise, ok := p.model.try(group...); ok && rise < -enough {
				return group
			}
			group, rest = p.withRoom(group, rest)
		}
	}
	return nil
}

// withRoom adds to a group the change by which a guest leaves a target node of the group's last
// change, the cheapest if there are several, and removes it from the rest; nil if there is none.
func (p *planner) withRoom(group, rest []change) (more, left []change) {
	low := math.Inf(1)
	for _, c := range rest {
		if !p.model.meets(c.guest, group[len(group)-1]) {
			continue
		}
		next := append(slices.Clone(group), c)
		if rise, _ := p.model.try(next...); rise < low {
			more, low = next, rise
		}
	}
	return more, minus(rest, more)
}

// Limits of the search for guests that only help if they move together.
const (
	exchangedAtOnce = 5  // largest group
	fewWanted       = 12 // number of wanted changes up to which groups of three and more are tried
)

// eachGroup yields every group of the given size.
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

// commit adds a move to the plan if the budget, its benefit and all placement
// rules permit it. Otherwise it returns the reason.
func (p *planner) commit(group []change) (why string) {
	if why := p.refusal(group); why != "" {
		return why
	}
	if benefit, _, relief := p.weigh(group, p.bytes(group)); !p.proven(group, benefit, relief) {
		return p.propose(group, relief.guest.name())
	}
	return p.make(group)
}

// make adds a move to the plan if all placement rules permit it. Otherwise it returns
// the reason.
func (p *planner) make(group []change) (why string) {
	bytes := p.bytes(group)
	benefit, price, relief := p.weigh(group, bytes)
	host, moves, why := p.placeGroup(group)
	if why != "" {
		return why
	}
	move := plan.Move{Guests: moves, Benefit: benefit, Cost: price}
	move.Kind = p.kind(group)
	move.Advised = p.advised(group)
	move.Why = p.why(group, relief, benefit, price)
	p.host = host
	p.applyMove(group, moves)
	p.budget.bytes -= min(bytes, p.budget.bytes)
	p.budget.guests -= len(group)
	p.round.Moves = append(p.round.Moves, move)
	p.groups = append(p.groups, slices.Clone(group))
	return ""
}

// applyMove brings the model to the state after a move, and fills in what each
// guest of the move saves.
func (p *planner) applyMove(group []change, moves []plan.GuestMove) {
	m := p.model
	weight := m.list.Weight(cost.Latency) // a cost equal to it is one CPU that waits for memory
	before := make([]float64, len(group))
	for i, c := range group {
		before[i] = m.ownCost(&m.guests[c.guest])
	}
	m.apply(group...)
	for i, c := range group {
		g := &m.guests[c.guest]
		g.moved = true
		if saved := before[i] - m.ownCost(g); saved > 0 && weight > 0 {
			moves[i].Saves = g.demand * saved / weight
		}
	}
}

// refusal returns why the budget or the benefit of a move does not permit it, or "".
func (p *planner) refusal(group []change) string {
	bytes := p.bytes(group)
	if len(group) > p.budget.guests {
		return fmt.Sprintf("this plan already moves as many VMs as the policy allows (guests_per_round %d)",
			p.model.policy.Balance.GuestsPerRound)
	}
	if alone := len(p.round.Moves) == 0; bytes > p.budget.bytes && !alone {
		return fmt.Sprintf("the move copies %v, and %v of this plan's copy budget (bytes_per_round) are left", bytes,
			p.budget.bytes)
	}
	if _, ok := p.model.try(group...); !ok {
		return p.model.shortage(group)
	}
	benefit, price, relief := p.weigh(group, bytes)
	return p.gate(group, benefit, price, relief)
}

// advised reports whether a move is only advice: a guest's mode does not allow
// the daemon to move it, or the move follows another that is only advice and may
// need the resources that one would free.
func (p *planner) advised(group []change) bool {
	for _, c := range group {
		if p.model.guests[c.guest].mode != policy.ModeAuto {
			return true
		}
	}
	n := len(p.round.Moves)
	return n > 0 && p.round.Moves[n-1].Advised
}

// placeGroup computes and checks the placements of a group's guests, on the host
// after the moves planned so far. It returns the host after the group's move, the
// moves, and the reason if a rule forbids them.
func (p *planner) placeGroup(group []change) (inventory.Host, []plan.GuestMove, string) {
	held := p.host.Holdings("")
	now := capacity.Held(&p.host, p.model.policy, held)
	host, credit := p.host, withCredit(&p.host, held, p.model.policy)
	eased, lenient := credit, withCPUCredit(now, p.model.policy)
	removed := make([]inventory.Guest, len(group))
	for i, c := range group {
		host, removed[i] = without(host, p.model.guests[c.guest].name())
		eased, _ = without(eased, p.model.guests[c.guest].name())
	}
	if len(group) > 1 && !p.canExchange(group) {
		return host, nil, "no node has free memory through which the VMs could exchange theirs"
	}
	moves := make([]plan.GuestMove, len(group))
	for i, c := range group {
		g := &p.model.guests[c.guest]
		l := &g.layouts[c.layout]
		r := place.Request{Host: &eased, Spec: g.spec, Policy: lenient}
		placed, err := place.On(r, l.homes)
		if l.apart {
			placed, err = placeApart(r, l.homes, g.seen.Seen.MemoryByNode)
		}
		if err != nil {
			return host, nil, err.Error()
		}
		placed = adopt.Align(placed, removed[i].Config)
		host = with(host, removed[i], g.spec, placed)
		eased = with(eased, removed[i], g.spec, placed)
		moves[i] = plan.GuestMove{
			Guest: g.name(), Placement: placed, Bytes: topology.Bytes(l.copied * float64(g.resident)), Demand: g.demand,
			Undo: plan.Undo{
				Placement: g.seen.Placement,
				VCPUNodes: p.model.vcpuNodes(g.layout()),
				Memory:    g.seen.Seen.MemoryByNode,
			},
		}
	}
	for i, c := range group {
		spec := p.model.guests[c.guest].spec
		if broken := check.Placement(&eased, lenient, spec, moves[i].Placement); len(broken) > 0 {
			return host, nil, check.Error(spec.Name, broken).Error()
		}
	}
	err := errors.Join(arrives(&p.host, &credit, &host, p.model.policy, moves), crowds(now, &host, p.model.policy))
	if err != nil {
		return host, nil, err.Error()
	}
	return host, moves, ""
}

// exchangeRoom is the free memory that one target node needs so that two guests
// can exchange memory chunk by chunk: the smallest slice that a move copies.
const exchangeRoom = 64 * topology.MiB

// canExchange reports whether at least one guest's memory can begin to move. If
// all target nodes are full, no guest can make room for another.
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

// free returns the bytes that can be allocated on a node at once in pages of a
// size.
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
	return s // an unmanaged guest may have a configuration that no spec can request
}
