package balance

import (
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// model is a host reduced to what its cost depends on, so that a move is
// priced by a few sums over the nodes that it touches.
type model struct {
	host   *inventory.Host
	policy policy.Policy
	list   cost.List
	access *cost.Access
	nodes  []node
	guests []subject // as in the inventory, without those shut off
	sizes  []topology.Bytes
	asked  []asked // by node: what guests ask of it now
	saved  []asked // scratch of try
	near   []int   // scratch of touched
}

// node is what a node has to give.
type node struct {
	id        topology.NodeID
	cpus      float64 // CPUs but housekeeping
	usable    topology.CPUSet
	cores     int     // on which those are
	memory    float64 // bytes that guests may have
	bandwidth float64 // MB a second; 0: not measured
	host      float64 // CPUs that the host itself uses
	began     float64 // use of its CPUs before anything moves
}

// asked is what guests ask of a node.
type asked struct {
	cpu, mem  float64 // CPUs asked for by vCPUs here, and by those whose memory is here
	bound     float64 // the part of mem that depends on memory
	traffic   float64 // MB a second to memory here
	vcpus     float64
	dedicated float64           // CPUs that guests have for themselves, in use or not
	alone     float64           // the part of cpu that runs on those
	held      float64           // bytes promised
	left      [maxSizes]float64 // bytes left by page size, small pages first
	homes     int               // guests that got another layout, which promises something here
}

// maxSizes is how many page sizes are told apart: small pages, and the four
// sizes that arm64 has pools of, used or not.
const maxSizes = 5

func newModel(r Request) *model {
	p := r.Policy.WithDefaults()
	m := &model{
		host:   r.Host,
		policy: p,
		list:   cost.NewList(p),
		access: cost.NewAccess(&r.Host.Topology),
		sizes:  []topology.Bytes{0},
	}
	rooms := capacity.Available(r.Host, p, "")
	m.nodes = make([]node, len(rooms))
	m.asked = make([]asked, len(rooms))
	m.saved = make([]asked, len(rooms))
	for i := range rooms {
		m.addNode(i, &rooms[i])
	}
	m.addGuests(r)
	for _, l := range r.Host.Load { // what is no guest's is the host's own
		if i := m.position(l.Node); i >= 0 && l.IsValid() {
			m.nodes[i].host = max(0, l.CPU-m.usedByGuests(i))
		}
	}
	for i := range m.nodes {
		m.nodes[i].began = m.use(i)
	}
	return m
}

func (m *model) addNode(i int, room *capacity.Node) {
	n, t := &m.nodes[i], &m.host.Topology
	n.id = room.Node
	n.usable = room.Shared
	n.cpus = float64(room.CPUs.Len() - room.Housekeeping.Len())
	n.memory = float64(room.Memory - room.KeepFree)
	n.bandwidth, _ = t.Bandwidth(n.id, n.id)
	for c := range n.usable.All() {
		if cpu, ok := t.CPU(c); ok {
			if first, _ := cpu.Siblings.Intersect(n.usable).First(); first == c {
				n.cores++
			}
		}
	}
	a := &m.asked[i]
	a.held, a.vcpus, a.left[0] = float64(room.Promised), room.Load, float64(room.Left)
	a.dedicated = n.cpus - float64(room.Shared.Len())
	if room.Left == 0 { // more than all may be promised: then less than nothing is left
		small := n.memory
		for _, h := range room.Holders {
			if h.PageSize == 0 {
				small -= float64(h.Memory())
			}
		}
		for _, p := range t.Nodes[i].HugePages {
			small -= float64(p.Total) * float64(p.Size)
		}
		a.left[0] = min(0, small)
	}
	for _, h := range room.Huge {
		if s := m.size(h.Size); s > 0 {
			a.left[s] = float64(h.Free) * float64(h.Size)
		}
	}
}

// size returns the index of a page size; -1 beyond the sizes told apart.
func (m *model) size(s topology.Bytes) int {
	for i, have := range m.sizes {
		if have == s {
			return i
		}
	}
	if len(m.sizes) == maxSizes {
		return -1
	}
	m.sizes = append(m.sizes, s)
	return len(m.sizes) - 1
}

func (m *model) position(id topology.NodeID) int {
	for i := range m.nodes {
		if m.nodes[i].id == id {
			return i
		}
	}
	return -1
}

// usedByGuests is what guests got of a node's CPUs, by where they may run.
func (m *model) usedByGuests(i int) float64 {
	used := 0.0
	for k := range m.guests {
		g := &m.guests[k]
		for _, s := range g.layout().on {
			if s.node == i && g.load != nil {
				used += s.cpu * g.load.CPU
			}
		}
	}
	return used
}

// use is the share of a node's CPUs that is asked for; above 1 guests wait.
func (m *model) use(i int) float64 { return m.nodes[i].use(&m.asked[i]) }

// use is the share of all CPUs that is asked for, or of those that guests
// share, whichever is more.
func (n *node) use(a *asked) float64 {
	if n.cpus == 0 {
		return 0
	}
	use := (a.cpu + n.host) / n.cpus
	if a.dedicated > slack && a.dedicated < n.cpus-slack {
		use = max(use, (a.cpu-a.alone+n.host)/(n.cpus-a.dedicated))
	}
	if use > 1 && use < 1+slack {
		return 1 // a full node: the rest is what sums lose, and one asked for more costs far more
	}
	return use
}

// limit is how many vCPUs a node may carry that share its CPUs.
func (m *model) limit(i int) float64 {
	return m.policy.Overcommit * (m.nodes[i].cpus - m.asked[i].dedicated)
}

func (m *model) memoryUse(i int) float64 {
	if m.nodes[i].memory <= 0 {
		return 0
	}
	return m.asked[i].held / m.nodes[i].memory
}

// busy is the share of a node's memory bandwidth in use; 0 if not known.
func (m *model) busy(i int) float64 {
	if m.nodes[i].bandwidth == 0 {
		return 0
	}
	return m.asked[i].traffic / m.nodes[i].bandwidth
}

// nodeCost is the part of the host's cost that a node's guests share.
func (m *model) nodeCost(i int) float64 {
	a := &m.asked[i]
	load := m.list.Weight(cost.Load) / 2
	return load*(a.cpu*m.list.CPULoad(m.use(i))+a.mem*m.list.MemoryLoad(m.memoryUse(i))) +
		m.list.Weight(cost.Bandwidth)*a.bound*cost.Contention(m.busy(i))
}

// total is the host's cost, the prices of moves made included.
func (m *model) total() float64 {
	sum := 0.0
	for i := range m.nodes {
		sum += m.nodeCost(i)
	}
	for i := range m.guests {
		sum += m.guests[i].fixedCost()
	}
	return sum
}

// own is what a guest costs for each CPU it asks for, without prices of moves.
func (m *model) own(g *subject) float64 {
	l := g.layout()
	sum := g.intensity * l.access
	load := m.list.Weight(cost.Load) / 2
	for _, s := range l.on {
		sum += load*(s.cpu*m.list.CPULoad(m.use(s.node))+s.mem*m.list.MemoryLoad(m.memoryUse(s.node))) +
			m.list.Weight(cost.Bandwidth)*g.intensity*s.mem*cost.Contention(m.busy(s.node))
	}
	return sum
}

// add puts a guest's layout on its nodes (sign 1) or takes it off (sign -1).
func (m *model) add(g *subject, l *layout, sign float64) {
	for _, s := range l.on {
		a := &m.asked[s.node]
		if l.homes != nil {
			a.homes += int(sign)
		}
		a.cpu += sign * g.demand * s.cpu
		a.mem += sign * g.demand * s.mem
		a.bound += sign * g.demand * g.intensity * s.mem
		a.traffic += sign * g.mbps * s.mem
		a.vcpus += sign * s.vcpus
		a.dedicated += sign * s.dedicated
		a.alone += sign * g.demand * s.alone
		a.held += sign * s.bytes
		if g.size >= 0 {
			a.left[g.size] -= sign * s.bytes
		}
	}
}

// change is a guest that gets another of its layouts.
type change struct{ guest, layout int }

// try returns by how much the host's cost would rise with the changes, and
// whether they are allowed; nothing is changed.
func (m *model) try(changes ...change) (rise float64, ok bool) {
	touched := m.touched(changes)
	before, peak := 0.0, 0.0
	for _, i := range touched {
		m.saved[i] = m.asked[i]
		before += m.nodeCost(i)
		peak = max(peak, m.use(i))
	}
	for _, c := range changes {
		g := &m.guests[c.guest]
		m.add(g, g.layout(), -1)
		m.add(g, &g.layouts[c.layout], 1)
		rise += g.costOf(&g.layouts[c.layout]) - g.fixedCost()
	}
	ok = true
	for _, i := range touched {
		rise += m.nodeCost(i)
		ok = ok && m.holds(i, &m.saved[i], peak)
	}
	for _, i := range touched {
		m.asked[i] = m.saved[i]
	}
	return rise - before, ok
}

// touched lists the nodes that changes concern, each once; valid until it is
// asked again.
func (m *model) touched(changes []change) []int {
	out := m.near[:0]
	note := func(l *layout) {
	next:
		for _, s := range l.on {
			for _, have := range out {
				if have == s.node {
					continue next
				}
			}
			out = append(out, s.node)
		}
	}
	for _, c := range changes {
		note(m.guests[c.guest].layout())
		note(&m.guests[c.guest].layouts[c.layout])
	}
	m.near = out
	return out
}

// slack forgives what sums of parts lose.
const slack = 1e-6

// holds reports whether a node may be left as it is now, after it was as
// before: whoever was given a home here finds what was promised. Its CPUs may
// be filled up to the policy's limit, and beyond it as far as this node was
// when the round began, or up to peak, as one of those concerned is now.
func (m *model) holds(i int, before *asked, peak float64) bool {
	a, n := &m.asked[i], &m.nodes[i]
	if a.homes == 0 {
		return true
	}
	if a.vcpus > m.limit(i)+slack {
		return false
	}
	small := a.left[0]
	for s := 1; s < len(m.sizes); s++ {
		if lack := min(0, a.left[s]); lack < 0 {
			small += lack
			if a.left[s] < before.left[s]-slack && !m.policy.MayGrow(m.sizes[s]) {
				return false
			}
		}
	}
	if small < -1 {
		return false
	}
	use := n.use(a)
	return use <= n.use(before)+slack || use <= max(m.policy.Balance.MaxNodeCPU, n.began, peak)+slack
}

// make carries changes out on the model.
func (m *model) make(changes ...change) {
	for _, c := range changes {
		g := &m.guests[c.guest]
		m.add(g, g.layout(), -1)
		g.at = c.layout
		m.add(g, g.layout(), 1)
	}
}
