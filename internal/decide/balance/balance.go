package balance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Request is everything that a plan depends on.
type Request struct {
	Host   *inventory.Host
	Policy policy.Policy
	Past   Past
	Now    time.Time
	// Lasting assumes that every guest has been degraded for DegradedFor. A
	// what-if on one inventory sets it, because there is no history.
	Lasting bool
}

// Past is the history that a plan depends on: the moves made, and the guests
// that were degraded, or waited a little, at the last plan.
type Past struct {
	Moves             []Moved
	Degraded, Waiting []plan.Degraded
	// Worked is for how long, at least, guests have used as much CPU time as now, as far as one sample shows. A
	// guest that was not degraded at the last plan has been for so long, if it is now.
	Worked map[string]time.Duration
	// Unmeasured are guests whose load will be known at the next plan. Until then they count with all their vCPUs, and
	// are not degraded for that.
	Unmeasured map[string]bool
}

// Moved is a completed move of one guest.
type Moved struct {
	Guest    string
	At       time.Time
	From, To topology.NodeSet
	Demand   float64 // in CPUs, when the move was planned; 0: not known
}

// Plan returns the moves worth making now. The same request gives the same
// plan; an error means that the request itself is wrong.
func Plan(r Request) (plan.Plan, error) {
	if err := r.validate(); err != nil {
		return plan.Plan{}, err
	}
	r.Host = inOrder(r.Host)
	p := needed(r, nil)
	if p.copied() > 0 {
		p = p.orWithoutRefused(r)
		p = p.orCautious(r)
		p = p.orWithoutExchanges(r)
	}
	p.round.Blocked = p.blocked()
	return p.round, nil
}

// Degraded is Plan without moves, and without reasons why guests do not move: which guests are degraded, or wait a
// little. It takes a small part of the time.
func Degraded(r Request) (plan.Plan, error) {
	if err := r.validate(); err != nil {
		return plan.Plan{}, err
	}
	r.Host = inOrder(r.Host)
	return begin(r, nil).round, nil
}

// validate returns an error if the request itself is wrong.
func (r *Request) validate() error {
	if r.Host == nil {
		return errors.New("balancing: no inventory given")
	}
	return r.Policy.Validate()
}

// needed plans without the changes that are excluded, and without needless ones.
func needed(r Request, excluded []change) *planner {
	excluded = slices.Clone(excluded)
	for {
		p := newPlanner(r, excluded)
		needless := p.needless()
		if len(needless) == 0 {
			return p
		}
		excluded = append(excluded, needless...)
	}
}

// orWithoutRefused returns the plan, or a better one without the changes that it refused.
func (p *planner) orWithoutRefused(r Request) *planner {
	var refused []change
	for range replans {
		more := p.refusedChanges()
		if len(more) == 0 {
			break
		}
		refused = append(refused, more...)
		q := needed(r, refused)
		if !q.better(p) {
			break
		}
		p = q
	}
	return p
}

// manyMovable is the number of movable guests above which there is no cautious plan: a plan must not take longer than
// 100 ms.
const manyMovable = 100

// orCautious returns the plan, or a better one that copies less, of the changes to the best state if each copy must be
// repaid soon. The search then finds no states of which a part would be refused, because it saves too little, but
// does not copy what is worth it in the long run.
func (p *planner) orCautious(r Request) *planner {
	if len(p.model.free(policy.ModeAuto)) > manyMovable {
		return p
	}
	c := &planner{model: modelOf(r, true)}
	c.model.markDegraded(r)
	movable := c.movable(policy.ModeAuto)
	if len(movable) == 0 {
		movable = c.movable(policy.ModeAdvise)
	}
	if len(movable) > manyMovable {
		return p
	}
	best := c.model.bestInstead(movable, p.changes(), 2*p.model.policy.Balance.GuestsPerRound)
	if len(best) == 0 || c.bytes(best) >= p.copied() {
		return p
	}
	var others []change
	for i := range c.model.guests {
		for l := range c.model.guests[i].layouts {
			if l != 0 && !slices.Contains(best, change{i, l}) {
				others = append(others, change{i, l})
			}
		}
	}
	if q := needed(r, others); q.better(p) {
		return q
	}
	return p
}

// orWithoutExchanges returns the plan, or a better one in which a guest stays on its nodes, to which an earlier move
// has brought a part of its memory, instead of leaving them to another guest. To which of the two a node is worth more
// differs by little, and loads vary; but what has come is copied again.
func (p *planner) orWithoutExchanges(r Request) *planner {
	if len(p.model.guests) > manyMovable {
		return p
	}
	exchanged := p.exchanged()
	for _, guest := range exchanged[:min(replans, len(exchanged))] {
		if q := needed(r, slices.Concat(p.excluded, p.model.elsewhere(guest))); q.better(p) {
			p = q
		}
	}
	return p
}

// exchanged returns the guests with a part of their memory on their nodes that leave these while another guest comes to
// one of them.
func (p *planner) exchanged() (guests []int) {
	all := p.changes()
	for _, c := range all {
		g := &p.model.guests[c.guest]
		from := &g.layouts[0]
		comes := func(d change) bool {
			return d.guest != c.guest && p.model.guests[d.guest].layouts[d.layout].runsWith(from)
		}
		if from.inPart() && !g.layouts[c.layout].runsWith(from) && slices.ContainsFunc(all, comes) {
			guests = append(guests, c.guest)
		}
	}
	return guests
}

// elsewhere returns the changes of a guest to nodes on which none of its vCPUs may run now.
func (m *model) elsewhere(guest int) (all []change) {
	layouts := m.guests[guest].layouts
	for l := range layouts {
		if l != 0 && !layouts[l].runsWith(&layouts[0]) {
			all = append(all, change{guest, l})
		}
	}
	return all
}

// replans bounds how often a plan is made again without the changes that it refused.
const replans = 4

// better reports whether a plan replaces another one. If it copies less, it does unless the other one repays its
// additional copies. If it copies as much or more, it must cost less and repay them.
func (p *planner) better(than *planner) bool {
	if p.copied() < than.copied() {
		return !than.repays(p)
	}
	return p.round.After < than.round.After-enough && p.repays(than)
}

// changes returns all changes of the plan.
func (p *planner) changes() []change { return slices.Concat(p.groups...) }

// copied returns how much memory the plan copies.
func (p *planner) copied() topology.Bytes { return p.bytes(p.changes()) }

// repays reports whether a plan costs less than one that copies less, and saves as much more as its additional copies
// must save. A plan that leaves more vCPUs without a CPU is no alternative: demand says little about a load that has
// just begun.
func (p *planner) repays(less *planner) bool {
	if less.round.After < p.round.After-enough {
		return false
	}
	var more []change
	for _, c := range p.changes() {
		here, there := p.model.guests[c.guest].layout(), less.model.guests[c.guest].layout()
		if here.copied > there.copied {
			more = append(more, c)
		}
	}
	return less.model.lost().saved(p.model.lost()) >= p.model.leastSaved(more) ||
		less.model.withoutCPU() > p.model.withoutCPU()+slack
}

// withoutCPU returns how many vCPUs have no CPU at most.
func (m *model) withoutCPU() (vcpus float64) {
	for i := range m.nodes {
		vcpus += m.nodes[i].withoutCPU(&m.usage[i], m.policy.Count)
	}
	return vcpus
}

// refusedChanges returns the changes that the plan refused, of guests that it does not move: they are not legal or save
// too little, or the guest has no reason to move. The moves of the plan lead to the best state that includes these
// changes. Without them, another state may be better.
func (p *planner) refusedChanges() (refused []change) {
	for i := range p.model.guests {
		for l := range p.model.guests[i].layouts {
			if g := &p.model.guests[i]; !g.moved && g.layouts[l].rejected {
				refused = append(refused, change{i, l})
			}
		}
	}
	return refused
}

// newPlanner plans without the changes that are excluded.
func newPlanner(r Request, excluded []change) *planner {
	p := begin(r, excluded)
	if p.model.anyEligible() {
		p.pass(policy.ModeAuto)
		p.pass(policy.ModeAdvise)
	}
	p.withProposals(p.round.Degraded)
	p.withProposals(p.round.Waiting)
	p.round.After = p.model.total()
	return p
}

// begin returns a plan that has no moves yet.
func begin(r Request, excluded []change) *planner {
	m := newModel(r)
	for _, c := range excluded {
		m.guests[c.guest].layouts[c.layout].rejected = true
	}
	p := &planner{
		model: m, host: *r.Host, budget: budget{bytes: m.policy.Balance.BytesPerRound,
			guests: m.policy.Balance.GuestsPerRound},
		refused: map[string]string{}, began: slices.Clone(m.usage), excluded: excluded,
		now: r.Now, lasting: r.Lasting, proposed: map[string][]plan.Proposal{},
		past: slices.Concat(r.Past.Degraded, r.Past.Waiting),
	}
	p.round = plan.Plan{Host: r.Host.Name, Taken: r.Host.Taken, Moves: []plan.Move{}, Before: m.total()}
	p.round.Degraded, p.round.Waiting = m.markDegraded(r)
	return p
}

// inOrder returns the host with its guests sorted by name, so that a choice
// between equally good plans does not depend on the order of the inventory.
func inOrder(h *inventory.Host) *inventory.Host {
	byName := func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) }
	if slices.IsSortedFunc(h.Guests, byName) {
		return h
	}
	sorted := *h
	sorted.Guests = slices.Clone(h.Guests)
	slices.SortStableFunc(sorted.Guests, byName)
	return &sorted
}

// blocked gives the reason for every degraded guest that does not move.
func (p *planner) blocked() []plan.Blocked {
	var out []plan.Blocked
	for i := range p.model.guests {
		g := &p.model.guests[i]
		if !g.degraded || g.moved || p.relieved(g) {
			continue
		}
		best, room := p.wanted(i)
		blocked := plan.Blocked{Kind: plan.BlockedRefused, Why: p.reason(i, best, room)}
		switch {
		case g.fixed():
			blocked = g.blocked
		case !g.eligible:
			blocked = plan.Blocked{Kind: plan.BlockedNotYet, Why: "has not been degraded for long enough yet"}
		case room && p.repaidLater(i, best, &blocked):
		case blocked.Why == "" && g.limited != nil:
			blocked = plan.Blocked{Kind: plan.BlockedNodeLimit, Why: g.limited.Error()}
		case blocked.Why == "" && g.pinned:
			blocked = plan.Blocked{
				Kind: plan.BlockedMemoryPinned,
				Why: fmt.Sprintf("its memory cannot move (%s), and moving only its vCPUs would not help enough",
					whyPinned(g.seen)),
			}
		case blocked.Why == "":
			blocked = plan.Blocked{Kind: plan.BlockedNoGain, Why: "no move would help enough"}
		}
		blocked.Guest = g.name()
		out = append(out, blocked)
	}
	return out
}

// repaidLater reports whether the move that would help a guest most, to a layout with room, waits only until the guest
// has been degraded for long enough, and notes until when.
func (p *planner) repaidLater(guest, best int, b *plan.Blocked) bool {
	if b.Why != "" {
		if at, ok := p.repaid([]change{{guest, best}}); ok {
			b.Kind, b.Until = plan.BlockedNotRepaid, at.UTC()
			return true
		}
	}
	return false
}

// reason returns why a guest stays: the layout that would help most has no room, or
// the move that the search proposed was refused; "" if no layout would help.
func (p *planner) reason(guest, best int, room bool) string {
	switch {
	case best < 0:
		return p.refused[p.model.guests[guest].name()]
	case !room:
		return p.model.shortage([]change{{guest, best}})
	}
	return cmp.Or(p.refused[p.model.guests[guest].name()], p.refusal([]change{{guest, best}}))
}

// wanted returns the layout that would help a guest most if its price did not count; negative: none would. room is
// false if its nodes have none.
func (p *planner) wanted(guest int) (best int, room bool) {
	m, g := p.model, &p.model.guests[guest]
	best, most := -1, enough
	if g.fixed() {
		return best, false
	}
	for l := range g.layouts {
		rise, ok := m.tryOne(change{guest, l})
		if helps := g.layouts[l].price - g.layout().price - rise; l != g.at && helps > most {
			best, most, room = l, helps, ok
		}
	}
	return best, room
}

// relieved reports whether the moves of others have ended a guest's degradation.
func (p *planner) relieved(g *subject) bool {
	return p.model.ownCost(g) < g.initialCost*(1-p.model.policy.Balance.MinGain) && !p.model.counts(g)
}
