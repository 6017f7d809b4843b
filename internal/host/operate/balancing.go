package operate

import (
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Balancing is what the balancer would do with a guest, where that differs from
// what bind would do. Both decide on the same inventory. bind chooses the best
// nodes for the guest alone; the balancer moves a guest only if it is degraded
// and the move pays, and prefers to move less.
type Balancing struct {
	// Move is the move that the balancer would make; nil: none, see Why.
	Move *plan.Move `json:"move,omitempty"`
	// Nodes is the guest's target in Move.
	Nodes topology.NodeSet `json:"nodes,omitzero"`
	// Cost is the guest's cost on Nodes, and BindCost on the nodes that bind
	// chooses, in the units of place.Why; both 0 without a move.
	Cost     float64 `json:"cost,omitempty"`
	BindCost float64 `json:"bind_cost,omitempty"`
	Why      string  `json:"why"`
}

// balancing compares a new placement of bind with the balancer's decision; nil:
// they agree, or the balancer cannot decide on this inventory.
func (h *Host) balancing(inv *inventory.Host, g inventory.Guest, b *Bound) *Balancing {
	p, err := balance.Plan(balance.Request{Host: inv, Policy: h.Policy, Now: inv.Taken, Lasting: true})
	if err != nil {
		return nil
	}
	for _, m := range p.Moves {
		for _, part := range m.Guests {
			if part.Guest == g.Name {
				return h.otherMove(inv, g, b, m, part.To())
			}
		}
	}
	if b.copiesRAM() == 0 {
		return nil
	}
	for _, s := range p.Blocked {
		if s.Guest == g.Name {
			return &Balancing{Why: s.Why}
		}
	}
	return &Balancing{Why: "it is not degraded"}
}

// otherMove compares the balancer's move with the placement of bind.
func (h *Host) otherMove(
	inv *inventory.Host, g inventory.Guest, b *Bound, m plan.Move, to topology.NodeSet,
) *Balancing {
	if to.Equal(b.Plan.Placement.Nodes) {
		return nil
	}
	other := Balancing{Move: &m, Nodes: to, Why: m.Why}
	spec := balance.SpecOf(&g)
	spec.Limits.Nodes = to
	if _, why, err := place.Place(place.Request{Host: inv, Spec: spec, Policy: h.Policy, Ignore: g.Name}); err == nil {
		other.Cost, other.BindCost = why.Cost, b.Why.Cost
	}
	return &other
}

// copiesRAM is how much of the guest's RAM the plan of a bind copies.
func (b *Bound) copiesRAM() (sum topology.Bytes) {
	for _, s := range b.Plan.Steps {
		if s.Kind == plan.MoveRange {
			sum += s.Bytes
		}
	}
	return sum
}
