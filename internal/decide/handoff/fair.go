package handoff

// A share is how many units each guest is entitled to. The shares that are
// possible form a polymatroid: the units are matched to guests that may have
// them. So giving unit after unit to the guest with the least price of one more,
// if a matching for it exists, minimises the sum of any convex price of each
// guest's units. The price is n*n/weight: its minimum is proportional to the weights
// as far as whole units, limits and wants allow.

// pool is a number of units that the same guests may have.
type pool struct {
	may  []bool
	free int
	used []int // by guest
}

// fairness finds shares.
type fairness struct {
	t     *table
	pools []pool
	n     []int
}

// newFairness groups the units. With fixed, units that are stuck are only for their
// holders.
func newFairness(t *table, fixed bool) *fairness {
	f := &fairness{t: t, n: make([]int, len(t.guests))}
	index := map[string]int{}
	for i := range t.units {
		u := &t.units[i]
		may := u.may
		if fixed && u.stuck {
			may = make([]bool, len(t.guests))
			may[u.holder] = true
		}
		key := make([]byte, len(may))
		for g, ok := range may {
			if ok {
				key[g] = 1
			}
		}
		at, ok := index[string(key)]
		if !ok {
			at = len(f.pools)
			index[string(key)] = at
			f.pools = append(f.pools, pool{may: may, used: make([]int, len(t.guests))})
		}
		f.pools[at].free++
	}
	return f
}

// raise gives units until each guest has its limit, or no guest below its limit can
// have another unit.
func (f *fairness) raise(limit []int) {
	full := make([]bool, len(f.n))
	for {
		next := nobody
		for g := range f.n {
			if f.n[g] < limit[g] && !full[g] && (next == nobody || f.before(g, next)) {
				next = g
			}
		}
		if next == nobody {
			return
		}
		if f.augment(next) {
			f.n[next]++
		} else {
			full[next] = true // for good: what others get leaves no more for this guest
		}
	}
}

// before reports whether one more unit is due to guest a before guest b: n*n/weight
// grows by (2n+1)/weight. If equal, the unit stays with the guest that has it, so
// that ties do not move CPUs to and fro.
func (f *fairness) before(a, b int) bool {
	x := (2*f.n[a] + 1) * f.t.guests[b].Weight
	y := (2*f.n[b] + 1) * f.t.guests[a].Weight
	if x != y {
		return x < y
	}
	keepA, keepB := f.t.held[a] > f.n[a], f.t.held[b] > f.n[b]
	if keepA != keepB {
		return keepA
	}
	return f.t.guests[a].Weight > f.t.guests[b].Weight // else by name
}

// augment finds one more unit for a guest, by moving others to other pools if need
// be (breadth first), and reports whether there is one.
func (f *fairness) augment(g int) bool {
	from := make([]int, len(f.pools))  // guest through which a pool was reached
	via := make([]int, len(f.n))       // pool through which a guest was reached
	seen := make([]bool, len(f.pools)) // pools
	met := make([]bool, len(f.n))
	met[g], via[g] = true, nobody
	queue := []int{g}
	for len(queue) > 0 {
		h := queue[0]
		queue = queue[1:]
		for p := range f.pools {
			if seen[p] || !f.pools[p].may[h] {
				continue
			}
			seen[p], from[p] = true, h
			if f.pools[p].free > 0 {
				f.shift(p, from, via)
				return true
			}
			for other, n := range f.pools[p].used {
				if n > 0 && !met[other] {
					met[other], via[other] = true, p
					queue = append(queue, other)
				}
			}
		}
	}
	return false
}

// shift takes a free unit of a pool along the path that was found.
func (f *fairness) shift(p int, from, via []int) {
	f.pools[p].free--
	for {
		g := from[p]
		f.pools[p].used[g]++
		if via[g] == nobody {
			return
		}
		p = via[g]
		f.pools[p].used[g]--
	}
}

// shares returns the units to which each guest is entitled. forced says that
// guests below their minimum need units that are stuck.
func (t *table) shares() (n []int, forced bool) {
	f := newFairness(t, true)
	f.raise(t.least)
	for g := range t.guests {
		forced = forced || f.n[g] < t.least[g]
	}
	f.raise(t.steady) // what is brief takes nothing from anybody
	f.raise(t.wants)
	if !forced {
		return f.n, false
	}
	voluntary := f.n
	f = newFairness(t, false)
	f.raise(t.least)
	held := make([]int, len(t.guests))
	for i := range t.units {
		if u := &t.units[i]; u.stuck {
			held[u.holder]++
		}
	}
	f.raise(held) // force serves minimums only
	f.raise(voluntary)
	return f.n, true
}
