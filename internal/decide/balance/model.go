package balance

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// model holds the figures that a host's cost depends on, so that the search can
// evaluate a move with a few sums over the nodes involved.
type model struct {
	host      *inventory.Host
	policy    policy.Policy
	list      cost.List
	access    *cost.Access
	nodes     []node
	guests    []subject // as in the inventory, without shut-off guests
	sizes     []topology.Bytes
	usage     []usage    // by node, in the model's state
	saved     []usage    // buffer of try
	cpuSets   []cpuSets  // by node, in the model's state
	savedSets []setUsage // buffer of try
	fullest   float64    // use of the fullest set of CPUs before the first move of the plan; see fullestSet
	near      []int      // buffer of touched
	shares    []share    // buffer of currentLayout, by node
	nearTo    [][]int    // see neighbours
	clock     int        // number of changes of usage
	stamps    []int      // clock at the last change of each node's usage
	priced    []float64  // nodeCost of each node for its usage; NaN: not computed yet

	copyRate float64 // bytes a second
	// cautious: a copy must be repaid soon; see soonRepaid.
	cautious bool
}

// node holds the capacity of a node.
type node struct {
	id        topology.NodeID
	cpus      float64 // CPUs without housekeeping and those that guests hand to each other
	usable    topology.CPUSet
	count     int     // number of usable CPUs
	cores     int     // physical cores of the usable CPUs
	threads   bool    // some cores have several usable hardware threads
	divided   bool    // guests are confined to sets of usable; see model.cpuSets
	memory    float64 // bytes that guests may use
	free      float64 // bytes that can be allocated now
	bandwidth float64 // MB a second; 0: not measured
	nearest   float64 // latency from the CPUs of the nearest other node over the host's best, minus 1
	host      float64 // CPUs that the host's own processes use and that they use on this node only
	errands   float64 // CPUs that the host's own processes use here, and may as well use elsewhere
	avoidable bool    // all nodes together have a CPU for all demand; see stays
	began     float64 // CPU use before the first move of the plan
	resident  float64 // bytes of guests there before the first move of the plan
}

// usage is what guests use of a node or were promised.
type usage struct {
	cpu       float64           // CPU demand of the vCPUs here
	bursts    float64           // CPUs of waiting that CPU use does not explain
	bound     float64           // CPU demand of the guests with memory here, times their share of it and intensity
	traffic   float64           // MB a second to memory here
	vcpus     float64           // vCPUs that share CPUs here
	runnable  float64           // vCPUs that run on shared CPUs here; see subject.vcpusOn
	roaming   roaming           // the part of vCPUs that may run on every node
	confined  int32             // guests with a vCPU here that may not run on all shared CPUs
	unmet     float64           // the part of cpu that has no CPU, because its guests may use only some CPUs
	dedicated float64           // CPUs dedicated to one guest, whether it uses them or not
	alone     float64           // the part of cpu on dedicated CPUs
	held      float64           // bytes promised
	resident  float64           // bytes of memory here
	left      [maxSizes]float64 // bytes not promised, by page size; [0]: small pages
	homes     int32             // guests with a new layout that uses this node
}

// roaming is a part of a node's usage by vCPUs that may run on every node.
type roaming struct {
	cpu      float64 // CPU demand
	runnable float64 // vCPUs
}

// maxSizes is the number of page sizes that the model distinguishes: small
// pages and the four huge page sizes of arm64 with 4 KiB pages.
const maxSizes = 5

func newModel(r Request) *model { return modelOf(r, false) }

func modelOf(r Request, cautious bool) *model {
	p := r.Policy.WithDefaults()
	m := &model{
		host:   r.Host,
		policy: p,
		list:   cost.NewList(p),
		access: cost.NewAccess(&r.Host.Topology),
		sizes:  []topology.Bytes{0},

		cautious: cautious,
	}
	rate, _ := p.Balance.CopyRate(r.Host.MoverBytesPerSecond)
	m.copyRate = float64(rate)
	rooms := capacity.Available(r.Host, p, "")
	m.nodes = make([]node, len(rooms))
	m.usage = make([]usage, len(rooms))
	m.cpuSets, m.savedSets = make([]cpuSets, len(rooms)), make([]setUsage, len(rooms))
	m.saved, m.shares = make([]usage, len(rooms)), make([]share, len(rooms))
	m.nearTo = make([][]int, len(rooms))
	m.stamps = make([]int, len(rooms))
	for i := range rooms {
		m.addNode(i, &rooms[i])
	}
	m.addGuests(r)
	m.measureHost()
	for i := range m.nodes {
		m.nodes[i].began, m.nodes[i].resident = m.use(i), m.usage[i].resident
		m.fullest = max(m.fullest, m.fullestSet(i))
	}
	for i := range m.guests {
		m.explainWait(&m.guests[i])
	}
	m.priced = slices.Repeat([]float64{math.NaN()}, len(m.nodes))
	return m
}

func (m *model) addNode(i int, room *capacity.Node) {
	n, t := &m.nodes[i], &m.host.Topology
	n.id = room.Node
	n.usable, n.count = room.Shared, room.Shared.Len()
	n.cpus = float64(room.CPUs.Minus(room.Housekeeping).Minus(m.policy.Handoff.CPUs).Len())
	n.memory = float64(room.Memory - room.KeepFree)
	n.free = float64(spare(&t.Nodes[i], m.policy))
	n.bandwidth, _ = t.Bandwidth(n.id, n.id)
	n.nearest = noPathLatency - 1
	for k := range t.Nodes {
		if k != i && !t.Nodes[k].CPUs.IsEmpty() {
			n.nearest = min(n.nearest, m.latency(k, i)-1)
		}
	}
	n.cores = t.Cores(n.usable)
	n.threads = n.cores < n.count
	a := &m.usage[i]
	a.held, a.vcpus, a.left[0] = float64(room.Promised), room.Load, float64(room.Left)
	a.dedicated = n.cpus - float64(room.Shared.Len())
	if room.Left == 0 { // more than all may be promised: compute how much more, as a negative amount
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

// size returns the index of a page size, or -1 for the sizes after maxSizes.
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

// position returns the index of a node in model.nodes, or -1.
func (m *model) position(id topology.NodeID) int {
	if i := int(id); i >= 0 && i < len(m.nodes) && m.nodes[i].id == id {
		return i // node ids are mostly their positions
	}
	return slices.IndexFunc(m.nodes, func(n node) bool { return n.id == id })
}

// measureHost computes the host's own work: the rest of the nodes' loads after the use of
// guests. It also finds out whether the host has a CPU for all demand.
func (m *model) measureHost() {
	rest, known := make([]float64, len(m.nodes)), m.host.VCPUsMeasured()
	for _, l := range m.host.Load {
		if i := m.position(l.Node); i >= 0 && l.IsValid() {
			if rest[i] = l.CPU - l.VCPUs; !known {
				rest[i] = l.CPU - m.usedByGuests(i)
			}
		}
	}
	demand, cpus := 0.0, 0.0
	for i, own := range capacity.HostWork(rest) {
		n, a := &m.nodes[i], &m.usage[i]
		if bound := a.cpu - a.roaming.cpu; own < leastBound && bound < full*n.cpus {
			n.errands = own
		} else {
			n.host = own
		}
		demand += own + a.cpu - a.alone - a.unmet
		cpus += n.cpus - a.dedicated
	}
	for i := range m.nodes {
		m.nodes[i].avoidable = demand <= cpus
	}
}

const (
	// leastBound is the least work of the host on a node, in CPUs, that is taken to be bound to
	// the node, as threads that poll a device are. The kernel moves less than that to idle
	// CPUs of other nodes.
	leastBound = 1.0
	// full is the use of a node by vCPUs bound to it from which the host's work that was
	// measured there is bound, too: otherwise the kernel would have moved it.
	full = 0.95
)

// usedByGuests returns how many of a node's CPUs guests used, in CPUs, where that was not
// measured. A guest's use is divided over the nodes on which its vCPUs may run.
func (m *model) usedByGuests(i int) float64 {
	used := 0.0
	for k := range m.guests {
		g := &m.guests[k]
		for _, s := range g.layout().on {
			if s.node == i && g.load != nil {
				used += (s.cpu + s.handed) * g.load.CPU
			}
		}
	}
	return used
}

// use returns the demand for a node's CPUs over its CPUs; above 1 guests wait.
func (m *model) use(i int) float64 { return m.nodes[i].use(&m.usage[i]) }

// use returns the greater of two ratios: total demand over all CPUs, and the
// demand for shared CPUs over the shared CPUs,
//
//	(cpu + host) / cpus    and    (cpu - alone + host) / (cpus - dedicated)
//
// all in CPUs. The second matters because idle dedicated CPUs do not help the
// guests that share the others. Of vCPUs and of the host's work that may run elsewhere, only
// what stays on the node counts; see stays. Of guests that are confined to some CPUs, only what these can serve
// counts.
func (n *node) use(a *usage) float64 {
	if n.cpus == 0 {
		return 0
	}
	roaming, bound := a.roaming.cpu+n.errands, a.cpu-a.roaming.cpu-a.unmet+n.host
	use := (bound + n.stays(roaming, n.cpus-bound)) / n.cpus
	if a.dedicated > slack && a.dedicated < n.cpus-slack {
		bound -= a.alone
		shared := n.cpus - a.dedicated
		use = max(use, (bound+n.stays(roaming, shared-bound))/shared)
	}
	if use > 1 && use < 1+slack {
		return 1 // rounding errors must not make a full node overloaded, which costs far more
	}
	return use
}

// stays returns how much of what may run on every node stays on this one, which has this much
// room for it, both in CPUs: the kernel moves the rest to idle CPUs of other nodes, as long as
// all nodes together have a CPU for each.
func (n *node) stays(roaming, room float64) float64 {
	if n.avoidable && roaming > room {
		return max(0, room)
	}
	return roaming
}

// excess returns how many more vCPUs share a node's CPUs than the policy allows.
func (m *model) excess(i int, a *usage) float64 {
	return a.vcpus - m.policy.Overcommit*(m.nodes[i].cpus-a.dedicated)
}

// busy returns the share of a node's memory bandwidth in use, from the guests'
// measured traffic and the node's measured local bandwidth; 0 if not known.
func (m *model) busy(i int) float64 {
	if m.nodes[i].bandwidth == 0 {
		return 0
	}
	return m.usage[i].traffic / m.nodes[i].bandwidth
}

// nodeCost returns the part of the host's cost that guests of a node share, in
// units of the price list times CPUs:
//
//	weight(load) (Waiting waiting + spreading/2 cpu CPULoad(use)) +
//	weight(bandwidth) bound Contention(busy)
//
// cpu and bound weigh each guest by its CPU demand; see usage. Memory in use costs
// nothing: it slows no guest.
func (m *model) nodeCost(i int) float64 {
	a, use := &m.usage[i], m.use(i)
	return m.list.Weight(cost.Load)*(cost.Waiting*m.waiting(i, use)+m.spreading(i)/2*a.cpu*m.list.CPULoad(use)) +
		m.list.Weight(cost.Bandwidth)*a.bound*cost.Contention(m.busy(i))
}

// spreading returns the part of the term Load that use of a node's CPUs has up to all of them:
//
//	Roomy + Spreading min(1, vCPUs without a CPU)
func (m *model) spreading(i int) float64 {
	return cost.Roomy + cost.Spreading*min(1, m.nodes[i].withoutCPU(&m.usage[i], m.policy.Count))
}

// waiting returns how much of the demand of a node's guests waits, in CPUs, at this CPU use,
// except for a constant of each guest; see waitShare and explainWait.
func (m *model) waiting(i int, use float64) float64 {
	n, a := &m.nodes[i], &m.usage[i]
	share := n.waitShare(a, use, m.policy.Count)
	wait := (a.cpu-a.alone)*share + a.bursts*use
	if n.divided {
		wait += m.cpuSets[i].wait(use, share)
	}
	return wait
}

// waitShare returns the share of the demand for a node's shared CPUs that waits: as its
// use predicts, and no more than the vCPUs and the host's work that may want to run at
// once and have no CPU. A node with a CPU for each of them is not crowded, whatever
// its use.
func (n *node) waitShare(a *usage, use float64, count policy.Capacity) float64 {
	share, demand := overloaded(use), a.cpu-a.alone
	if most := n.withoutCPU(a, count); most < share*demand {
		return most / demand
	}
	return share
}

// withoutCPU returns how many vCPUs and CPUs of the host's work have no CPU at most:
//
//	runnable + host - (cpus - dedicated)
//
// and at least 0. Where the policy counts cores, the hardware threads of a core are not
// CPUs of their own. A guest that may not run on all of the shared CPUs may wait while
// others of them are idle: the number is then not known, and infinite.
func (n *node) withoutCPU(a *usage, count policy.Capacity) float64 {
	if a.confined > 0 {
		return math.Inf(1)
	}
	room := n.room(a, count)
	bound := a.runnable - a.roaming.runnable + n.host
	return max(0, bound+n.stays(a.roaming.runnable+n.errands, room-bound)-room)
}

// room returns the number of a node's shared CPUs, or of their cores if the policy counts
// cores and they have several hardware threads.
func (n *node) room(a *usage, count policy.Capacity) float64 {
	room := n.cpus - a.dedicated
	if count == policy.CountCores && n.threads {
		room = min(room, float64(n.cores))
	}
	return room
}

// full reports whether more of the demand for a node's CPUs waits than at a use of MaxNodeCPU.
func (m *model) full(n *node, a *usage) bool {
	use, most := n.use(a), m.policy.Balance.MaxNodeCPU+slack
	return use > most && n.waitShare(a, use, m.policy.Count) > overloaded(most)
}

// overloaded returns the share of the demand for CPUs that waits at a CPU use u:
//
//	1 - 1 / (1 + u^8)^(1/8)
//
// n CPUs shared by a steady demand of u n leave 1 - 1/u of it waiting, where u > 1.
// Demand is a mean of a demand that varies, so some waits before that: 0.2 % at a use
// of 0.6, 4 % at 0.9, 8 % at 1. The exponent joins both.
func overloaded(use float64) float64 {
	u8 := use * use
	u8 *= u8
	u8 *= u8
	if use < 0.5 { // the first terms of the series are exact to 1e-8, and faster
		return u8 / 8 * (1 - u8*9/16)
	}
	return 1 - 1/math.Sqrt(math.Sqrt(math.Sqrt(1+u8)))
}

// costNow returns nodeCost for the usage of the model's state.
func (m *model) costNow(i int) float64 {
	if math.IsNaN(m.priced[i]) {
		m.priced[i] = m.nodeCost(i)
	}
	return m.priced[i]
}

// total returns the host's cost, including the prices of the moves made.
func (m *model) total() float64 {
	sum := 0.0
	for i := range m.nodes {
		sum += m.costNow(i)
	}
	for i := range m.guests {
		sum += m.guests[i].fixedCost()
	}
	return sum
}

// ownCost returns a guest's cost for each CPU in demand, without the prices of
// moves. It is the guest's part of nodeCost plus intensity times access.
func (m *model) ownCost(g *subject) float64 {
	l := g.layout()
	load := m.list.Weight(cost.Load)
	sum := g.intensity*l.access + load*cost.Waiting*m.waits(g)
	for _, s := range l.on {
		sum += load*m.spreading(s.node)/2*s.cpu*m.list.CPULoad(m.use(s.node)) +
			m.list.Weight(cost.Bandwidth)*g.intensity*s.mem*cost.Contention(m.busy(s.node))
	}
	return sum
}

// add adds a guest's layout to the usage of its nodes (sign 1) or subtracts it
// (sign -1).
func (m *model) add(g *subject, l *layout, sign float64) {
	for _, s := range l.on {
		a := &m.usage[s.node]
		if l.homes != nil {
			a.homes += int32(sign)
		}
		a.cpu += sign * g.demand * s.cpu
		a.bursts += sign * g.demand * g.bursts * (s.cpu - s.alone)
		a.bound += sign * g.demand * g.intensity * s.mem
		a.traffic += sign * g.mbps * s.mem
		a.vcpus += sign * s.vcpus
		a.runnable += sign * g.vcpusOn(&s)
		a.roaming.cpu += sign * g.demand * s.roaming
		if s.cpu > 0 {
			a.roaming.runnable += sign * g.vcpusOn(&s) * s.roaming / s.cpu
		}
		if s.confined {
			a.confined += int32(sign)
		}
		if s.set > 0 {
			m.addConfined(g, &s, sign)
		}
		a.dedicated += sign * s.dedicated
		a.alone += sign * g.demand * s.alone
		a.held += sign * s.bytes
		a.resident += sign * s.mem * float64(g.resident)
		if g.size >= 0 {
			a.left[g.size] -= sign * s.bytes
		}
	}
}

// change selects another layout of a guest. Both are indexes.
type change struct{ guest, layout int }

// try returns by how much the changes would raise the host's cost, and whether
// they are allowed. It leaves the model unchanged.
func (m *model) try(changes ...change) (rise float64, ok bool) {
	touched := m.touched(changes)
	before, peak := 0.0, 0.0
	for _, i := range touched {
		m.saved[i] = m.usage[i]
		if m.nodes[i].divided {
			m.savedSets[i] = m.cpuSets[i].setUsage
		}
		before += m.costNow(i)
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
		ok = ok && m.allowed(i, &m.saved[i], peak)
	}
	for _, i := range touched {
		m.usage[i] = m.saved[i]
		if m.nodes[i].divided {
			m.cpuSets[i].setUsage = m.savedSets[i]
		}
	}
	return rise - before, ok
}

// tried is a result of tryOne.
type tried struct {
	rise  float64
	ok    bool
	from  int // layout of the guest then
	clock int // 1 + model.clock then; 0: never tried
}

// tryOne is try for one change. It returns the last result again if the usage of the nodes
// that the change touches has not changed since.
func (m *model) tryOne(c change) (rise float64, ok bool) {
	g := &m.guests[c.guest]
	last := &g.layouts[c.layout].tried
	if last.clock > 0 && last.from == g.at && m.unchanged(g.layout(), last.clock-1) &&
		m.unchanged(&g.layouts[c.layout], last.clock-1) {
		return last.rise, last.ok
	}
	rise, ok = m.try(c)
	*last = tried{rise, ok, g.at, 1 + m.clock}
	return rise, ok
}

// unchanged reports whether the usage of the nodes of a layout is that of the given clock.
func (m *model) unchanged(l *layout, clock int) bool {
	for i := range l.on {
		if m.stamps[l.on[i].node] > clock {
			return false
		}
	}
	return true
}

// touched returns the nodes that changes leave or go to, each once. The result
// is valid until the next call.
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

// slack is the tolerance for rounding errors in sums of shares.
const slack = 1e-6

// allowed reports whether a node's usage may change from before to the present
// one. A node without new guests always may. Otherwise every guest must get the
// CPUs and memory promised to it, or the node must lack no more of either than before;
// and CPU use must not rise beyond the greatest of the policy's MaxNodeCPU, this
// node's use when the plan began, and peak, the highest present use of the nodes
// involved. CPU use does not count if no more waits than at a use of MaxNodeCPU. No set
// of CPUs may become fuller than the fullest one was when the plan began.
func (m *model) allowed(i int, before *usage, peak float64) bool {
	a, n := &m.usage[i], &m.nodes[i]
	if a.homes == 0 {
		return true
	}
	if m.excess(i, a) > max(0, m.excess(i, before))+slack || !m.memoryAllowed(i, before) ||
		n.divided && m.fullestSet(i) > m.fullest+slack {
		return false
	}
	use := n.use(a)
	return use <= max(n.began, peak)+slack || use <= n.use(before)+slack || !m.full(n, a)
}

// memoryAllowed reports whether a node has the memory promised to its guests, or
// lacks no more than before and has the free memory for what the plan copies to it.
func (m *model) memoryAllowed(i int, before *usage) bool {
	a := &m.usage[i]
	small, was := a.left[0], before.left[0]
	for s := 1; s < len(m.sizes); s++ {
		lack, lacked := min(0, a.left[s]), min(0, before.left[s])
		small, was = small+lack, was+lacked
		if lack < lacked-1 && !m.policy.MayGrow(m.sizes[s]) {
			return false
		}
	}
	return small >= -1 || small >= was-1 && a.resident-m.nodes[i].resident <= m.nodes[i].free
}

// apply makes the changes in the model.
func (m *model) apply(changes ...change) {
	m.clock++
	for _, c := range changes {
		g := &m.guests[c.guest]
		was := g.layout()
		m.add(g, was, -1)
		g.at = c.layout
		m.add(g, g.layout(), 1)
		for _, l := range [2]*layout{was, g.layout()} {
			for _, s := range l.on {
				m.priced[s.node], m.stamps[s.node] = math.NaN(), m.clock
			}
		}
	}
}
