package handoff

import (
	"fmt"
	"math"
)

// An assignment gives each guest the number of units that its share says. Of all
// assignments it is the one with, in this order:
//
//  1. the fewest units that change hands,
//  2. the fewest of them taken by force,
//  3. the least sum of distances of the units that guests retain: a guest
//     releases the units that are farthest from its home,
//  4. the least sum of distances of the units that guests take; a guest below its
//     minimum takes what it gets soonest, and of that the nearest,
//  5. the fewest releases for it: free units first, then those that leave already,
//  6. the most units whose SMT siblings the taker has, the fewest whose siblings others
//     have.
//
// It is a flow of least cost, found by successive shortest paths over classes of
// equal units.

// class is a set of units that are equal for an assignment.
type class struct {
	units []int
	free  int   // units without an assigned guest
	used  []int // by guest
	// price and may say by guest what a unit costs, and whether the guest may be
	// assigned one.
	price []price
	may   []bool
}

// price orders assignments: first by hi, then by lo, then by tie.
type price struct{ hi, lo, tie int64 }

func (p price) plus(q price) price  { return price{p.hi + q.hi, p.lo + q.lo, p.tie + q.tie} }
func (p price) minus(q price) price { return price{p.hi - q.hi, p.lo - q.lo, p.tie - q.tie} }

func (p price) below(q price) bool {
	switch {
	case p.hi != q.hi:
		return p.hi < q.hi
	case p.lo != q.lo:
		return p.lo < q.lo
	}
	return p.tie < q.tie
}

// The parts of a price. Sums over 8192 units (the most CPUs that Linux supports,
// CONFIG_NR_CPUS) stay within the bits of each part.
const (
	change   = 1 << 16 // in hi: a unit changes hands; below it: by force
	retained = 1 << 28 // in lo: distance of a retained unit; below it: what follows
	awaited  = 1 << 12 // the wait for a unit, if the taker is below its minimum; below it: distance
	released = 1 << 16 // in tie: the wait for a unit; below it: its siblings
)

// price is what it costs to assign a unit to a guest.
func (t *table) price(g int, u *unit) price {
	away := int64(t.away(g, u))
	if u.holder == g && !u.leaving {
		return price{lo: away * retained}
	}
	p := price{hi: change, lo: away}
	wait := int64(0)
	switch {
	case u.stuck:
		p.hi++
		wait = 2
	case u.leaving:
		wait = 1
	case u.holder != nobody:
		wait = 2
	}
	if t.held[g] < t.least[g] {
		p.lo += wait * awaited
	}
	p.tie = wait * released
	switch {
	case u.core.has(g):
	case len(u.core.guests) == 0:
		p.tie++
	default:
		p.tie += 2
	}
	return p
}

// assignment is the result: for each unit the guest that is to take it, or nobody
// if it remains with its holder or free.
type assignment struct {
	t       *table
	classes []class
	left    []int // units that a guest still needs
	forced  bool
}

// assign gives guests their shares, and returns the taker of each unit.
func (t *table) assign(shares []int, forced bool) []int {
	a := &assignment{t: t, left: append([]int(nil), shares...), forced: forced}
	index := map[string]int{}
	for i := range t.units {
		u := &t.units[i]
		key := fmt.Sprint(u.node, u.holder, u.leaving, u.stuck, u.may, u.core.guests)
		at, ok := index[key]
		if !ok {
			at = len(a.classes)
			index[key] = at
			a.classes = append(a.classes, a.newClass(u))
		}
		a.classes[at].units = append(a.classes[at].units, i)
		a.classes[at].free++
	}
	for a.augment() {
	}
	return a.pick()
}

// first is the unit that stands for a class.
func (a *assignment) first(c int) *unit { return &a.t.units[a.classes[c].units[0]] }

func (a *assignment) newClass(u *unit) class {
	c := class{used: make([]int, len(a.left))}
	for g := range a.left {
		c.price = append(c.price, a.t.price(g, u))
		c.may = append(c.may, u.may[g] && (!u.stuck || a.forced || u.holder == g))
	}
	return c
}

// hop is a step of the cheapest path to a guest or a class.
type hop struct {
	cost price
	from int // the class or guest before; nobody: the path begins here
	met  bool
}

// better replaces the hop if a path over from is cheaper.
func (h *hop) better(cost price, from int) bool {
	if h.met && !cost.below(h.cost) {
		return false
	}
	*h = hop{cost, from, true}
	return true
}

// augment assigns more units along the cheapest path from a guest that needs some to
// a class that has some, and reports whether there is one (Bellman-Ford, since ways
// back have negative costs; there are no negative cycles).
func (a *assignment) augment() bool {
	guests, classes := make([]hop, len(a.left)), make([]hop, len(a.classes))
	for g, n := range a.left {
		if n > 0 {
			guests[g] = hop{from: nobody, met: true}
		}
	}
	for changed := true; changed; {
		changed = false
		for c := range a.classes {
			for g := range guests {
				if guests[g].met && a.classes[c].may[g] {
					cost := guests[g].cost.plus(a.classes[c].price[g])
					changed = classes[c].better(cost, g) || changed
				}
			}
			for g, n := range a.classes[c].used {
				if n > 0 && classes[c].met {
					cost := classes[c].cost.minus(a.classes[c].price[g])
					changed = guests[g].better(cost, c) || changed
				}
			}
		}
	}
	end := nobody
	for c := range a.classes {
		if a.classes[c].free > 0 && classes[c].met && (end == nobody || classes[c].cost.below(classes[end].cost)) {
			end = c
		}
	}
	if end == nobody {
		return false
	}
	a.shift(end, guests, classes)
	return true
}

// shift assigns as many units along a path as all its parts have.
func (a *assignment) shift(end int, guests, classes []hop) {
	amount := math.MaxInt
	for c := end; ; {
		g := classes[c].from
		if guests[g].from == nobody {
			amount = min(amount, a.left[g], a.classes[end].free)
			break
		}
		c = guests[g].from
		amount = min(amount, a.classes[c].used[g])
	}
	a.classes[end].free -= amount
	for c := end; ; {
		g := classes[c].from
		a.classes[c].used[g] += amount
		if guests[g].from == nobody {
			a.left[g] -= amount
			return
		}
		c = guests[g].from
		a.classes[c].used[g] -= amount
	}
}

// pick chooses the units of each class that change hands, so that the units of a core
// go to one guest where the numbers allow.
func (a *assignment) pick() []int {
	takers := make([]int, len(a.t.units))
	for i := range takers {
		takers[i] = nobody
	}
	for c := range a.classes {
		u := a.first(c)
		open := append([]int(nil), a.classes[c].used...)
		if u.holder != nobody && !u.leaving {
			open[u.holder] = 0
		}
		for {
			g, i := a.choose(c, open, takers)
			if g == nobody {
				break
			}
			takers[i] = g
			open[g]--
		}
	}
	return takers
}

// choose returns the guest, of those that take more units of a class, and the unit
// that suit each other best; nobody if no guest takes more.
func (a *assignment) choose(c int, open, takers []int) (taker, chosen int) {
	taker, chosen = nobody, nobody
	best := math.MaxInt
	for g, n := range open {
		if n == 0 {
			continue
		}
		for _, i := range a.classes[c].units {
			if takers[i] != nobody {
				continue
			}
			if r := a.t.rank(i, g, n, takers); r < best {
				taker, chosen, best = g, i, r
			}
		}
	}
	return taker, chosen
}

// rank says how badly unit i suits guest g, which takes n more, with regard to the
// other units of its core.
func (t *table) rank(i, g, n int, takers []int) int {
	const completes, whole, broken, breaks = 0, 1, 2, 3
	open, others := 0, false // siblings that can be taken along; siblings of a third guest
	for _, j := range t.units[i].core.units {
		u := &t.units[j]
		owner := takers[j]
		if owner == nobody && !u.leaving {
			owner = u.holder
		}
		switch {
		case owner == g:
			return completes
		case takers[j] == nobody && u.may[g] && u.holder == t.units[i].holder && u.leaving == t.units[i].leaving:
			open++
		case owner != nobody:
			others = true
		}
	}
	switch {
	case open == len(t.units[i].core.units) && n >= open:
		return whole
	case others:
		return broken
	}
	return breaks
}
