package schedule

import (
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Request asks for a host and nodes for a VM.
type Request struct {
	Spec     guest.Spec // with a name; zero fields have their documented defaults
	Machine  string     // the type of its machine (fleet.Machine.Type); empty: the default
	Affinity fleet.Affinity
	// Host is the only host that may be chosen; empty: any.
	Host string
	// Not are hosts that may not be chosen, although VMs of the group on them count.
	Not []string
	// Without is a host that counts as if it were not in the fleet, with the VMs of groups on it.
	Without string
	// WhatIf says that the request is not one of those from which the fleet learns what is asked for.
	WhatIf bool
}

// Decision is the host and the placement that was chosen, with the reasons.
type Decision struct {
	Host      string          `json:"host"`
	Group     string          `json:"group,omitempty"`
	Spec      guest.Spec      `json:"spec"` // normalized
	Placement guest.Placement `json:"placement"`
	Why       Why             `json:"why"`
}

// Why gives the reasons for a host. Place has those for its nodes.
type Why struct {
	Cost   float64 `json:"cost"`   // see the package comment; 0 if the VM needs uneven cells
	Fitted int     `json:"fitted"` // hosts that the VM fits on, by their summaries
	// Excluded are the hosts that were not candidates, and why.
	Excluded []Excluded `json:"excluded,omitempty"`
	// Next are the best of the other hosts.
	Next  []Next    `json:"next,omitempty"`
	Place place.Why `json:"place"`
}

// Next is a host that was ranked below the chosen one, or that refused the VM.
type Next struct {
	Host    string   `json:"host"`
	Cost    *float64 `json:"cost,omitempty"`
	Behind  Figure   `json:"behind,omitempty"`  // the figure that decided against it
	Refused string   `json:"refused,omitempty"` // by package place, which is exact
}

// tries is the number of hosts that package place is asked about before a decision
// ends without a host, if summaries rank more of them.
const tries = 64

// first is the number of candidates that are looked for first: one, and those that Why names.
const first = 4

// candidate is a host that a VM fits on by the host's summary.
type candidate struct {
	host int
	rank
}

// Decide chooses the host and the nodes for a VM. It does not change the hosts: call
// Add. The error is a *NoHostError if no host takes the VM, else it says what is wrong with
// the request.
func (f *Fleet) Decide(r Request) (*Decision, error) {
	spec, err := r.Spec.Normalize()
	if err != nil {
		return nil, err
	}
	if spec.Name == "" {
		return nil, errors.New("a VM without a name: give each request a name, which must differ on a host")
	}
	if err := r.Affinity.Validate(); err != nil {
		return nil, fmt.Errorf("VM %s: %w", spec.Name, err)
	}
	s := shapeOf(&spec)
	s.machine = machineOf(r.Machine)
	if f.mix.sum == 0 {
		f.recount() // the fleet had no hosts when it was made
	}
	if !r.WhatIf {
		f.mix.add(s)
	}
	if f.mix.sum >= f.mix.next {
		f.recount()
	}
	rule, err := f.rule(&r)
	if err != nil {
		return nil, fmt.Errorf("VM %s: %w", spec.Name, err)
	}
	d := &Decision{Group: r.Affinity.Group, Spec: spec}
	found, counts := f.candidates(s, rule)
	d.Why.Fitted = found.all
	d.Why.Excluded = excluded(counts)
	placed, more := f.try(d, found, rule)
	if !placed && more && len(found.best) == first {
		found.best = f.classes[s].best(tries, rule.allows)[first:]
		found.all -= first
		placed, more = f.try(d, found, rule)
	}
	if !placed && !more {
		others, counts := f.uneven(s, rule, d.Why.Next, counts)
		d.Why.Excluded = excluded(counts)
		placed, more = f.try(d, others, rule)
	}
	if !placed {
		return nil, &NoHostError{VM: spec.Name, Excluded: d.Why.Excluded, Refused: d.Why.Next, Unproven: more}
	}
	return d, nil
}

// try asks package place about candidates, best first, until it places the VM on one. more
// says that there are more of them than it may be asked about.
func (f *Fleet) try(d *Decision, found shortlist, rule *rule) (placed, more bool) {
	for i, c := range found.best {
		if f.place(d, c, rule) == nil {
			d.Why.Next = append(d.Why.Next, f.next(c, found.best[i+1:])...)
			return true, false
		}
	}
	return false, found.all > len(found.best)
}

func excluded(counts map[reason]int) []Excluded {
	var out []Excluded
	for _, reason := range reasons {
		if n := counts[reason]; n > 0 {
			out = append(out, Excluded{reason, n})
		}
	}
	return out
}

// place asks package place for the nodes on a candidate.
func (f *Fleet) place(d *Decision, c candidate, rule *rule) error {
	h := f.hosts[c.host]
	p, why, err := f.placeOn(h, d.Spec, c.host, rule, f.cheapestNode(c))
	if err != nil && f.cheapestNode(c).Len() > 0 {
		p, why, err = f.placeOn(h, d.Spec, c.host, rule, topology.NodeSet{})
	}
	if err != nil {
		d.Why.Next = append(d.Why.Next, Next{Host: h.Name, Refused: err.Error()})
		return err
	}
	d.Host, d.Placement, d.Why.Cost, d.Why.Place = h.Name, p, c.cost, why
	return nil
}

// cheapestNode returns the node of a VM of one cell that takes the least from scarce
// shapes; empty: package place chooses. It knows distances, which matter for several cells, and
// measured load, which matters where CPUs are overcommitted.
func (f *Fleet) cheapestNode(c candidate) topology.NodeSet {
	if c.cells != 1 || f.policy.Overcommit > 1 {
		return topology.NodeSet{}
	}
	return topology.SetOf(f.hosts[c.host].rooms[c.room].node)
}

// placeOn asks package place about a host, within some of its nodes unless that set is empty.
func (f *Fleet) placeOn(
	h *host, spec guest.Spec, i int, rule *rule, within topology.NodeSet,
) (guest.Placement, place.Why, error) {
	if !within.IsEmpty() {
		if !spec.Limits.Nodes.IsEmpty() {
			within = within.Intersect(spec.Limits.Nodes)
		}
		if spec.Limits.Nodes = within; within.IsEmpty() {
			return guest.Placement{}, place.Why{}, errors.New("the cheapest node is outside limits.nodes")
		}
	}
	seen := f.inventory(h)
	if seen == nil {
		return guest.Placement{}, place.Why{}, errors.New("the host has left the fleet")
	}
	if _, taken := find(seen.Guests, spec.Name); taken {
		return guest.Placement{}, place.Why{}, fmt.Errorf("the host has a VM named %s", spec.Name)
	}
	if err := rule.limitNodes(&spec, i, &seen.Topology); err != nil {
		return guest.Placement{}, place.Why{}, err
	}
	return place.Place(place.Request{Host: seen, Spec: spec, Policy: f.policy, WithoutAdvice: true})
}

// shortlist are the best candidates, in order.
type shortlist struct {
	best []candidate // at most tries
	all  int         // candidates
}

func (l *shortlist) add(host int, r *rank) {
	l.all++
	if len(l.best) == tries {
		if !r.less(&l.best[tries-1].rank) {
			return
		}
		l.best = l.best[:tries-1]
	}
	l.best = append(l.best, candidate{host, *r})
	for i := len(l.best) - 1; i > 0 && l.best[i].less(&l.best[i-1].rank); i-- {
		l.best[i], l.best[i-1] = l.best[i-1], l.best[i]
	}
}

// candidates returns the hosts on which a VM, divided equally, fits by their summaries. It
// counts the hosts that cannot be candidates.
func (f *Fleet) candidates(s shape, r *rule) (shortlist, map[reason]int) {
	var found shortlist
	counts := map[reason]int{}
	counts[cordoned], counts[unreachable] = f.closed[cordoned], f.closed[unreachable]
	counts[otherType] = f.others(s.machine)
	c := f.class(s)
	if !r.hasOthers() {
		found.all = c.fitting
		for _, i := range r.excluded() {
			if c.on[i].cells > 0 {
				found.all--
			}
		}
		switch {
		case r.only < 0:
			found.best = c.best(first, r.allows)
		case c.on[r.only].cells > 0 && r.allows(r.only):
			found.add(r.only, &c.on[r.only])
			found.all = 1
		default:
			found.all = 0
		}
		return found, counts
	}
	for i := range c.on {
		if !r.allows(i) {
			continue
		}
		on, h := &c.on[i], f.hosts[i]
		if r.excludes(i, h) == ofGroup {
			counts[ofGroup]++
		} else if on.cells > 0 {
			spread := *on
			spread.cost += f.weights.Spread * r.sameRack(h)
			found.add(i, &spread)
		}
	}
	return found, counts
}

// uneven returns the other hosts whose nodes in sum have what the VM needs, most memory
// first: package place may divide it into cells that differ. It counts the rest by what they
// lack. Refused are the hosts that were asked already.
func (f *Fleet) uneven(s shape, r *rule, refused []Next, counts map[reason]int) (shortlist, map[reason]int) {
	var found shortlist
	for i, h := range f.hosts {
		wasAsked := func(n Next) bool { return n.Host == h.Name }
		if !h.known || !r.allows(i) || r.excludes(i, h) != "" || slices.ContainsFunc(refused, wasAsked) {
			continue
		}
		reason := f.lacks(h, s)
		switch {
		case reason != "":
			counts[reason]++
		case s.uneven:
			found.add(i, &rank{cost: -float64(h.memory(s.page))})
		default:
			counts[noDivided]++
		}
	}
	return found, counts
}

// next names the three best of the other candidates.
func (f *Fleet) next(chosen candidate, others []candidate) []Next {
	var out []Next
	for i := range min(3, len(others)) {
		c := others[i]
		n := Next{Host: f.hosts[c.host].Name, Behind: chosen.decides(&c.rank)}
		if c.cells > 0 {
			n.Cost = &c.cost
		}
		out = append(out, n)
	}
	return out
}
