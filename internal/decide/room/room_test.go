package room

import (
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// moved lists the moves in short: "a>1 b>0,2".
func moved(p Plan) string {
	var all []string
	for _, m := range p.Moves {
		all = append(all, m.Guests[0].Guest+">"+m.Guests[0].Placement.Nodes.String())
	}
	return strings.Join(all, " ")
}

// two is a host of two nodes of 8 GiB with 8 CPUs; its default policy keeps some
// memory free on each.
const two = "nodes:2 cores:8 memory:8G"

func TestFind(t *testing.T) {
	big := vm{name: "new", vcpus: 2, memory: 5 * gib, spec: oneNode}
	for _, c := range []struct {
		name   string
		host   string
		guests []vm
		new    vm
		policy policy.Policy
		change func(*inventory.Host)
		want   string // moves
		why    Obstacle
	}{
		{name: "the VM that copies least moves", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: 3 * gib, on: on(0), touched: 0.1},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			want: "b>1"},
		{name: "it counts what is resident, not what is promised", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.9},
			{name: "b", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.8},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			want: "b>1"},
		{name: "a VM whose mode is off stays", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.5},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			policy: policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"b": policy.ModeOff}}},
			want:   "a>1"},
		{name: "so does one with a device", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.5, change: func(g *inventory.Guest) {
				g.Config.Devices = []string{"0000:01:00.0"}
			}},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			want: "a>1"},
		{name: "one that may only use its node", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.5,
				spec: func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf[topology.NodeID](0) }},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			want: "a>1"},
		{name: "and one that another command holds", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: 2 * gib, on: on(0), touched: 0.5},
			{name: "c", vcpus: 2, memory: 3 * gib, on: on(1)}},
			change: func(h *inventory.Host) {
				b, _ := h.Guest("b")
				h.Claims = append(h.Claims, inventory.Claim{Name: "b", Placement: *b.Placement})
			},
			want: "a>1"},
		{name: "one makes room for the other", host: "nodes:3 cores:8 memory:8G", new: vm{name: "new", vcpus: 2,
			memory: 7 * gib, spec: oneNode}, guests: []vm{
			{name: "a", vcpus: 2, memory: 3 * gib, on: on(0)},
			{name: "b", vcpus: 2, memory: gib, on: on(1)}, {name: "b2", vcpus: 2, memory: 4 * gib, on: on(1),
				spec: func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf[topology.NodeID](1) }},
			{name: "c", vcpus: 2, memory: 5 * gib, on: on(2),
				spec: func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf[topology.NodeID](2) }}},
			want: "b>2 a>1"},
		{name: "no node gets busier than the policy allows", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 4, memory: 3 * gib, on: on(0), load: 2},
			{name: "c", vcpus: 8, memory: 2 * gib, on: on(1), load: 6}},
			why: NoMoves},
		{name: "a node that would be as busy as the one it leaves is allowed", host: two, new: big, guests: []vm{
			{name: "a", vcpus: 4, memory: 3 * gib, on: on(0), load: 2}, {name: "b", vcpus: 8, memory: gib / 4, on: on(0), load: 6,
				spec: func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf[topology.NodeID](0) }},
			{name: "c", vcpus: 8, memory: 2 * gib, on: on(1), load: 6}},
			want: "a>1"},
		{name: "vCPUs are what is missing", host: two, new: vm{name: "new", vcpus: 5, memory: gib, spec: oneNode},
			policy: policy.Policy{Overcommit: 1, Balance: policy.Balance{MaxNodeCPU: 1}}, guests: []vm{
				{name: "a", vcpus: 3, memory: 2 * gib, on: on(0)}, {name: "b", vcpus: 3, memory: gib, on: on(0)},
				{name: "c", vcpus: 4, memory: gib, on: on(1)}},
			want: "b>1"},
		{name: "an exclusive VM needs CPUs of its own", host: two,
			new: vm{name: "new", vcpus: 6, memory: gib, spec: func(s *guest.Spec) {
				s.Limits.MaxNodes, s.CPU.Binding = 1, guest.CPUExclusive
			}},
			guests: []vm{
				{name: "a", vcpus: 4, memory: 2 * gib, on: on(0),
					spec: func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }},
				{name: "c", vcpus: 4, memory: 3 * gib, on: on(1),
					spec: func(s *guest.Spec) { s.CPU.Binding = guest.CPUExclusive }}},
			want: "a>1"},
		{name: "huge pages", host: "nodes:2 cores:8 memory:8G huge:2M=1024",
			new: vm{name: "new", vcpus: 2, memory: 2 * gib, spec: func(s *guest.Spec) {
				s.Limits.MaxNodes, s.PageSize = 1, 2*mib
			}},
			guests: []vm{
				{name: "a", vcpus: 2, memory: gib, on: on(0), spec: func(s *guest.Spec) { s.PageSize = 2 * mib }},
				{name: "small", vcpus: 2, memory: gib / 2, on: on(0)},
				{name: "c", vcpus: 2, memory: gib, on: on(1), spec: func(s *guest.Spec) { s.PageSize = 2 * mib }}},
			policy: policy.Policy{GrowHugePagesUpTo: new(topology.Bytes)},
			want:   "a>1"},
		{name: "two cells", host: two, new: vm{name: "new", vcpus: 2, memory: 8 * gib, spec: func(s *guest.Spec) {
			s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
		}}, guests: []vm{
			{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)}, {name: "b", vcpus: 2, memory: gib, on: on(0)},
			{name: "b2", vcpus: 2, memory: gib, on: on(0), touched: 0.9}, {name: "c", vcpus: 2, memory: gib, on: on(1)}},
			want: "b2>1"},
		{name: "the host is too small", host: two, new: vm{name: "new", vcpus: 2, memory: 9 * gib, spec: oneNode},
			guests: []vm{{name: "a", vcpus: 2, memory: 2 * gib, on: on(0)}}, why: TooSmall},
		{name: "the host is full", host: two, new: vm{name: "new", vcpus: 2, memory: 6 * gib, spec: oneNode}, guests: []vm{
			{name: "a", vcpus: 2, memory: 5 * gib, on: on(0)}, {name: "b", vcpus: 2, memory: 6 * gib, on: on(1)}},
			why: Full},
		{name: "too few vCPUs left", host: two, new: vm{name: "new", vcpus: 4, memory: gib}, guests: []vm{
			{name: "a", vcpus: 7, memory: gib, on: on(0)}, {name: "b", vcpus: 7, memory: gib, on: on(1)}},
			policy: policy.Policy{Overcommit: 1}, why: Full},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t, c.host)
			for _, g := range c.guests {
				mustAdd(t, h, g)
			}
			if c.change != nil {
				c.change(h)
			}
			p := Find(Request{Host: h, Spec: c.new.normal(t), Policy: c.policy})
			if got := moved(p); got != c.want || p.Obstacle != c.why || !p.Proven || (c.why != "") != (p.Reason != "") {
				t.Errorf("%q, %q (%s), proven %t; want %q, %q", got, p.Obstacle, p.Reason, p.Proven, c.want, c.why)
			}
		})
	}
}

// On hosts where the search cannot prove the optimum it still finds legal moves, none of
// which is dispensable.
func TestFind_OnALargeHost(t *testing.T) {
	h := crowded(t, 8)
	r := Request{Host: h, Spec: vm{name: "new", vcpus: 16, memory: 13 * gib, spec: oneNode}.normal(t)}
	p := Find(r)
	if len(p.Moves) < 5 || p.Proven {
		t.Fatalf("%q, proven %t", moved(p), p.Proven)
	}
	carriedOutLegally(t, r, p)
	for i := range p.Moves {
		others := slices.Delete(slices.Clone(p.Moves), i, i+1)
		if suffice(r, others) {
			t.Errorf("%s is dispensable in %q", p.Moves[i], moved(p))
		}
	}
}

// suffice reports whether the new guest fits after moves, and all guests that moved have
// what they need.
func suffice(r Request, moves []plan.Move) bool {
	h := *r.Host
	for _, m := range moves {
		h = balance.After(&h, m.Guests)
	}
	for _, m := range moves {
		g, _ := h.Guest(m.Guests[0].Guest)
		if len(check.Placement(&h, r.Policy, *g.Spec, m.Guests[0].Placement)) > 0 {
			return false
		}
	}
	_, _, err := place.Place(place.Request{Host: &h, Spec: r.Spec, Policy: r.Policy, WithoutAdvice: true})
	return err == nil
}

// A plan says what it costs, and where the new guest goes.
func TestFind_Figures(t *testing.T) {
	h := machine(t, two)
	h.MoverBytesPerSecond = gib / 2
	mustAdd(t, h, vm{name: "a", vcpus: 2, memory: 3 * gib, on: on(0)})
	mustAdd(t, h, vm{name: "c", vcpus: 2, memory: 3 * gib, on: on(1), touched: 0.5})
	p := Find(Request{Host: h, Spec: vm{name: "new", vcpus: 2, memory: 6 * gib, spec: oneNode}.normal(t)})
	if len(p.Moves) != 1 || p.Placement == nil || p.Why == nil {
		t.Fatalf("%+v", p)
	}
	m := p.Moves[0]
	if m.Kind != plan.MoveGuest || m.Guests[0].Guest != "c" || m.Guests[0].Bytes != 3*gib/2 ||
		m.Cost.Took.Seconds() != 3 || !m.Cost.RateMeasured || m.Why == "" || m.Validate() != nil ||
		!m.Guests[0].Undo.VCPUNodes.Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("move %+v", m)
	}
	if p.Price != m.Cost || !p.Placement.Nodes.Equal(topology.SetOf[topology.NodeID](1)) {
		t.Errorf("price %+v, nodes %s", p.Price, p.Placement.Nodes)
	}
	if slices.ContainsFunc(h.Guests, func(g inventory.Guest) bool { return g.Name == "new" }) || len(h.Claims) > 0 {
		t.Error("the inventory was changed")
	}
}
