package balance

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// View answers what the guests of a host would lose if one of them left, or one came from
// another host. The loads are those of the request: what remains is predicted from them.
type View struct{ m *model }

// NewView returns the view of the host of a request.
func NewView(r Request) *View {
	r.Host = inOrder(r.Host)
	return &View{newModel(r)}
}

// Lost is what guests lose.
type Lost struct{ losses }

// Lost returns what the guests of the host lose.
func (v *View) Lost() Lost { return Lost{v.m.lost()} }

// Access is the number of CPUs that wait for memory.
func (l Lost) Access() float64 { return l.access }

// Wait is the number of CPUs in demand that wait for CPUs.
func (l Lost) Wait() float64 { return l.wait }

// Plus returns what the guests of two hosts lose together.
func (l Lost) Plus(o Lost) Lost {
	l.access += o.access
	l.wait += o.wait
	for i := range l.beyond {
		l.beyond[i] += o.beyond[i]
	}
	return l
}

// Saved returns how many CPUs less are lost after than before. Demand that only goes from
// one full node to another saves nothing.
func (l Lost) Saved(after Lost) float64 { return l.saved(after.losses) }

// Costs returns each guest's cost for each CPU that it demands, without prices of moves.
func (v *View) Costs() map[string]float64 {
	costs := make(map[string]float64, len(v.m.guests))
	for i := range v.m.guests {
		costs[v.m.guests[i].name()] = v.m.ownCost(&v.m.guests[i])
	}
	return costs
}

// Demand returns how many CPUs a guest demands; 0 if the host does not have it.
func (v *View) Demand(name string) float64 {
	if i := v.index(name); i >= 0 {
		return v.m.guests[i].demand
	}
	return 0
}

// Use returns the highest CPU use of some nodes: demand over CPUs.
func (v *View) Use(nodes topology.NodeSet) float64 {
	most := 0.0
	for i := range v.m.nodes {
		if nodes.Contains(v.m.nodes[i].id) {
			most = max(most, v.m.use(i))
		}
	}
	return most
}

func (v *View) index(name string) int {
	return slices.IndexFunc(v.m.guests, func(s subject) bool { return s.name() == name })
}

// Leave removes a guest from the view.
func (v *View) Leave(name string) {
	if i := v.index(name); i >= 0 {
		g := &v.m.guests[i]
		v.m.add(g, g.layout(), -1)
		v.m.guests = slices.Delete(v.m.guests, i, i+1)
		v.m.forget()
	}
}

// Arrive adds a guest of another host, with the load that it has there, at a placement. Its
// wait is predicted from the CPU use of its nodes.
func (v *View) Arrive(g inventory.Guest, spec guest.Spec, p guest.Placement) {
	m := v.m
	g.Seen.NodeLimits = nil
	if l := g.Seen.Load; l != nil {
		load := *l
		load.Remote = nil
		g.Seen.Load = &load
	}
	there := with(inventory.Host{Topology: m.host.Topology}, g, spec, p)
	s := m.subject(&there.Guests[0])
	l := m.currentLayout(&s, there.Holdings(""))
	s.layouts = []layout{l}
	m.guests = append(m.guests, s)
	m.add(&m.guests[len(m.guests)-1], &l, 1)
	m.forget()
}

// forget drops what was computed for the usage before a guest left or arrived.
func (m *model) forget() {
	m.clock++
	for i := range m.priced {
		m.priced[i], m.stamps[i] = m.nodeCost(i), m.clock
	}
}

// Clone returns a view of the same state that changes on its own.
func (v *View) Clone() *View {
	m := *v.m
	m.usage, m.guests = slices.Clone(m.usage), slices.Clone(m.guests)
	m.priced, m.stamps = slices.Clone(m.priced), slices.Clone(m.stamps)
	m.saved, m.near = slices.Clone(m.saved), nil
	m.cpuSets, m.savedSets = slices.Clone(m.cpuSets), slices.Clone(m.savedSets)
	for i := range m.cpuSets {
		m.cpuSets[i].Sets = m.cpuSets[i].Clone()
	}
	return &View{&m}
}
