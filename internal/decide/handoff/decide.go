package handoff

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Decide returns what to do now, and what to remember for the next decision. The
// error is that of Input.Check: nothing is decided on input that cannot be right.
//
// The same input gives the same result. If all that is returned is carried out and
// demands stay as they are, a few decisions later there is nothing more to do.
func Decide(in Input) (Decision, Memory, error) {
	in.Rules = in.Rules.withDefaults()
	if err := in.Check(); err != nil {
		return Decision{}, in.Memory, err
	}
	t := newTable(in)
	d := &decider{table: t, memory: in.Memory}
	d.memory.Guests, d.memory.Steady = map[string]Wanted{}, map[string]Wanted{}
	d.want()
	d.count()
	d.shares, d.forced = t.shares()
	d.takers = t.assign(d.shares, d.forced)
	for i := range t.units {
		d.handOver(i)
	}
	d.releaseGone()
	if len(d.out.Takes)+len(d.out.Releases) == 0 {
		d.tidy()
	}
	d.report()
	d.order()
	return d.out, d.memory, nil
}

// decider collects a decision.
type decider struct {
	*table
	memory Memory
	shares []int
	forced bool
	takers []int
	out    Decision
}

// want applies the demands to what was remembered.
func (d *decider) want() {
	demands := map[string]Demand{}
	for _, demand := range d.in.Demands {
		demands[demand.Guest] = demand
	}
	for g := range d.guests {
		m := &d.guests[g]
		most := 0
		for i := range d.units {
			if d.units[i].may[g] {
				most += len(d.units[i].cpus)
			}
		}
		least := min(m.Min, most)
		demand, ok := demands[m.Name]
		w, s := d.in.Memory.Guests[m.Name], d.in.Memory.Steady[m.Name]
		if ok || w.CPUs == 0 {
			w = d.in.Rules.want(w, d.in.Rules.need(demand, least, most), d.in.Now)
			s = d.in.Rules.want(s, d.in.Rules.need(demand.steady(), least, most), d.in.Now)
		}
		d.memory.Guests[m.Name], d.memory.Steady[m.Name] = w, s
		for _, low := range []time.Time{w.LowSince, s.LowSince} {
			if !low.IsZero() {
				d.again(low.Add(d.in.Rules.Settle))
			}
		}
		d.least = append(d.least, d.inUnits(least))
		d.wants = append(d.wants, d.inUnits(max(least, min(w.CPUs, most))))
		d.steady = append(d.steady, min(d.inUnits(max(least, min(s.CPUs, most))), d.wants[g]))
	}
}

// inUnits rounds CPUs up to whole units.
func (t *table) inUnits(cpus int) int { return (cpus + t.size - 1) / t.size }

// count sets what each guest has. A frozen guest wants what it has.
func (d *decider) count() {
	d.held = make([]int, len(d.guests))
	for i := range d.units {
		if u := &d.units[i]; u.holder != nobody && !u.leaving {
			d.held[u.holder]++
		}
	}
	for g := range d.guests {
		if d.guests[g].Frozen {
			d.wants[g] = max(d.least[g], d.held[g])
			d.steady[g] = d.wants[g]
		}
	}
}

func (d *decider) again(at time.Time) {
	if at.After(d.in.Now) && (d.out.Again.IsZero() || at.Before(d.out.Again)) {
		d.out.Again = at
	}
}

// handOver carries the assignment of one unit out, as far as it can be now.
func (d *decider) handOver(i int) {
	u := &d.units[i]
	g, reason := d.takers[i], ReasonCore
	if g == nobody {
		if g = u.holder; g == nobody || u.leaving {
			return
		}
	} else {
		reason = d.reason(g, u)
	}
	free := true // of others
	for _, c := range u.cpus {
		mine := c.holder == g && !c.grant.Leaving
		if c.granted && !mine {
			free = false
			d.release(c, g, reason)
		}
	}
	if !free {
		return
	}
	for _, c := range u.cpus {
		if !c.granted {
			d.out.Takes = append(d.out.Takes,
				Take{CPU: c.id, Guest: d.guests[g].Name, VCPU: d.vcpu(g, c.id), Reason: reason})
		}
	}
}

// reason says why guest g takes a unit.
func (d *decider) reason(g int, u *unit) Reason {
	switch {
	case d.held[g] < d.least[g]:
		return ReasonMinimum
	case u.holder != nobody && u.holder != g && d.wants[u.holder] >= d.held[u.holder]:
		return ReasonShare
	}
	return ReasonDemand
}

// release asks the holder of a CPU for it, and forces it if it cannot be asked, or was
// asked a period ago and the taker has less than its minimum.
func (d *decider) release(c *cpu, taker int, reason Reason) {
	if c.holder == nobody {
		return // its grant is of a guest that is gone: see releaseGone
	}
	force := !c.grant.Leaving && (c.grant.Stuck || d.guests[c.holder].Frozen)
	if c.grant.Leaving {
		late := c.grant.Since.Add(d.in.Rules.Period)
		if reason != ReasonMinimum || c.holder == taker {
			return
		}
		if d.again(late); d.in.Now.Before(late) {
			return
		}
		force = true
	}
	d.out.Releases = append(d.out.Releases, Release{
		CPU: c.id, Guest: d.guests[c.holder].Name, VCPU: d.vcpu(c.holder, c.id),
		For: d.guests[taker].Name, Force: force, Reason: reason,
	})
}

// vcpu returns the vCPU that mirrors a CPU; units are only given to guests that mirror
// all of their CPUs.
func (t *table) vcpu(g int, c topology.CPUID) guest.VCPUID {
	v, _ := t.guests[g].VCPUOn(c)
	return v
}

// releaseGone takes back the grants that no guest can use.
func (d *decider) releaseGone() {
	for _, grant := range d.gone {
		if !grant.Leaving {
			d.out.Releases = append(d.out.Releases,
				Release{CPU: grant.CPU, Guest: grant.Guest, VCPU: -1, Force: true, Reason: ReasonGone})
		}
	}
}

// report lists what each guest wants, is due, and has.
func (d *decider) report() {
	for g := range d.guests {
		has := 0
		for i := range d.units {
			for _, c := range d.units[i].cpus {
				if c.holder == g && !c.grant.Leaving {
					has++
				}
			}
		}
		d.out.Targets = append(d.out.Targets, Target{
			Guest: d.guests[g].Name, Want: d.wants[g] * d.size, Steady: d.steady[g] * d.size,
			CPUs: d.shares[g] * d.size, Has: has,
		})
	}
}

// order puts minimums first, then the nearest takes and the farthest releases.
func (d *decider) order() {
	away := func(name string, id topology.CPUID) int {
		g := slices.IndexFunc(d.guests, func(g Guest) bool { return g.Name == name })
		seen, ok := d.in.Topology.CPU(id)
		if g < 0 || !ok {
			return most
		}
		return d.away(g, &unit{node: seen.Node})
	}
	later := func(r Reason) int {
		if r == ReasonMinimum {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(d.out.Takes, func(a, b Take) int {
		return cmp.Or(cmp.Compare(later(a.Reason), later(b.Reason)),
			cmp.Compare(away(a.Guest, a.CPU), away(b.Guest, b.CPU)), cmp.Compare(a.CPU, b.CPU))
	})
	slices.SortStableFunc(d.out.Releases, func(a, b Release) int {
		return cmp.Or(cmp.Compare(later(a.Reason), later(b.Reason)),
			cmp.Compare(away(b.Guest, b.CPU), away(a.Guest, a.CPU)), cmp.Compare(a.CPU, b.CPU))
	})
}
