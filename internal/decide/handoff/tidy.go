package handoff

import "slices"

// Tidying exchanges CPUs between guests that have the number that they are due, so
// that guests come nearer to their homes, or the siblings of a core to one guest.
// It waits until demands have settled, and makes one exchange at a time. The sum of
// distances, and then the number of divided cores, falls with each. Two guests swap
// only if both have more than their minimums, since each has one less meanwhile.

// exchange is two units that change hands; v may be free.
type exchange struct {
	u, v   int
	gain   int
	reason Reason
}

func (d *decider) tidy() {
	for i := range d.units {
		if u := &d.units[i]; u.leaving || slices.ContainsFunc(u.cpus, func(c *cpu) bool { return c.grant.Leaving }) {
			return
		}
	}
	quiet := d.memory.Tidied.Add(d.in.Rules.Tidy)
	for _, w := range d.memory.Guests {
		if w.Changed.After(d.memory.Tidied) {
			d.memory.Divided = 0
		}
		if at := w.Changed.Add(d.in.Rules.Settle); at.After(quiet) {
			quiet = at
		}
	}
	best, found := d.bestExchange()
	if !found {
		return
	}
	divided := 0
	for i := range d.units {
		if core := d.units[i].core.units; core[0] == i {
			divided += d.divided(core, nobody, nobody, nobody, nobody)
		}
	}
	if best.reason == ReasonCore && d.memory.Divided > 0 && divided >= d.memory.Divided {
		return
	}
	if d.in.Now.Before(quiet) {
		d.again(quiet)
		return
	}
	d.memory.Tidied, d.memory.Divided = d.in.Now, 0
	if best.reason == ReasonCore {
		d.memory.Divided = divided
	}
	d.trade(best)
}

// trade begins an exchange. No guest has less than its minimum meanwhile: a free unit
// is taken while the other one is released, and units that are beyond their holder's
// share are freed first.
func (d *decider) trade(e exchange) {
	u, v := &d.units[e.u], &d.units[e.v]
	for _, c := range v.cpus {
		switch {
		case c.granted:
			d.release(c, u.holder, e.reason)
		case v.holder == nobody:
			d.out.Takes = append(d.out.Takes, Take{
				CPU: c.id, Guest: d.guests[u.holder].Name, VCPU: d.vcpu(u.holder, c.id), Reason: e.reason,
			})
		}
	}
	if v.holder != nobody && d.held[v.holder] > d.shares[v.holder] {
		return
	}
	taker := v.holder
	if taker == nobody {
		taker = u.holder
	}
	for _, c := range u.cpus {
		d.release(c, taker, e.reason)
	}
}

// bestExchange finds the exchange that brings guests nearest to their homes; without
// one, an exchange that unites a core.
func (d *decider) bestExchange() (best exchange, found bool) {
	needed := d.needed()
	for i := range d.units {
		u := &d.units[i]
		if !d.tradable(i) || d.held[u.holder] > d.shares[u.holder] {
			continue
		}
		for j := range d.units {
			e, ok := d.exchange(i, j, needed)
			if ok && (!found || e.reason == ReasonNearer && best.reason == ReasonCore ||
				e.reason == best.reason && e.gain > best.gain) {
				best, found = e, true
			}
		}
	}
	return best, found
}

// tradable reports whether a unit has a holder that can release it.
func (d *decider) tradable(i int) bool {
	u := &d.units[i]
	if u.holder == nobody || u.stuck {
		return false
	}
	others := 0
	for g, ok := range u.may {
		if ok && g != u.holder {
			others++
		}
	}
	return others > 0 || !d.anchor(u)
}

// anchor reports whether a unit has the anchor of its holder.
func (d *decider) anchor(u *unit) bool {
	return slices.ContainsFunc(u.cpus, func(c *cpu) bool { return c.id == d.guests[u.holder].Mirror[0] })
}

// needed marks the units that each guest needs for its share: the nearest.
func (d *decider) needed() []bool {
	marks := make([]bool, len(d.units))
	for g := range d.guests {
		var own []int
		for i := range d.units {
			if d.units[i].holder == g {
				own = append(own, i)
			}
		}
		slices.SortStableFunc(own, func(a, b int) int { return d.away(g, &d.units[a]) - d.away(g, &d.units[b]) })
		for _, i := range own[:min(len(own), d.shares[g])] {
			marks[i] = true
		}
	}
	return marks
}

// exchange judges whether the holder of unit i should have unit j instead.
func (d *decider) exchange(i, j int, needed []bool) (exchange, bool) {
	u, v := &d.units[i], &d.units[j]
	b, a := u.holder, v.holder
	if i == j || a == b || !v.may[b] || v.stuck ||
		a == nobody && slices.ContainsFunc(v.cpus, func(c *cpu) bool { return c.granted }) {
		return exchange{}, false
	}
	gain := d.away(b, u) - d.away(b, v)
	surplus := a != nobody && d.held[a] > d.shares[a]
	switch {
	case a == nobody || surplus && !needed[j]:
	case surplus || !u.may[a] || d.held[a] <= d.least[a] || d.held[b] <= d.least[b]:
		return exchange{}, false
	default:
		gain += d.away(a, v) - d.away(a, u)
	}
	if gain > 0 {
		return exchange{i, j, gain, ReasonNearer}, true
	}
	if gain < 0 || u.node != v.node || surplus || d.in.Rules.WholeCores {
		return exchange{}, false
	}
	x, y := u.core.units, v.core.units
	unites := d.divided(x, i, b, j, a) + d.divided(y, i, b, j, a) - d.divided(x, i, a, j, b) - d.divided(y, i, a, j, b)
	return exchange{i, j, unites, ReasonCore}, unites > 0
}

// divided counts the guests beyond the first that have units of a core if unit i has
// holder x and unit j holder y.
func (d *decider) divided(core []int, i, x, j, y int) int {
	var seen []int
	for _, k := range core {
		h := d.units[k].holder
		switch k {
		case i:
			h = x
		case j:
			h = y
		}
		if h != nobody && !slices.Contains(seen, h) {
			seen = append(seen, h)
		}
	}
	return max(0, len(seen)-1)
}
