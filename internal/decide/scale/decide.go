package scale

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Guest is a guest whose number of vCPUs follows its demand.
type Guest struct {
	Name string `json:"name"`
	// Weight is the guest's share where CPUs do not suffice, relative to the weights of others; at least 1.
	Weight int `json:"weight"`
	// Min is the number of vCPUs that the guest always uses; at least 1.
	Min int `json:"min_vcpus"`
	// Cells are those of the guest's placement; a guest that sees none has one.
	Cells []Cell `json:"cells"`
}

// Cell is a part of a guest.
type Cell struct {
	// Nodes are those on whose CPUs its vCPUs run.
	Nodes topology.NodeSet `json:"nodes"`
	VCPUs guest.VCPUSet    `json:"vcpus"`
	// Used are the vCPUs that the guest uses now.
	Used guest.VCPUSet `json:"used"`
	// Memory of the guest on Nodes: vCPUs of cells with more are used first.
	Memory topology.Bytes `json:"memory_bytes"`
}

// Input is all that a decision depends on.
type Input struct {
	Now time.Time
	// CPUs are those that each node has for these guests: without the work of others.
	CPUs   map[topology.NodeID]int
	Guests []Guest
	// Demands have at most one entry for each guest. A guest without one wants what it uses.
	Demands []handoff.Demand
	// Rules have the times and margins of demands.
	Rules handoff.Rules
	// Memory is what the decision before returned; its zero value at the start.
	Memory handoff.Memory
}

// Check reports whether each guest has a name of its own, weights and minimums of at least 1, and each vCPU
// in one cell, vCPU 0 among them.
func (in *Input) Check() error {
	var errs []error
	names := map[string]bool{}
	for i := range in.Guests {
		g := &in.Guests[i]
		var all guest.VCPUSet
		for _, c := range g.Cells {
			if c.VCPUs.Intersects(all) || !c.Used.SubsetOf(c.VCPUs) || c.Nodes.IsEmpty() {
				errs = append(errs, fmt.Errorf("VM %s: a cell with vCPUs %s on nodes %s, of which it uses %s; each "+
					"vCPU is in one cell, which has nodes", g.Name, c.VCPUs, c.Nodes, c.Used))
			}
			all = all.Union(c.VCPUs)
		}
		if names[g.Name] || g.Weight < 1 || g.Min < 1 || g.Min > all.Len() || !all.Contains(0) {
			errs = append(errs, fmt.Errorf("VM %s: weight %d, minimum %d, vCPUs %s; allowed: one VM of a name, "+
				"1 and more, vCPU 0 among the vCPUs, and a minimum of at most their number",
				g.Name, g.Weight, g.Min, all))
		}
		names[g.Name] = true
	}
	for n, cpus := range in.CPUs {
		if cpus < 0 {
			errs = append(errs, fmt.Errorf("node %d has %d CPUs", n, cpus))
		}
	}
	return errors.Join(errs...)
}

// Target says which vCPUs a guest is to use, and why as many.
type Target struct {
	Guest string `json:"guest"`
	// Want is what the guest demands after hysteresis, at least its minimum.
	Want int `json:"want"`
	// Use are the vCPUs to use, vCPU 0 among them; Before are those that it uses now.
	Use    guest.VCPUSet `json:"use"`
	Before guest.VCPUSet `json:"before"`
}

// Decide returns the vCPUs that each guest is to use, in the order of the input, and what to remember for the next
// decision. The error is that of Input.Check.
//
// Minimums come first, also if nodes then have more vCPUs than CPUs. Then each guest gets vCPUs up to what it
// wants, fair by weight where a node's CPUs do not suffice; then as many as it uses already: no other guest
// needs their CPUs. Of all ways to give each guest its number, the one is taken that changes the fewest vCPUs, and
// then that uses those of cells with most memory.
func Decide(in Input) ([]Target, handoff.Memory, error) {
	if err := in.Check(); err != nil {
		return nil, in.Memory, err
	}
	d := newDecider(in)
	memory := d.want()
	d.anchor()
	d.raise(func(s *state) int { return s.guest.Min }, func(int) bool { return true })
	d.raise(func(s *state) int { return s.want }, nil)
	d.raise(func(s *state) int { return s.before.Len() }, nil)
	return d.choose(), memory, nil
}

// state is what a decision knows of one guest.
type state struct {
	guest  *Guest
	before guest.VCPUSet
	all    int // vCPUs
	anchor int // position of the cell with vCPU 0
	want   int
	units  int // vCPUs to use
	vertex int // of the graph; its cells follow
	full   bool
}

// decider gives vCPUs by flows from the source over guests, their cells and nodes to the sink.
type decider struct {
	in     Input
	guests []state
	nodes  []topology.NodeID // ascending
	extra  []int             // CPUs by node by which minimums exceed it
	first  int               // vertex of the first node
	graph  *graph
}

const (
	source = 0
	sink   = 1
)

func newDecider(in Input) *decider {
	d := &decider{in: in}
	for n := range in.CPUs {
		d.nodes = append(d.nodes, n)
	}
	next := 2
	for i := range in.Guests {
		g := &in.Guests[i]
		s := state{guest: g, vertex: next}
		next += 1 + len(g.Cells)
		for k, c := range g.Cells {
			s.before = s.before.Union(c.Used)
			s.all += c.VCPUs.Len()
			if c.VCPUs.Contains(0) {
				s.anchor = k
			}
			for n := range c.Nodes.All() { // a node without CPUs for these guests
				if _, ok := in.CPUs[n]; !ok && !slices.Contains(d.nodes, n) {
					d.nodes = append(d.nodes, n)
				}
			}
		}
		d.guests = append(d.guests, s)
	}
	slices.Sort(d.nodes)
	d.first, d.extra = next, make([]int, len(d.nodes))
	d.graph = d.network(func(*Cell) (retained, price int) { return 0, 0 })
	return d
}

// network returns a graph without flow. Of each cell, the retained vCPUs cost its price, and others more.
func (d *decider) network(price func(*Cell) (retained, price int)) *graph {
	g := newGraph(d.first + len(d.nodes))
	for i := range d.guests {
		s := &d.guests[i]
		for k := range s.guest.Cells {
			c := &s.guest.Cells[k]
			vertex, all := s.vertex+1+k, c.VCPUs.Len()
			retained, cost := price(c)
			if k == s.anchor { // vCPU 0 has an edge of its own
				all, retained = all-1, max(0, retained-1)
			}
			g.add(s.vertex, vertex, retained, cost)
			g.add(s.vertex, vertex, all-retained, cost+changed)
			for at, n := range d.nodes {
				if c.Nodes.Contains(n) {
					g.add(vertex, d.first+at, c.VCPUs.Len(), 0)
				}
			}
		}
	}
	for at, n := range d.nodes {
		g.add(d.first+at, sink, d.in.CPUs[n]+d.extra[at], 0)
	}
	return g
}

// changed is the price of using a vCPU that is not used now; it exceeds that of any order of cells.
const changed = 1 << 20

// want applies the demands to what was remembered.
func (d *decider) want() handoff.Memory {
	memory := handoff.Memory{Guests: map[string]handoff.Wanted{}}
	for i := range d.guests {
		s := &d.guests[i]
		name := s.guest.Name
		s.want = max(s.guest.Min, s.before.Len())
		at := slices.IndexFunc(d.in.Demands, func(x handoff.Demand) bool { return x.Guest == name })
		if w, known := d.in.Memory.Guests[name]; known || at >= 0 {
			if at >= 0 {
				w = d.in.Rules.Want(w, d.in.Demands[at], s.guest.Min, s.all, d.in.Now)
			}
			memory.Guests[name], s.want = w, max(s.guest.Min, min(w.CPUs, s.all))
		}
	}
	return memory
}

// anchor gives each guest its vCPU 0, which no kernel frees.
func (d *decider) anchor() {
	for i := range d.guests {
		s := &d.guests[i]
		d.graph.add(source, s.vertex+1+s.anchor, 1, 0)
		d.give(s, func(cell int) bool { return cell == s.anchor })
	}
}

// give sends one more unit, for which there is an edge from the source. If no node has a CPU for it, the least
// exceeded node of these cells gets one more than it has; with nil, there is no unit then.
func (d *decider) give(s *state, exceed func(cell int) bool) bool {
	if !d.graph.augment() {
		if exceed == nil {
			return false
		}
		d.exceed(s, exceed)
		if !d.graph.augment() {
			return false
		}
	}
	s.units++
	return true
}

// exceed adds a CPU to the node that is least exceeded of those of cells with a vCPU that is not used.
func (d *decider) exceed(s *state, of func(cell int) bool) {
	best := -1
	for at, n := range d.nodes {
		for k := range s.guest.Cells {
			c := &s.guest.Cells[k]
			if of(k) && c.Nodes.Contains(n) && d.through(s, k) < c.VCPUs.Len() &&
				(best < 0 || d.extra[at] < d.extra[best]) {
				best = at
			}
		}
	}
	if best >= 0 {
		d.extra[best]++
		d.graph.add(d.first+best, sink, 1, 0)
	}
}

// through returns how many vCPUs of a guest's cell have a CPU.
func (d *decider) through(s *state, cell int) (n int) {
	for _, i := range d.graph.out[s.vertex+1+cell] {
		if e := &d.graph.edges[i]; i%2 == 0 && e.to >= d.first {
			n += d.graph.flow(i)
		}
	}
	return n
}

// raise gives vCPUs until each guest has its limit or can have no more. The next one goes to the guest for which
// one more has the least price: (n+1)^2/weight less n^2/weight. The possible shares form a polymatroid, so
// that is optimal.
func (d *decider) raise(limit func(*state) int, exceed func(cell int) bool) {
	for {
		var next *state
		for i := range d.guests {
			s := &d.guests[i]
			if s.units < limit(s) && !s.full && (next == nil || s.goesBefore(next)) {
				next = s
			}
		}
		if next == nil {
			return
		}
		edge := d.graph.add(source, next.vertex, 1, 0)
		if !d.give(next, exceed) {
			d.graph.edges[edge].left, next.full = 0, true
		}
	}
}

// goesBefore reports whether a guest gets the next vCPU before another one.
func (s *state) goesBefore(o *state) bool {
	return cmp.Or(cmp.Compare((2*s.units+1)*o.guest.Weight, (2*o.units+1)*s.guest.Weight),
		cmp.Compare(s.guest.Name, o.guest.Name)) < 0
}

// choose gives each guest its number of vCPUs with the fewest changes.
func (d *decider) choose() []Target {
	ranks := map[*Cell]int{}
	for i := range d.guests {
		var order []*Cell
		for k := range d.guests[i].guest.Cells {
			order = append(order, &d.guests[i].guest.Cells[k])
		}
		slices.SortStableFunc(order, func(a, b *Cell) int { return cmp.Compare(b.Memory, a.Memory) })
		for rank, c := range order {
			ranks[c] = rank
		}
	}
	d.graph = d.network(func(c *Cell) (retained, price int) { return c.Used.Len(), ranks[c] })
	for i := range d.guests {
		s := &d.guests[i]
		d.graph.add(source, s.vertex+1+s.anchor, 1, 0)
		d.graph.add(source, s.vertex, s.units-1, 0)
	}
	for d.graph.augment() {
		continue // until all have their number
	}
	targets := make([]Target, 0, len(d.guests))
	for i := range d.guests {
		s := &d.guests[i]
		t := Target{Guest: s.guest.Name, Want: s.want, Before: s.before}
		for k := range s.guest.Cells {
			t.Use = t.Use.Union(s.guest.Cells[k].pick(d.through(s, k)))
		}
		targets = append(targets, t)
	}
	return targets
}

// pick returns a number of vCPUs of a cell: vCPU 0, then those in use, then others, each by their numbers.
func (c *Cell) pick(n int) (use guest.VCPUSet) {
	order := slices.Concat(c.VCPUs.Intersect(topology.SetOf[guest.VCPUID](0)).IDs(), c.Used.IDs(), c.VCPUs.IDs())
	for _, v := range order {
		if use.Len() < n {
			use = use.With(v)
		}
	}
	return use
}
