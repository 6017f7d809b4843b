package capacity

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Sets are the sets of a node's shared CPUs to which guests are confined: their vCPUs run on no other CPUs of the node,
// because of limits, a CPU pool or pins. Sets may be parts of others. Two sets that merely overlap are judged as if
// each had all of its CPUs.
type Sets struct {
	all   []confined
	order []int // ascending by number of CPUs
}

// confined is a set of CPUs.
type confined struct {
	cpus  topology.CPUSet
	count float64 // number of CPUs
	inner []int   // the sets that are parts of it
}

// Clone returns a copy that changes on its own.
func (s *Sets) Clone() Sets {
	c := Sets{slices.Clone(s.all), slices.Clone(s.order)}
	for i := range c.all {
		c.all[i].inner = slices.Clone(c.all[i].inner)
	}
	return c
}

// Len returns the number of sets.
func (s *Sets) Len() int { return len(s.all) }

// Count returns the number of CPUs of a set.
func (s *Sets) Count(i int) float64 { return s.all[i].count }

// Inner returns the sets that are parts of a set.
func (s *Sets) Inner(i int) []int { return s.all[i].inner }

// Find returns the position of a set; -1 if it is missing.
func (s *Sets) Find(cpus topology.CPUSet) int {
	return slices.IndexFunc(s.all, func(c confined) bool { return c.cpus.Equal(cpus) })
}

// Index returns the position of a set, and adds the set if it is missing.
func (s *Sets) Index(cpus topology.CPUSet) int {
	if i := s.Find(cpus); i >= 0 {
		return i
	}
	added := confined{cpus: cpus, count: float64(cpus.Len())}
	for i := range s.all {
		other := &s.all[i]
		switch common := float64(other.cpus.Common(cpus)); common {
		case other.count:
			added.inner = append(added.inner, i)
		case added.count:
			other.inner = append(other.inner, len(s.all))
		}
	}
	at, _ := slices.BinarySearchFunc(s.order, added.count, func(i int, count float64) int {
		return int(s.all[i].count - count)
	})
	s.order = slices.Insert(s.order, at, len(s.all))
	s.all = append(s.all, added)
	return len(s.all) - 1
}

// Demands computes the demand for the CPUs of each set. own is the demand of the guests confined to exactly that
// set. What a part of a set has no CPUs for is no demand for the rest of the set.
func (s *Sets) Demands(own, demands []float64) {
	for _, i := range s.order {
		demands[i] = own[i]
		for _, k := range s.all[i].inner {
			demands[i] += own[k] - s.Unmet(k, demands)
		}
	}
}

// Unmet returns how much of the demand for a set exceeds its CPUs.
func (s *Sets) Unmet(i int, demands []float64) float64 { return max(0, demands[i]-s.all[i].count) }

// confinement is what confined guests want of a node.
type confinement struct {
	sets    Sets
	own     []float64 // by set, see Demands
	demands []float64
}

// add adds the demand of a guest that is confined to some CPUs.
func (c *confinement) add(cpus topology.CPUSet, demand float64) {
	i := c.sets.Index(cpus)
	if i == len(c.own) {
		c.own = append(c.own, 0)
	}
	c.own[i] += demand
}

// unmet computes the demands, and returns how much of them has no CPU.
func (c *confinement) unmet() (sum float64) {
	c.demands = make([]float64, len(c.own))
	c.sets.Demands(c.own, c.demands)
	for i := range c.demands {
		sum += c.sets.Unmet(i, c.demands)
	}
	return sum
}

// Idle returns how many of some shared CPUs nobody wants; less than 0 if more are wanted than there are. Guests that
// may also run on other CPUs of the node leave these as long as the node has others for them.
func (r *Node) Idle(cpus topology.CPUSet) float64 {
	idle, count := float64(r.Shared.Len())-r.Demand, cpus.Len()
	if count == r.Shared.Len() {
		return idle
	}
	c, wanted := &r.confined, 0.0
	for i := range c.own {
		set := &c.sets.all[i]
		common := set.cpus.Common(cpus)
		if common == count { // it has all of them
			idle = min(idle, set.count-c.demands[i])
		}
		if float64(common) == set.count {
			wanted += c.own[i] - c.sets.Unmet(i, c.demands)
		}
	}
	return min(idle, float64(count)-wanted)
}

// DemandFor returns the demand for some shared CPUs if each guest's is divided evenly over the CPUs that it may use.
func (r *Node) DemandFor(cpus topology.CPUSet) float64 {
	c, sum, everywhere := &r.confined, 0.0, r.Demand
	for i := range c.own {
		set, demand := &c.sets.all[i], c.own[i]-c.sets.Unmet(i, c.demands)
		everywhere -= demand
		sum += demand * float64(set.cpus.Common(cpus)) / set.count
	}
	return sum + everywhere*float64(cpus.Len())/float64(max(1, r.Shared.Len()))
}

// ConfinedTo returns the part of a node's shared CPUs to which the vCPUs of a guest are confined, as observed, else as
// placed. It is empty if they may run on all of them or on none.
func ConfinedTo(shared topology.CPUSet, g *inventory.Guest) topology.CPUSet {
	part := part{of: shared, count: shared.Len()}
	part.addGuest(g)
	return part.cpus
}

// part is the part of a node's shared CPUs that some vCPUs may use; empty: all, or none.
type part struct {
	of    topology.CPUSet
	count int // number of CPUs of the whole
	whole bool
	cpus  topology.CPUSet
}

// add adds the CPUs that a vCPU may use.
func (p *part) add(cpus topology.CPUSet) {
	if p.whole {
		return
	}
	if common := cpus.Common(p.of); common < p.count {
		if common > 0 {
			p.cpus = p.cpus.Union(cpus.Intersect(p.of))
		}
		if p.cpus.Len() < p.count {
			return
		}
	}
	p.whole, p.cpus = true, topology.CPUSet{}
}

func (p *part) addGuest(g *inventory.Guest) {
	observed := false
	for i := range g.Seen.Threads {
		if t := &g.Seen.Threads[i]; t.VCPU != nil {
			observed = true
			p.add(t.Affinity)
		}
	}
	if !observed && g.Placement != nil {
		p.addPlacement(g.Placement)
	}
}

func (p *part) addPlacement(placed *guest.Placement) {
	for i := range placed.VCPUs {
		p.add(placed.VCPUs[i].CPUs)
	}
}

// holders finds the guests and claims that hold a host's resources. Holdings and guests are mostly in the same
// order, so that the next holding is of the same guest or of the next one.
type holders struct {
	host *inventory.Host
	at   int // position of the last guest
}

// confinedTo returns the part of a node's shared CPUs to which the guest or claim with this name is confined;
// empty: all of them, or none.
func (h *holders) confinedTo(shared topology.CPUSet, name string) topology.CPUSet {
	part := part{of: shared, count: shared.Len()}
	for k := range h.host.Guests {
		at := (h.at + k) % len(h.host.Guests)
		if g := &h.host.Guests[at]; g.Name == name {
			h.at = at
			part.addGuest(g)
			break
		}
	}
	for i := range h.host.Claims {
		if c := &h.host.Claims[i]; c.Name == name {
			part.addPlacement(&c.Placement)
		}
	}
	return part.cpus
}
