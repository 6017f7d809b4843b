package schedule

import (
	"math"
	"slices"
)

// class is the memory of what one shape costs on each host, with a tournament of the hosts: the
// best of each pair, of each four, and so on. A changed host plays only against the
// winners between it and the top.
type class struct {
	on      []rank   // by host; without cells: the VM does not fit, or the host gets no VMs
	winners []int32  // winners[1] is the best host, winners[i] the better one of winners[2i] and winners[2i+1]
	leaves  int      // the index of host 0 in winners; a power of 2
	fitting int      // hosts with a rank
	fresh   []uint64 // by host: the decision that computed its rank
	// The scarcity in a cost is a sum over the likely shapes: each has weights of the moment, and a
	// number of fits that the VM takes from it, which changes only with the host.
	lost []uint16  // by host and likely shape
	rest []float64 // the rest of the cost, by host
	seen int       // how many of the fleet's changes the costs include
	next int       // the host whose cost is computed again next
	// weighed is the host from which costs are weighed again next.
	weighed int
	shapes  int    // the fleet's shapesChanged when lost was counted
	used    uint64 // the last decision that used it
}

const (
	// refreshed is the number of hosts whose cost is computed again in each decision, in
	// turn: other weights may make another node the cheapest. All hosts that changed are, too.
	refreshed = 8
	// reweighed is the number of hosts for which the fits taken are weighed again in each
	// decision, in turn: a tenth of the time.
	reweighed = 256
	// mostLeaders bounds how often the best host is computed again until the best one is one whose
	// cost is of this decision.
	mostLeaders = 16
	// mostClasses bounds the remembered shapes: 10,000 hosts need 1 MB for each.
	mostClasses = 64
	// mostChanges bounds the list of changed hosts.
	mostChanges = 1 << 16
)

// class returns the ranks of the hosts for a shape.
func (f *Fleet) class(s shape) *class {
	f.clock++
	weights := f.scarcity()
	asked := likely{shape: s}
	c := f.classes[s]
	if c == nil {
		if len(f.classes) >= mostClasses {
			f.forget()
		}
		c = &class{}
		f.classes[s] = c
	}
	if c.winners == nil || len(c.on) != len(f.hosts) || c.shapes != f.shapesChanged {
		c.reset(len(f.hosts), len(weights))
		c.shapes = f.shapesChanged
		for i := range f.hosts {
			c.on[i], c.fresh[i] = f.price(f.hosts[i], &asked, weights), f.clock
			c.remember(f, i)
		}
		c.play()
	} else {
		f.bringUpToDate(c, &asked, weights)
	}
	c.used, c.seen = f.clock, len(f.changes)
	return c
}

// bringUpToDate computes the ranks of hosts that changed, of others in turn, and of the best one.
func (f *Fleet) bringUpToDate(c *class, asked *likely, weights []float64) {
	reprice := func(i int) {
		if c.fresh[i] != f.clock {
			c.set(i, f.price(f.hosts[i], asked, weights))
			c.fresh[i] = f.clock
			c.remember(f, i)
		}
	}
	c.weighAgain(f.weights.Scarcity, weights)
	for _, i := range f.changes[c.seen:] {
		reprice(i)
	}
	for range min(refreshed, len(f.hosts)) {
		reprice(c.next)
		c.next = (c.next + 1) % len(f.hosts)
	}
	for range mostLeaders {
		best := c.winners[1]
		if best < 0 || c.fresh[best] == f.clock {
			break
		}
		reprice(int(best))
	}
}

func (c *class) reset(hosts, shapes int) {
	c.on, c.fresh, c.rest = make([]rank, hosts), make([]uint64, hosts), make([]float64, hosts)
	c.lost = make([]uint16, hosts*shapes)
	c.next, c.weighed = 0, 0
}

// remember copies the parts of the cost of a host that was computed last.
func (c *class) remember(f *Fleet, i int) {
	n := len(f.likely)
	copy(c.lost[i*n:(i+1)*n], f.lost)
	c.rest[i] = f.rest
}

// weighAgain brings the costs of some hosts up to date with the weights.
func (c *class) weighAgain(scarcity float64, weights []float64) {
	from, to := c.weighed, min(c.weighed+reweighed, len(c.on))
	n := len(weights)
	for i := from; i < to; i++ {
		if c.on[i].cells > 0 {
			sum := 0.0
			for s, lost := range c.lost[i*n : (i+1)*n] {
				sum += weights[s] * float64(lost)
			}
			c.on[i].cost = scarcity*sum + c.rest[i]
		}
	}
	if c.weighed = to; to == len(c.on) {
		c.weighed = 0
	}
	for a, b := (c.leaves+from)/2, (c.leaves+to-1)/2; a > 0; a, b = a/2, b/2 {
		for i := a; i <= b; i++ {
			c.winners[i] = c.better(c.winners[2*i], c.winners[2*i+1])
		}
	}
}

// play plays the whole tournament.
func (c *class) play() {
	c.leaves = 1
	for c.leaves < len(c.on) {
		c.leaves *= 2
	}
	c.winners = slices.Repeat([]int32{-1}, 2*c.leaves)
	c.fitting = 0
	for i := range c.on {
		if c.on[i].cells > 0 {
			c.winners[c.leaves+i] = int32(i)
			c.fitting++
		}
	}
	for i := c.leaves - 1; i > 0; i-- {
		c.winners[i] = c.better(c.winners[2*i], c.winners[2*i+1])
	}
}

// better returns the better one of two hosts, of equals the first; -1 is no host.
func (c *class) better(a, b int32) int32 {
	if a < 0 || b >= 0 && c.on[b].less(&c.on[a]) {
		return b
	}
	return a
}

// set replaces the rank of a host.
func (c *class) set(i int, r rank) {
	was := c.on[i]
	c.on[i] = r
	if was == r {
		return
	}
	leaf := c.leaves + i
	switch {
	case r.cells > 0 && was.cells == 0:
		c.fitting++
		c.winners[leaf] = int32(i)
	case r.cells == 0 && was.cells > 0:
		c.fitting--
		c.winners[leaf] = -1
	}
	for n := leaf / 2; n > 0; n /= 2 {
		c.winners[n] = c.better(c.winners[2*n], c.winners[2*n+1])
	}
}

// best returns the best hosts that are allowed, in order, at most n.
func (c *class) best(n int, allowed func(int) bool) []candidate {
	var out []candidate
	open := []int{1} // subtrees of which none of the hosts is taken yet
	for len(out) < n && len(open) > 0 {
		top := 0
		for k := range open {
			a, b := c.winners[open[top]], c.winners[open[k]]
			if c.better(min(a, b), max(a, b)) == b { // the first of equals comes first
				top = k
			}
		}
		host := c.winners[open[top]]
		if host < 0 {
			break
		}
		node := open[top]
		open = slices.Delete(open, top, top+1)
		for leaf := c.leaves + int(host); leaf > node; leaf /= 2 {
			open = append(open, leaf^1)
		}
		if allowed(int(host)) {
			out = append(out, candidate{int(host), c.on[host]})
		}
	}
	return out
}

// noteChange records that the costs of a host must be computed again. Shapes that were
// not asked for during half of the recorded changes are forgotten.
func (f *Fleet) noteChange(i int) {
	if f.changes = append(f.changes, i); len(f.changes) < mostChanges {
		return
	}
	const half = mostChanges / 2
	for s, c := range f.classes {
		if c.seen -= half; c.seen < 0 {
			delete(f.classes, s)
		}
	}
	f.changes = append([]int{}, f.changes[half:]...)
}

// forget drops the class that was not used for the longest time.
func (f *Fleet) forget() {
	var oldest shape
	least := uint64(math.MaxUint64)
	for s, c := range f.classes {
		if c.used < least {
			oldest, least = s, c.used
		}
	}
	delete(f.classes, oldest)
}
