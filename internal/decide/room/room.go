package room

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Request asks for room for a guest that does not fit on the host.
type Request struct {
	Host   *inventory.Host
	Spec   guest.Spec // normalized, with a name that no guest of the host has
	Policy policy.Policy
}

// Plan is the answer: the moves, or why there are none.
type Plan struct {
	// Moves in their order, each of one guest.
	Moves []plan.Move `json:"moves,omitempty"`
	// Placement is where the new guest goes after the moves, and Why explains it; nil
	// without moves.
	Placement *guest.Placement `json:"placement,omitempty"`
	Why       *place.Why       `json:"why,omitempty"`
	// Price is that of all moves together.
	Price plan.Price `json:"price,omitzero"`
	// Proven says that no cheaper moves exist, or, without moves, that none help.
	Proven bool `json:"proven"`
	// Obstacle is why there are no moves; Reason says it in words.
	Obstacle Obstacle `json:"obstacle,omitempty"`
	Reason   string   `json:"reason,omitempty"`
}

// Obstacle is a reason why no moves make room.
type Obstacle string

// Obstacles.
const (
	TooSmall Obstacle = "host-too-small" // the guest would not fit if the host had no others
	Full     Obstacle = "host-full"      // all nodes together have too little left
	NoMoves  Obstacle = "no-moves"       // no moves help that the policy and all rules permit
	GaveUp   Obstacle = "search-stopped" // the search stopped before it found any
)

// Find returns the cheapest moves that make room for the guest. The same request
// gives the same plan.
func Find(r Request) Plan {
	r.Policy = r.Policy.WithDefaults()
	if why := tooSmall(r); why != "" {
		return Plan{Proven: true, Obstacle: TooSmall, Reason: why}
	}
	if r.Spec.IsHandoff() {
		return Plan{Obstacle: NoMoves, Reason: "moves of other VMs are not searched for a VM that hands CPUs over"}
	}
	if why := full(r); why != "" {
		return Plan{Proven: true, Obstacle: Full, Reason: why}
	}
	s := newSearch(r)
	found := s.find()
	switch {
	case found != nil:
		return s.plan(found)
	case s.partial:
		return Plan{Obstacle: GaveUp, Reason: "the search for moves of other VMs found none before its limit"}
	}
	return Plan{Proven: true, Obstacle: NoMoves,
		Reason: "no moves help that balance.mode, the limits of each VM and max_node_cpu permit"}
}

// tooSmall says whether the guest fits not even on the host without other guests.
func tooSmall(r Request) string {
	empty := *r.Host
	empty.Guests, empty.Claims, empty.Load = nil, nil, nil
	empty.Topology.Nodes = make([]topology.Node, len(r.Host.Topology.Nodes))
	for i := range empty.Topology.Nodes {
		n := r.Host.Topology.Nodes[i]
		n.Free = n.Memory
		n.HugePages = append([]topology.HugePagePool(nil), n.HugePages...)
		for k := range n.HugePages {
			n.HugePages[k].Free = n.HugePages[k].Total
			n.Free -= min(n.Free, topology.Bytes(n.HugePages[k].Total)*n.HugePages[k].Size)
		}
		empty.Topology.Nodes[i] = n
	}
	_, _, err := place.Place(place.Request{Host: &empty, Spec: r.Spec, Policy: r.Policy, WithoutAdvice: true})
	if err == nil {
		return ""
	}
	return "the host is too small: the VM would not fit if no other VM ran"
}

// full says whether all nodes together have too little left: moves do not change
// the sums.
func full(r Request) string {
	var memory topology.Bytes
	vcpus := 0.0
	nodes := capacity.Available(r.Host, r.Policy, "")
	for i := range nodes {
		n := &nodes[i]
		memory += n.Unpromised() - min(n.Unpromised(), n.KeepFree)
		vcpus += max(0, r.Policy.Overcommit*float64(n.Shared.Len())-n.Load)
	}
	switch {
	case memory < r.Spec.Memory:
		return fmt.Sprintf("all nodes together have %v of memory left, and moves do not change that", memory)
	case r.Spec.CPU.Binding != guest.CPUExclusive && r.Spec.CPU.Binding != guest.CPUNone &&
		vcpus < float64(r.Spec.VCPUs):
		return fmt.Sprintf("all nodes together have room for %s, and moves do not change that",
			text.Count(int(vcpus), "vCPU", "vCPUs"))
	}
	return ""
}

// plan prices the moves.
func (s *search) plan(found *carried) Plan {
	p := Plan{Placement: &found.placement, Why: &found.why, Proven: !s.partial}
	var all topology.Bytes
	for i, m := range found.moves {
		all += m.Bytes
		kind := plan.MoveGuest
		if m.Bytes == 0 {
			kind = plan.Repin
		}
		p.Moves = append(p.Moves, plan.Move{Kind: kind, Guests: found.moves[i : i+1 : i+1], Cost: s.price(m.Bytes),
			Why: fmt.Sprintf("makes room for %s", s.spec.Name)})
	}
	p.Price = s.price(all)
	return p
}

// longest bounds the estimated time of a copy, so that it fits into a time.Duration.
const longest = 1 << 62

func (s *search) price(bytes topology.Bytes) plan.Price {
	p := plan.Price{Bytes: bytes, RateMeasured: s.host.MoverBytesPerSecond > 0}
	p.BytesPerSecond, p.RateFrom = s.policy.Balance.CopyRate(s.host.MoverBytesPerSecond)
	p.Took = time.Duration(min(longest, float64(bytes)/float64(p.BytesPerSecond)*float64(time.Second)))
	return p
}
