package room

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// draw draws a small host with guests of all sorts, and a guest that does not fit.
func draw(t *rapid.T) Request {
	count := rapid.SampledFrom([]int{2, 3, 2, 4}).Draw(t, "nodes")
	topo, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:4 memory:4G huge:2M=256 distances:10,16,28 %s", count,
		map[bool]string{true: "square", false: "flat"}[count == 4]))
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Version: inventory.Version, Name: "host", Topology: topo}
	keep := topology.Bytes(0)
	p := policy.Policy{KeepFree: &keep, Overcommit: rapid.SampledFrom([]float64{2, 1, 1.5}).Draw(t, "overcommit")}
	if !rapid.Bool().Draw(t, "pools grow") {
		p.GrowHugePagesUpTo = new(topology.Bytes)
	}
	p.Balance.MaxNodeCPU = rapid.SampledFrom([]float64{1, 0.9, 0.6}).Draw(t, "max_node_cpu")
	p.Balance.Guests = map[string]policy.Mode{}
	most := map[int]int{2: 5, 3: 4, 4: 3}[count]
	for i := range rapid.IntRange(2, most).Draw(t, "guests") {
		v := drawGuest(t, fmt.Sprintf("g%d", i), count)
		if rapid.IntRange(0, 6).Draw(t, "off") == 0 {
			p.Balance.Guests[v.name] = policy.ModeOff
		}
		add(t, h, p, v)
	}
	v := drawGuest(t, "new", count)
	v.memory = min(4*gib, v.memory+topology.Bytes(rapid.IntRange(1, 5).Draw(t, "more"))*gib/2)
	return Request{Host: h, Spec: v.normal(t), Policy: p.WithDefaults()}
}

func drawGuest(t *rapid.T, name string, nodes int) vm {
	v := vm{name: name, vcpus: rapid.SampledFrom([]int{1, 2, 1, 3, 4}).Draw(t, "vcpus"),
		memory:  topology.Bytes(rapid.IntRange(1, 5).Draw(t, "memory")) * gib / 2,
		touched: rapid.SampledFrom([]float64{1, 0.5, 0.2, 0.9, 0}).Draw(t, "touched"),
		on:      on(topology.NodeID(rapid.IntRange(0, nodes-1).Draw(t, "node")))}
	if rapid.Bool().Draw(t, "measured") {
		v.load = rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "load") * float64(v.vcpus)
	}
	form := rapid.SampledFrom([]string{"one node", "one node", "free", "exclusive", "huge", "two cells"}).Draw(t, "form")
	if form == "two cells" && (nodes < 2 || v.vcpus%2 == 1) {
		form = "one node"
	}
	if form == "two cells" {
		v.on = on(0, topology.NodeID(rapid.IntRange(1, nodes-1).Draw(t, "second node")))
	}
	v.spec = func(s *guest.Spec) {
		switch form {
		case "one node":
			s.Limits.MaxNodes = 1
		case "exclusive":
			s.Limits.MaxNodes, s.CPU.Binding = 1, guest.CPUExclusive
		case "huge":
			s.Limits.MaxNodes, s.PageSize = 1, 2*mib
		case "two cells":
			s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
		}
	}
	return v
}

// oracle finds the cheapest moves by trying all targets of all guests in all orders.
type oracle struct {
	Request
	base  []float64
	bytes topology.Bytes
	moves int
	found bool
}

// solve extends a set of moves by those of the guests from index from on.
func (o *oracle) solve(from int, chosen map[string][]topology.NodeID, bytes topology.Bytes) {
	if o.found && (bytes > o.bytes || bytes == o.bytes && len(chosen) >= o.moves) {
		return
	}
	if from == len(o.Host.Guests) {
		if o.works(chosen) {
			o.found, o.bytes, o.moves = true, bytes, len(chosen)
		}
		return
	}
	o.solve(from+1, chosen, bytes)
	g := &o.Host.Guests[from]
	if o.Policy.Balance.Guests[g.Name] == policy.ModeOff {
		return
	}
	for _, homes := range o.targets(g) {
		chosen[g.Name] = homes
		o.solve(from+1, chosen, bytes+elsewhere(g, homes))
		delete(chosen, g.Name)
	}
}

// targets are all other nodes, or pairs of nodes, that are no farther apart; a cell
// that can stay does.
func (o *oracle) targets(g *inventory.Guest) (all [][]topology.NodeID) {
	t := &o.Host.Topology
	if len(g.Placement.Cells) == 1 {
		for i := range t.Nodes {
			if id := t.Nodes[i].ID; !g.Placement.Nodes.Contains(id) {
				all = append(all, on(id))
			}
		}
		return all
	}
	a, _ := g.Placement.Cells[0].Nodes.First()
	b, _ := g.Placement.Cells[1].Nodes.First()
	was, _ := t.Distance(a, b)
	for i := range t.Nodes {
		for k := range t.Nodes {
			x, y := t.Nodes[i].ID, t.Nodes[k].ID
			stays := x == a || y == b
			d, _ := t.Distance(x, y)
			if x == y || d > was || x == a && y == b || x == b || y == a || !stays && x > y {
				continue
			}
			all = append(all, on(x, y))
		}
	}
	return all
}

// elsewhere is what a guest of equal cells copies.
func elsewhere(g *inventory.Guest, homes []topology.NodeID) (sum topology.Bytes) {
	for _, id := range homes {
		there := g.Seen.MemoryByNode.Total() / topology.Bytes(len(homes))
		sum += there - min(there, g.Seen.MemoryByNode[id])
	}
	return sum
}

// works reports whether an order of the moves is legal with the room reserved that the
// new guest gets after them.
func (o *oracle) works(chosen map[string][]topology.NodeID) bool {
	last, ok := o.inSomeOrder(*o.Host, chosen, map[string]bool{}, nil)
	if !ok {
		return false
	}
	placed, _, err := place.Place(place.Request{Host: &last, Spec: o.Spec, Policy: o.Policy, WithoutAdvice: true})
	if err != nil {
		return false
	}
	reserved := *o.Host
	reserved.Claims = append(reserved.Claims[:len(reserved.Claims):len(reserved.Claims)],
		inventory.Claim{Name: o.Spec.Name, Placement: placed})
	_, ok = o.inSomeOrder(reserved, chosen, map[string]bool{}, &placed)
	return ok
}

func (o *oracle) inSomeOrder(
	h inventory.Host, chosen map[string][]topology.NodeID, done map[string]bool, placed *guest.Placement,
) (inventory.Host, bool) {
	if len(done) == len(chosen) {
		return h, placed == nil || len(check.Placement(&h, o.Policy, o.Spec, *placed)) == 0
	}
	for i := range o.Host.Guests {
		name := o.Host.Guests[i].Name
		homes, moves := chosen[name]
		if !moves || done[name] {
			continue
		}
		g, _ := h.Guest(name)
		p, err := place.On(place.Request{Host: &h, Spec: balance.SpecOf(g), Policy: o.Policy, Ignore: name}, homes)
		if err != nil {
			continue
		}
		m := []plan.GuestMove{{Guest: name, Placement: adopt.Align(p, g.Config)}}
		if balance.Legal(&h, o.Policy, m) != nil {
			continue
		}
		next := balance.After(&h, m)
		o.shift(&h, &next, name)
		if o.tooBusy(&next, g, homes) {
			continue
		}
		done[name] = true
		last, ok := o.inSomeOrder(next, chosen, done, placed)
		delete(done, name)
		if ok {
			return last, true
		}
	}
	return h, false
}

// shift moves the measured load of a guest with equal cells from its old to its new
// nodes.
func (o *oracle) shift(h, next *inventory.Host, name string) {
	was, _ := h.Guest(name)
	is, _ := next.Guest(name)
	if was.Seen.Load == nil {
		return
	}
	next.Load = append([]inventory.NodeLoad(nil), h.Load...)
	for i := range next.Load {
		l := &next.Load[i]
		if was.Placement.Nodes.Contains(l.Node) {
			l.CPU = max(0, l.CPU-was.Seen.Load.CPU/float64(was.Placement.Nodes.Len()))
		}
		if is.Placement.Nodes.Contains(l.Node) {
			l.CPU += was.Seen.Load.CPU / float64(is.Placement.Nodes.Len())
		}
	}
}

func (o *oracle) tooBusy(next *inventory.Host, g *inventory.Guest, homes []topology.NodeID) bool {
	measured := len(o.Host.Load) > 0
	for i := range o.Host.Guests {
		measured = measured || o.Host.Guests[i].Seen.Load != nil
	}
	if !measured {
		return false
	}
	limit := o.Policy.Balance.MaxNodeCPU
	began, _ := o.Host.Guest(g.Name)
	for i, n := range capacity.Available(o.Host, o.Policy, "") {
		if began.Placement.Nodes.Contains(n.Node) {
			limit = max(limit, o.base[i])
		}
	}
	for i, n := range capacity.Available(next, o.Policy, "") {
		for _, home := range homes {
			if n.Node == home && n.Demand > (max(limit, o.base[i])+1e-6)*float64(n.Shared.Len()) {
				return true
			}
		}
	}
	return false
}

// No enumeration finds cheaper moves, and where it finds none, there are none.
func TestFind_IsTheOptimum(t *testing.T) {
	helped, none := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		request := place.Request{Host: r.Host, Spec: r.Spec, Policy: r.Policy, WithoutAdvice: true}
		if _, _, err := place.Place(request); err == nil {
			t.Skip("it fits")
		}
		got := Find(r)
		if !got.Proven {
			t.Fatalf("not proven on %d nodes with %d VMs", len(r.Host.Topology.Nodes), len(r.Host.Guests))
		}
		o := oracle{Request: r}
		for _, n := range capacity.Available(r.Host, r.Policy, "") {
			o.base = append(o.base, n.Demand/max(1e-9, float64(n.Shared.Len())))
		}
		o.solve(0, map[string][]topology.NodeID{}, 0)
		if o.found != (len(got.Moves) > 0) {
			t.Fatalf("the oracle needs %d moves and %v (found %t), the search %q: %s", o.moves, o.bytes, o.found,
				moved(got), got.Reason)
		}
		if !o.found {
			none++
			return
		}
		helped++
		if got.Price.Bytes != o.bytes || len(got.Moves) != o.moves {
			t.Fatalf("the oracle copies %v in %d moves, the search %v: %s", o.bytes, o.moves, got.Price.Bytes, moved(got))
		}
		carriedOutLegally(t, r, got)
	})
	t.Logf("moves helped %d times, none did %d times", helped, none)
}

// carriedOutLegally makes the moves one by one, with the new guest's room reserved.
func carriedOutLegally(t fataler, r Request, p Plan) {
	t.Helper()
	h := *r.Host
	h.Claims = []inventory.Claim{{Name: r.Spec.Name, Placement: *p.Placement}}
	for i, m := range p.Moves {
		if err := balance.Legal(&h, r.Policy, m.Guests); err != nil {
			t.Fatalf("move %d (%s): %v", i+1, m, err)
		}
		h = balance.After(&h, m.Guests)
	}
	if err := check.Error("new", check.Placement(&h, r.Policy, r.Spec, *p.Placement)); err != nil {
		t.Fatalf("%v", err)
	}
}

// A host that has room for the new guest without moves needs none: the search is asked
// only after a refusal, and says the same for the same host.
func TestFind_IsTheSameEachTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		a, b := Find(r), Find(r)
		if moved(a) != moved(b) || a.Obstacle != b.Obstacle {
			t.Fatalf("%q %q, then %q %q", moved(a), a.Obstacle, moved(b), b.Obstacle)
		}
	})
}
