package handoff_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

// oracle tries every way to give each unit to a guest or to nobody. It shares no
// code with the decision.
type oracle struct {
	in    *handoff.Input
	units [][]topology.CPUID
	least []int
	wants []int
	// steady is the part of wants that is not brief.
	steady []int
	holds  []int // by unit; -1: free
	stuck  []bool
	may    [][]bool
}

func newOracle(in *handoff.Input, targets []handoff.Target) *oracle {
	o := &oracle{in: in}
	done := map[topology.CPUID]bool{}
	for _, c := range in.Topology.CPUs {
		if done[c.ID] {
			continue
		}
		unit := []topology.CPUID{c.ID}
		if in.Rules.WholeCores {
			unit = c.Siblings.IDs()
		}
		for _, id := range unit {
			done[id] = true
		}
		o.units = append(o.units, unit)
	}
	size := len(o.units[0])
	for i, g := range in.Guests {
		o.least = append(o.least, (g.Min+size-1)/size)
		o.wants = append(o.wants, targets[i].Want/size)
		o.steady = append(o.steady, targets[i].Steady/size)
	}
	for _, unit := range o.units {
		o.addUnit(unit)
	}
	return o
}

func (o *oracle) addUnit(unit []topology.CPUID) {
	holder, stuck := -1, false
	for _, grant := range o.in.Grants {
		if slices.Contains(unit, grant.CPU) {
			holder = slices.IndexFunc(o.in.Guests, func(g handoff.Guest) bool { return g.Name == grant.Guest })
			stuck = stuck || grant.Stuck
		}
	}
	may := make([]bool, len(o.in.Guests))
	for g, owner := range o.in.Guests {
		may[g] = !stuck || g == holder
		for _, other := range o.in.Guests {
			if other.Name != owner.Name && slices.Contains(unit, other.Mirror[0]) {
				may[g] = false
			}
		}
		for _, id := range unit {
			may[g] = may[g] && slices.Contains(owner.Mirror, id)
		}
	}
	o.holds, o.stuck, o.may = append(o.holds, holder), append(o.stuck, stuck), append(o.may, may)
}

// each calls f with every assignment: the guest of each unit, or -1.
func (o *oracle) each(f func(to []int)) {
	to := make([]int, len(o.units))
	var rec func(i int)
	rec = func(i int) {
		if i == len(to) {
			f(to)
			return
		}
		for g := -1; g < len(o.in.Guests); g++ {
			if g < 0 || o.may[i][g] {
				to[i] = g
				rec(i + 1)
			}
		}
	}
	rec(0)
}

// shareCost orders numbers of units, less is better: minimums, fairness within them, units for demand that is not
// brief, fairness within them, units in use, fairness.
func (o *oracle) shareCost(n []int) [6]float64 {
	var cost [6]float64
	for g := range n {
		weight := float64(o.in.Guests[g].Weight)
		for i, limit := range []int{o.least[g], o.steady[g], o.wants[g]} {
			units := min(n[g], limit)
			cost[2*i] -= float64(units)
			cost[2*i+1] += float64(units*units) / weight
		}
	}
	for i := range cost {
		cost[i] = math.Round(cost[i]*1e6) / 1e6
	}
	return cost
}

func (o *oracle) count(to []int) []int {
	n := make([]int, len(o.in.Guests))
	for _, g := range to {
		if g >= 0 {
			n[g]++
		}
	}
	return n
}

// handCost orders assignments with the same numbers: units that change hands,
// distances retained, distances taken, releases.
func (o *oracle) handCost(to []int) [4]int {
	var cost [4]int
	for i, g := range to {
		if g < 0 {
			continue
		}
		cpu, _ := o.in.Topology.CPU(o.units[i][0])
		away, _ := o.in.Topology.Distance(o.in.Guests[g].Home, cpu.Node)
		if o.holds[i] == g {
			cost[1] += away
			continue
		}
		cost[0]++
		cost[2] += away
		if o.holds[i] >= 0 {
			cost[3]++
			if o.has(g) < o.least[g] { // it takes what is free before what is near
				cost[2] += 1 << 13
			}
		}
	}
	return cost
}

// TestDecide_IsTheOptimum compares shares and hand-overs with all possible ones on small
// hosts in random states.
func TestDecide_IsTheOptimum(t *testing.T) {
	small := []string{"nodes:2 cores:3", "nodes:3 cores:2 distances:10,15,30", "nodes:2 cores:2 threads:2",
		"nodes:3 cores:2 threads:2 distances:10,15,30", "nodes:1 cores:5"}
	rapid.Check(t, func(t *rapid.T) {
		in := draw(t, small)
		in.Guests = in.Guests[:min(3, len(in.Guests))]
		if len(in.Topology.CPUs) > 8 {
			in.Rules.WholeCores = true
		}
		minimums(t, &in)
		for i := range in.Guests {
			in.Demands = append(in.Demands, drawDemand(t, &in, &in.Guests[i]))
		}
		drawGrants(t, &in)
		d, _, err := handoff.Decide(in)
		if err != nil {
			t.Fatal(err)
		}
		o := newOracle(&in, d.Targets)
		n := make([]int, len(in.Guests))
		for g := range n {
			n[g] = d.Targets[g].CPUs / len(o.units[0])
		}
		o.compare(t, n, o.decided(&d, n))
	})
}

// compare fails if some assignment has better shares, or the same shares at less cost.
func (o *oracle) compare(t *rapid.T, n, decided []int) {
	shares, best := o.shareCost(n), o.handCost(decided)
	o.each(func(to []int) {
		m := o.count(to)
		for g := range m {
			if m[g] > o.wants[g] {
				return
			}
		}
		if c := o.shareCost(m); slices.Compare(c[:], shares[:]) < 0 {
			t.Fatalf("shares %v cost %v, %v cost %v", n, shares, m, c)
		}
		if c := o.handCost(to); slices.Equal(m, n) && slices.Compare(c[:], best[:]) < 0 {
			t.Fatalf("hand-overs to %v cost %v, to %v %v", decided, best, to, c)
		}
	})
}

// decided returns the guest of each unit after the decision has been carried out; of
// a guest's units beyond its share the farthest do not count.
func (o *oracle) decided(d *handoff.Decision, n []int) []int {
	to := slices.Clone(o.holds)
	index := func(name string) int {
		return slices.IndexFunc(o.in.Guests, func(g handoff.Guest) bool { return g.Name == name })
	}
	set := func(cpu topology.CPUID, name string) {
		for i, unit := range o.units {
			if slices.Contains(unit, cpu) {
				to[i] = index(name)
			}
		}
	}
	for _, take := range d.Takes {
		set(take.CPU, take.Guest)
	}
	for _, r := range d.Releases {
		if r.Reason != handoff.ReasonNearer && r.Reason != handoff.ReasonCore {
			set(r.CPU, r.For)
		}
	}
	for g := range n {
		for o.count(to)[g] > n[g] {
			worst := -1
			for i := range to {
				if to[i] == g && o.holds[i] == g && (worst < 0 || o.away(g, i) > o.away(g, worst)) {
					worst = i
				}
			}
			if worst < 0 {
				break
			}
			to[worst] = -1
		}
	}
	return to
}

// has counts the units that a guest has before the decision.
func (o *oracle) has(g int) int {
	n := 0
	for _, h := range o.holds {
		if h == g {
			n++
		}
	}
	return n
}

func (o *oracle) away(g, unit int) int {
	cpu, _ := o.in.Topology.CPU(o.units[unit][0])
	away, _ := o.in.Topology.Distance(o.in.Guests[g].Home, cpu.Node)
	return away
}

// drawGrants gives units to random guests that may have them, some of them stuck.
func drawGrants(t *rapid.T, in *handoff.Input) {
	o := newOracle(in, make([]handoff.Target, len(in.Guests)))
	for i, unit := range o.units {
		g := rapid.IntRange(-1, len(in.Guests)-1).Draw(t, "holder")
		if g < 0 || !o.may[i][g] {
			continue
		}
		stuck := len(in.Guests) > 1 && rapid.IntRange(0, 9).Draw(t, "stuck") == 0
		for _, id := range unit {
			in.Grants = append(in.Grants, handoff.Grant{CPU: id, Guest: in.Guests[g].Name, Stuck: stuck, Since: start})
		}
	}
}
