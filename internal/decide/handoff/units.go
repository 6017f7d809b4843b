package handoff

import (
	"cmp"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// nobody stands for the holder of a free CPU.
const nobody = -1

// unit is what one guest has as a whole: a CPU, or with Rules.WholeCores a core.
type unit struct {
	cpus []*cpu
	node topology.NodeID
	core *core
	// holder is the guest that has the unit, nobody if it is free. If guests share a
	// core that should be whole, it is the one with the anchor, else with the most CPUs.
	holder int
	// leaving: the holder has been asked to release all that it has of the unit.
	leaving bool
	// stuck: the holder cannot be asked.
	stuck bool
	// may holds the guests that may have the unit, by position.
	may []bool
}

// core is a physical core.
type core struct {
	units []int
	// guests have units of the core, or their anchor on it; ascending.
	guests []int
}

func (c *core) has(g int) bool { return slices.Contains(c.guests, g) }

// cpu is one CPU with its present grant.
type cpu struct {
	id      topology.CPUID
	holder  int // position of the guest; nobody: free
	grant   Grant
	granted bool
}

// table is a decision's view of guests and units. Guests are in the order of their
// names.
type table struct {
	in     Input
	guests []Guest
	wants  []int // in units
	steady []int // of wants, what is not brief
	least  []int // in units
	held   []int // in units that do not leave
	units  []unit
	size   int     // CPUs of a unit
	far    [][]int // by guest and node position
	nodes  map[topology.NodeID]int
	gone   []Grant // grants to guests that do not exist, or of CPUs that they do not mirror
}

// most is the greatest distance that the prices of an assignment count.
const most = 1023

func newTable(in Input) *table {
	t := &table{in: in, guests: slices.Clone(in.Guests), size: 1, nodes: map[topology.NodeID]int{}}
	slices.SortFunc(t.guests, func(a, b Guest) int { return cmp.Compare(a.Name, b.Name) })
	for i := range in.Topology.Nodes {
		t.nodes[in.Topology.Nodes[i].ID] = i
	}
	t.addUnits()
	for g := range t.guests {
		row := make([]int, len(in.Topology.Nodes))
		for i := range in.Topology.Nodes {
			row[i] = t.distance(t.guests[g].Home, in.Topology.Nodes[i].ID)
		}
		t.far = append(t.far, row)
	}
	return t
}

// distance is measured latency in tenths of the home's own, else SLIT.
func (t *table) distance(home, node topology.NodeID) int {
	if t.in.Topology.LatencyComplete() {
		own, _ := t.in.Topology.Latency(home, home)
		there, ok := t.in.Topology.Latency(home, node)
		if ok && own > 0 {
			return int(min(math.Round(10*there/own), most))
		}
	}
	d, ok := t.in.Topology.Distance(home, node)
	if !ok {
		return most
	}
	return min(d, most)
}

// away is the distance of a unit from a guest's home.
func (t *table) away(g int, u *unit) int {
	i, ok := t.nodes[u.node]
	if !ok {
		return most
	}
	return t.far[g][i]
}

func (t *table) addUnits() {
	in := &t.in
	position := map[string]int{}
	mirrored := make([]topology.CPUSet, len(t.guests))
	for g := range t.guests {
		position[t.guests[g].Name] = g
		mirrored[g] = topology.SetOf(t.guests[g].Mirror...)
	}
	cpus := map[topology.CPUID]*cpu{}
	managed := in.Rules.CPUs.Intersect(in.Topology.CPUSet())
	for id := range managed.All() {
		cpus[id] = &cpu{id: id, holder: nobody}
	}
	for _, grant := range in.Grants {
		g, known := position[grant.Guest]
		c, online := cpus[grant.CPU]
		if online {
			c.grant, c.granted = grant, true
		}
		if !known || !online || !mirrored[g].Contains(grant.CPU) {
			t.gone = append(t.gone, grant)
			continue
		}
		c.holder = g
	}
	index, cores := map[topology.CPUID]int{}, map[topology.CoreID]*core{}
	for id := range managed.All() {
		seen, _ := in.Topology.CPU(id)
		first := in.core(id)
		at, ok := index[first]
		if !ok {
			at = len(t.units)
			index[first] = at
			if cores[seen.Core] == nil {
				cores[seen.Core] = &core{}
			}
			cores[seen.Core].units = append(cores[seen.Core].units, at)
			t.units = append(t.units,
				unit{node: seen.Node, core: cores[seen.Core], holder: nobody, may: make([]bool, len(t.guests))})
		}
		t.units[at].cpus = append(t.units[at].cpus, cpus[id])
		t.size = max(t.size, len(t.units[at].cpus))
	}
	t.settleUnits(mirrored, index)
}

// settleUnits finds the holder of each unit, and who may have it.
func (t *table) settleUnits(mirrored []topology.CPUSet, index map[topology.CPUID]int) {
	anchors := map[int]int{}
	for g := range t.guests {
		if at, ok := index[t.in.core(t.guests[g].Mirror[0])]; ok {
			anchors[at] = g
		}
	}
	for i := range t.units {
		u := &t.units[i]
		owner, anchored := anchors[i]
		for g := range t.guests {
			u.may[g] = !anchored || owner == g
			for _, c := range u.cpus {
				u.may[g] = u.may[g] && mirrored[g].Contains(c.id)
			}
		}
		t.settleHolder(u, owner, anchored)
		if anchored && !u.core.has(owner) {
			u.core.guests = append(u.core.guests, owner)
		}
		if u.holder != nobody && !u.leaving && !u.core.has(u.holder) {
			u.core.guests = append(u.core.guests, u.holder)
		}
		slices.Sort(u.core.guests)
	}
}

func (t *table) settleHolder(u *unit, owner int, anchored bool) {
	count := map[int]int{}
	for _, c := range u.cpus {
		if c.holder != nobody {
			count[c.holder]++
		}
	}
	for g := range t.guests { // in order, so that equal counts have one outcome
		if n := count[g]; n > 0 && (u.holder == nobody || n > count[u.holder]) {
			u.holder = g
		}
	}
	if anchored && count[owner] > 0 {
		u.holder = owner
	}
	if u.holder == nobody {
		return
	}
	u.leaving = true
	for _, c := range u.cpus {
		if c.holder == u.holder {
			u.leaving = u.leaving && c.grant.Leaving
			u.stuck = u.stuck || c.grant.Stuck
		}
	}
	u.stuck = (u.stuck || t.guests[u.holder].Frozen) && !u.leaving
}
