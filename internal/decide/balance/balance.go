package balance

import (
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
	// Lasting says that what is seen has lasted long enough: a question of
	// what-if on one inventory, without a history.
	Lasting bool
}

// Past is what came before: the moves made, and the suffering that the last plan named.
type Past struct {
	Moves     []Moved
	Suffering []plan.Suffering
}

// Moved is a move that was made.
type Moved struct {
	Guest    string
	At       time.Time
	From, To topology.NodeSet
}

// Plan returns the moves worth making now. The same request gives the same
// plan; an error means that the request itself is wrong.
func Plan(r Request) (plan.Plan, error) {
	if r.Host == nil {
		return plan.Plan{}, fmt.Errorf("balancing: no inventory given")
	}
	if err := r.Policy.Validate(); err != nil {
		return plan.Plan{}, err
	}
	r.Host = inOrder(r.Host)
	m := newModel(r)
	p := &planner{
		model: m, host: *r.Host, budget: budget{bytes: m.policy.Balance.BytesPerRound,
			guests: m.policy.Balance.GuestsPerRound},
		refused: map[string]string{},
	}
	p.round = plan.Plan{Host: r.Host.Name, Taken: r.Host.Taken, Moves: []plan.Move{}, Before: m.total()}
	p.round.Suffering = m.suffer(r)
	if m.anyPatient() {
		p.pass(policy.ModeAuto)
		p.pass(policy.ModeAdvise)
	}
	p.round.After = m.total()
	p.round.Stays = p.stays()
	return p.round, nil
}

// inOrder returns the host with its guests by name: of plans that are equally
// good, the one made must not depend on who was read first.
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

// stays says of every guest that suffers and does not move why it stays.
func (p *planner) stays() []plan.Stay {
	var out []plan.Stay
	for i := range p.model.guests {
		g := &p.model.guests[i]
		if !g.suffers || g.moved || p.relieved(g) {
			continue
		}
		stay := plan.Stay{Kind: plan.StayRefused, Why: p.refused[g.name()]}
		switch {
		case g.fixed():
			stay = g.stay
		case !g.patient:
			stay = plan.Stay{Kind: plan.StayPatience, Why: "has not suffered long enough yet"}
		case stay.Why == "" && g.pinned:
			stay = plan.Stay{
				Kind: plan.StayMemoryPinned,
				Why:  "its memory cannot move, and no other place for its vCPUs helps it by enough",
			}
		case stay.Why == "":
			stay = plan.Stay{Kind: plan.StayNoGain, Why: "no move helps it by enough"}
		}
		stay.Guest = g.name()
		out = append(out, stay)
	}
	return out
}

// relieved reports whether the moves of others have ended a guest's suffering.
func (p *planner) relieved(g *subject) bool {
	return p.model.own(g) < g.costAtFirst*(1-p.model.policy.Balance.Margin)
}
