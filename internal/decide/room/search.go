package room

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// search looks for the cheapest set of moves.
type search struct {
	host     *inventory.Host
	spec     guest.Spec
	policy   policy.Policy
	nodes    []capacity.Node
	position map[topology.NodeID]int
	measured bool      // the loads of nodes or guests are known
	use      []float64 // CPU use of each node now
	all      []candidate

	left     []left
	needs    left
	reliefs  [][kinds][]relief // by node and kind, the cheapest first
	anywhere []relief          // by what a candidate frees on all nodes
	homes    []int             // nodes that the new guest may use
	single   bool              // it uses one of them
	widest   int               // or at most this many

	work    int     // done so far, in units of mostWork
	weight  float64 // of the bound of what is missing; 1: the first plan found is the cheapest
	partial bool    // something was left out: the result may not be the optimum
}

// Limits of the search. On small hosts none of them is reached.
const (
	mostWaiting  = 200_000   // sets that wait to be extended
	mostWork     = 4_000_000 // bounds of sets and placements, each times nodes: some tenths of a second
	workOfTry    = 400       // of one placement, in bounds
	mostChildren = 1024      // options of all candidates together
	fewNodes     = 8         // nodes that are emptied, and targets, beyond that
)

func newSearch(r Request) *search {
	s := &search{host: r.Host, spec: r.Spec, policy: r.Policy, weight: 1, position: map[topology.NodeID]int{},
		nodes: capacity.Available(r.Host, r.Policy, "")}
	for i := range s.nodes {
		s.position[s.nodes[i].Node] = i
	}
	s.use = uses(s.nodes)
	s.measured = len(r.Host.Load) > 0 || slices.ContainsFunc(r.Host.Guests,
		func(g inventory.Guest) bool { return g.Seen.Load != nil })
	s.where()
	s.all = s.candidates()
	s.measure(s.nodes)
	s.restrict()
	return s
}

// where finds the nodes that the new guest may use, and how many of them.
func (s *search) where() {
	limits := &s.spec.Limits
	plain := true
	for i := range s.host.Topology.Nodes {
		n := &s.host.Topology.Nodes[i]
		if limits.Nodes.IsEmpty() || limits.Nodes.Contains(n.ID) {
			s.homes = append(s.homes, i)
			plain = plain && !n.CPUs.IsEmpty() && n.Memory > 0 // else a cell may use two nodes
		}
	}
	s.widest = len(s.homes)
	if limits.MaxNodes > 0 {
		s.widest = min(s.widest, limits.MaxNodes)
	}
	if s.spec.Topology.Mode == guest.TopologyCells {
		s.widest = min(s.widest, max(s.spec.Topology.Count, len(s.spec.Topology.Cells)))
	}
	if !plain {
		s.widest = len(s.homes)
	}
	s.single = s.widest == 1
}

// restrict leaves out candidates and options of a large host: those of nodes that are
// dear to empty, and targets with little room.
func (s *search) restrict() {
	count := 0
	for i := range s.all {
		count += len(s.all[i].options)
	}
	if count <= mostChildren {
		return
	}
	s.partial = true
	price, room := make([]float64, len(s.left)), make([]float64, len(s.left))
	for n := range s.left {
		for _, k := range [...]kind{wantedMemory, sharedCPUs} {
			price[n] = max(price[n], atLeast(s.needs[k]-s.left[n][k], s.reliefs[n][k], -1))
		}
		room[n] = -s.left[n][smallPages] // the roomiest first
	}
	cheap, roomy := least(price, s.homes), least(room, nil)
	s.all = slices.DeleteFunc(s.all, func(c candidate) bool {
		return !slices.ContainsFunc(c.leaves, func(a amount) bool { return cheap[a.node] })
	})
	for i := range s.all {
		c := &s.all[i]
		c.options = slices.DeleteFunc(slices.Clone(c.options), func(o option) bool {
			return slices.ContainsFunc(o.takes, func(a amount) bool { return !roomy[a.node] })
		})
	}
	s.weigh()
}

// least marks the few nodes with the least values; from nil: of all.
func least(value []float64, from []int) map[int]bool {
	order := slices.Clone(from)
	for n := range value {
		if from == nil {
			order = append(order, n)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case value[a] < value[b]:
			return -1
		case value[a] > value[b]:
			return 1
		}
		return 0
	})
	marked := map[int]bool{}
	for _, n := range order[:min(fewNodes, len(order))] {
		marked[n] = true
	}
	return marked
}

// set is a set of moves: those of before, and one more.
type set struct {
	before    *set
	candidate int
	option    int
	moves     int
	bytes     topology.Bytes
	bound     topology.Bytes // of what a plan that contains the set copies; in haste no bound, but a rank
	order     int            // in which it was made
}

// queue has the set with the lowest bound first; of equal ones that with the fewest moves.
type queue []*set

func (q queue) Len() int { return len(q) }
func (q queue) Less(a, b int) bool {
	if q[a].bound != q[b].bound {
		return q[a].bound < q[b].bound
	}
	if q[a].moves != q[b].moves {
		return q[a].moves < q[b].moves
	}
	return q[a].order < q[b].order
}
func (q queue) Swap(a, b int) { q[a], q[b] = q[b], q[a] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(*set)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// find searches for the cheapest moves, and if that takes too long, for any.
func (s *search) find() *carried {
	found := s.run()
	if found == nil && s.partial {
		s.work, s.weight = 0, inHaste
		found = s.run()
	}
	return found
}

// inHaste is the weight with which the search prefers sets that are nearly enough to
// sets that copy little.
const inHaste = 8

// run returns the cheapest moves in a legal order; nil if the search found none.
func (s *search) run() *carried {
	waiting := &queue{{candidate: -1}}
	for made := 1; waiting.Len() > 0; {
		best := heap.Pop(waiting).(*set) //nolint:forcetypeassert // the queue has only sets
		now, targets := s.after(best)
		if best.moves > 0 && s.missing(now, targets, len(s.all)) == 0 {
			choices := s.choices(best)
			if found := s.carryOut(choices); found != nil {
				return s.trimmed(choices, found)
			}
		}
		if made >= mostWaiting || s.exhausted() {
			s.partial = true
			return nil
		}
		for _, next := range s.extend(best, now, targets) {
			next.order = made
			made++
			heap.Push(waiting, next)
		}
	}
	return nil
}

// trimmed leaves out moves without which the others suffice: in haste there may be some.
func (s *search) trimmed(choices []choice, found *carried) *carried {
	if s.weight == 1 {
		return found
	}
	byBytes := func(a, b choice) int { return cmp.Compare(b.option.bytes, a.option.bytes) }
	for _, dear := range slices.SortedFunc(slices.Values(choices), byBytes) {
		fewer := slices.DeleteFunc(slices.Clone(choices), func(c choice) bool { return c == dear })
		if less := s.carryOut(fewer); less != nil {
			choices, found = fewer, less
		}
	}
	return found
}

// exhausted reports whether the search has done as much as it may.
func (s *search) exhausted() bool { return s.work > mostWork }

// try counts a placement.
func (s *search) try() { s.work += workOfTry * (len(s.nodes) + 4) }

// after returns what is left on each node after a set of moves, and the nodes that
// guests move to.
func (s *search) after(of *set) (now []left, targets []int) {
	now = slices.Clone(s.left)
	for ; of.before != nil; of = of.before {
		c := &s.all[of.candidate]
		targets = s.apply(now, c, &c.options[of.option], targets)
	}
	return now, targets
}

// apply changes what is left on the nodes by one move.
func (s *search) apply(now []left, c *candidate, o *option, targets []int) []int {
	for i := range c.leaves {
		for k := range kinds {
			now[c.leaves[i].node][k] += c.leaves[i].of(k)
		}
	}
	for i := range o.takes {
		for k := range kinds {
			now[o.takes[i].node][k] -= o.takes[i].of(k)
		}
		targets = append(targets, o.takes[i].node)
	}
	return targets
}

// extend returns the sets with one more move, of a candidate after those of the set.
func (s *search) extend(of *set, now []left, targets []int) []*set {
	var all []*set
	next := make([]left, len(now))
	for i := of.candidate + 1; i < len(s.all); i++ {
		c := &s.all[i]
		for k := range c.options {
			o := &c.options[k]
			copy(next, now)
			more := s.missing(next, s.apply(next, c, o, slices.Clip(targets)), i)
			if math.IsInf(more, 1) {
				continue
			}
			bytes := of.bytes + o.bytes
			bound := bytes + topology.Bytes(s.weight*max(0, more-1)) // less 1: the sum of parts was rounded
			if s.weight == 1 {
				bound = max(bound, of.bound) // what is missing was rounded
			}
			all = append(all,
				&set{before: of, candidate: i, option: k, moves: of.moves + 1, bytes: bytes, bound: bound})
		}
	}
	return all
}
