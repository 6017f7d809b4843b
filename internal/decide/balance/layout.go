package balance

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// layout is one way for a guest to lie on nodes.
type layout struct {
	homes  []topology.NodeID // of its cells; nil: as it is now
	on     []share           // ascending by node
	far    float64           // latency of its mean access over the host's best, less 1
	access float64           // weighted price of its accesses, for each CPU that depends on memory
	copied float64           // share of its resident memory to copy
	tables float64           // share of its page tables left behind
	price  float64           // of getting here, for each CPU asked for
	barred bool              // refused when it was looked at closely
}

// share is what a guest has on one node.
type share struct {
	node         int
	cpu, mem     float64 // shares of the guest
	vcpus, bytes float64 // what is promised there
	dedicated    float64 // CPUs there that are the guest's alone
	alone        float64 // the part of cpu that runs on those
}

// nodeSet returns the nodes a layout uses.
func (m *model) nodeSet(l *layout) topology.NodeSet {
	var s topology.NodeSet
	for _, on := range l.on {
		if on.cpu > 0 || on.mem > 0 {
			s = s.With(m.nodes[on.node].id)
		}
	}
	return s
}

// part is a cell's share of a guest.
type part struct{ cpu, mem float64 }

// parts divides a guest into k cells as placing does.
func parts(s *guest.Spec, k int) []part {
	out := make([]part, k)
	for i := range out {
		if len(s.Topology.Cells) == k {
			c := s.Topology.Cells[i]
			out[i] = part{float64(c.VCPUs) / float64(s.VCPUs), float64(c.Memory) / float64(s.Memory)}
			continue
		}
		vcpus := s.VCPUs / k
		if i < s.VCPUs%k {
			vcpus++
		}
		out[i] = part{float64(vcpus) / float64(s.VCPUs), 1 / float64(k)}
	}
	return out
}

// asItIs is the layout that a guest has now: CPUs by where its vCPUs may run,
// memory by where it lies, promises by its holdings.
func (m *model) asItIs(g *subject, held []inventory.Holding) layout {
	on := make([]share, len(m.nodes))
	var vcpus, bytes, dedicated float64
	for _, h := range held {
		if i := m.position(h.Node); i >= 0 {
			run := h.VCPUs + float64(h.Exclusive.Len())
			on[i].vcpus += h.VCPUs
			on[i].dedicated += float64(h.Exclusive.Len())
			on[i].bytes += float64(h.Memory())
			on[i].cpu += run
			vcpus += run
			bytes += float64(h.Memory())
		}
	}
	if runs := m.runs(g.seen); runs != nil {
		vcpus = 1
		for i := range on {
			on[i].cpu = runs[i]
		}
	}
	for i := range on {
		on[i].node = i
		on[i].cpu = ratio(on[i].cpu, vcpus)
		on[i].mem = ratio(on[i].bytes, bytes)
		if g.resident > 0 {
			on[i].mem = float64(g.seen.Seen.MemoryByNode[m.nodes[i].id]) / float64(g.resident)
		}
		if g.exclusive() && on[i].dedicated > 0 {
			on[i].alone = on[i].cpu
		}
		dedicated += on[i].dedicated
	}
	if g.exclusive() { // one that others pinned fences nothing off yet
		g.dedicated = max(dedicated-helpers(&g.spec), float64(g.spec.VCPUs))
	}
	l := layout{
		on: slices.DeleteFunc(on,
			func(s share) bool {
				return s.cpu == 0 && s.mem == 0 && s.vcpus == 0 && s.bytes == 0 && s.dedicated == 0
			}),
	}
	if load := g.load; load != nil && load.Remote != nil && load.Remote.Source != inventory.AccessEstimate {
		if expected := remote(&l); expected > 0.01 {
			g.stretch = load.Remote.Share / expected
		}
	}
	m.priceAccess(g, &l)
	return l
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// remote is the share of accesses that leaves the node, every vCPU using all
// memory alike.
func remote(l *layout) float64 {
	local := 0.0
	for _, s := range l.on {
		local += s.cpu * s.mem
	}
	return 1 - local
}

// runs divides a guest's vCPUs over the nodes that they may run on; nil where
// no thread was seen.
func (m *model) runs(g *inventory.Guest) []float64 {
	out := make([]float64, len(m.nodes))
	count := 0.0
	for i := range g.Seen.Threads {
		t := &g.Seen.Threads[i]
		all := 0
		if t.VCPU != nil {
			for k := range m.host.Topology.Nodes {
				all += m.host.Topology.Nodes[k].CPUs.Intersect(t.Affinity).Len()
			}
		}
		if all == 0 {
			continue
		}
		count++
		for k := range m.host.Topology.Nodes {
			out[k] += float64(m.host.Topology.Nodes[k].CPUs.Intersect(t.Affinity).Len()) / float64(all)
		}
	}
	if count == 0 {
		return nil
	}
	for k := range out {
		out[k] /= count
	}
	return out
}

// priceAccess fills in what a layout's accesses cost.
func (m *model) priceAccess(g *subject, l *layout) {
	narrow := 0.0
	l.far = 0
	for _, a := range l.on {
		for _, b := range l.on {
			if a.cpu > 0 && b.mem > 0 {
				way := m.access.Latency(a.node, b.node)
				if way == 0 {
					way = 10 // no path: as bad as SLIT's unknown far end
				}
				l.far += a.cpu * b.mem * (way - 1)
				narrow += a.cpu * b.mem * (m.access.Bandwidth(a.node, b.node) - 1)
			}
		}
	}
	if len(l.on) > 1 {
		l.far, narrow = l.far*g.stretch, narrow*g.stretch
	}
	l.access = m.list.Weight(cost.Latency)*l.far + m.list.Weight(cost.Bandwidth)*narrow
}

// addLayouts lists where a guest could go, most useful first of equals.
func (m *model) addLayouts(g *subject) {
	type option struct {
		homes   []topology.NodeID
		sharing int
	}
	var options []option
	least, room := 1<<30, false
	for _, k := range m.cells(g) {
		divided := parts(&g.spec, k)
		for _, homes := range m.homeSets(g, divided) {
			sharing, ok := m.suits(g, divided, homes)
			if !ok {
				continue
			}
			if err := g.seen.CheckNodes(topology.SetOf(homes...)); err != nil {
				g.limited = err
				continue
			}
			least = min(least, sharing)
			room = room || m.room(g, divided, homes)
			options = append(options, option{homes, sharing})
		}
		if least == 0 && room {
			break // more nodes than needed are never better: see place
		}
	}
	for _, o := range options {
		if o.sharing > least {
			continue
		}
		l := m.laidOut(g, o.homes)
		if (g.pinned && l.copied > copiedAtMost) || m.same(&l, &g.layouts[0]) || m.nodeSet(&l).Intersects(g.left) {
			continue
		}
		g.layouts = append(g.layouts, l)
	}
}

// copiedAtMost is what may lie elsewhere of a guest whose memory cannot move:
// less than this is not the guest's RAM.
const copiedAtMost = 0.05

// suits reports whether nodes are large enough for the cells, whoever else is
// on them, and how many vCPUs would have to share a core with each other.
func (m *model) suits(g *subject, divided []part, homes []topology.NodeID) (sharing int, ok bool) {
	for i, id := range homes {
		n := &m.nodes[m.position(id)]
		vcpus := int(divided[i].cpu*float64(g.spec.VCPUs) + 0.5)
		usable := n.usable
		if limits := g.spec.Limits.CPUs; !limits.IsEmpty() {
			usable = usable.Intersect(limits)
		}
		if g.exclusive() && g.seen.Placement != nil {
			usable = usable.Union(g.seen.Placement.Exclusive().Intersect(m.host.Topology.Nodes[m.position(id)].CPUs))
		}
		if vcpus > usable.Len() || divided[i].mem*float64(g.spec.Memory) > n.memory {
			return 0, false
		}
		if m.policy.Count == policy.CountCores {
			sharing += max(0, vcpus-n.cores)
		}
	}
	return sharing, true
}

// room reports whether there is room for the cells on their homes right now.
func (m *model) room(g *subject, divided []part, homes []topology.NodeID) bool {
	for i, id := range homes {
		n := m.position(id)
		a := m.asked[n]
		for _, s := range g.layouts[0].on {
			if s.node == n {
				a.vcpus -= s.vcpus
				a.left[g.size] += s.bytes
				a.dedicated -= s.dedicated
			}
		}
		if g.size > 0 && m.policy.MayGrow(m.sizes[g.size]) {
			a.left[g.size] += a.left[0]
		}
		if a.left[g.size] < divided[i].mem*float64(g.spec.Memory)-1 ||
			a.vcpus+divided[i].cpu*float64(g.spec.VCPUs) > m.policy.Overcommit*(m.nodes[n].cpus-a.dedicated)+slack {
			return false
		}
	}
	return true
}

// laidOut is the layout of a guest with its cells on the given homes.
func (m *model) laidOut(g *subject, homes []topology.NodeID) layout {
	l := layout{homes: homes}
	for i, p := range parts(&g.spec, len(homes)) {
		s := share{
			node:      m.position(homes[i]),
			cpu:       p.cpu,
			mem:       p.mem,
			bytes:     p.mem * float64(g.spec.Memory),
			dedicated: p.cpu * g.dedicated,
		}
		if g.exclusive() {
			s.alone = p.cpu
		} else {
			s.vcpus = p.cpu * float64(g.spec.VCPUs)
		}
		if i == 0 {
			s.dedicated += helpers(&g.spec)
		}
		l.on = append(l.on, s)
	}
	slices.SortFunc(l.on, func(a, b share) int { return cmp.Compare(a.node, b.node) })
	m.roam(g, &l)
	m.priceAccess(g, &l)
	stays, ran := 0.0, 0.0
	for _, s := range l.on {
		for _, now := range g.layouts[0].on {
			if now.node == s.node {
				stays += min(s.mem, now.mem)
				ran += min(s.cpu, now.cpu)
			}
		}
	}
	l.copied = max(max(0, 1-stays), m.exchanged(g, homes))
	if l.copied < slack {
		l.copied = 0
	}
	l.tables = max(0, 1-ran) * (1 - l.copied)
	l.price = cost.Copying(l.copied).Float() + cost.PageTables(l.tables).Float()
	return l
}

// helpers is how many CPUs a guest's emulator and I/O threads have for
// themselves: placing puts them on the first node.
func helpers(s *guest.Spec) float64 {
	count := 0
	if s.CPU.Emulator == guest.HelperExclusive {
		count++
	}
	if s.CPU.IOPolicy == guest.HelperExclusive {
		count += s.CPU.IOThreads
	}
	return float64(count)
}

// roam divides the vCPUs of a guest that sees no cells by the CPUs of its
// nodes: each of them may run on all.
func (m *model) roam(g *subject, l *layout) {
	if g.spec.Topology.Mode != guest.TopologyOff || g.exclusive() {
		return
	}
	cpus := make([]float64, len(l.on))
	all := 0.0
	for i, s := range l.on {
		usable := m.nodes[s.node].usable
		if limits := g.spec.Limits.CPUs; !limits.IsEmpty() {
			usable = usable.Intersect(limits)
		}
		cpus[i] = float64(usable.Len())
		all += cpus[i]
	}
	for i := range l.on {
		l.on[i].cpu = ratio(cpus[i], all)
	}
}

// exchanged is the share of memory that belongs to cells which get another
// home: cells that exchange theirs leave each node as full as it was.
func (m *model) exchanged(g *subject, homes []topology.NodeID) float64 {
	p := g.seen.Placement
	if p == nil || len(p.Cells) != len(homes) || g.resident == 0 {
		return 0
	}
	sum := 0.0
	for i, c := range p.Cells {
		if c.Nodes.Len() == 1 && !c.Nodes.Contains(homes[i]) && g.seen.Seen.MemoryByNode[homes[i]] > 0 {
			there := float64(g.seen.Seen.MemoryByNode[homes[i]]) / float64(g.resident)
			if slices.ContainsFunc(p.Cells, func(o guest.Cell) bool { return o.Nodes.Contains(homes[i]) }) {
				sum += min(ratio(float64(c.Memory), float64(g.spec.Memory)), there)
			}
		}
	}
	return sum
}

// same reports whether two layouts put the same shares on the same nodes.
func (m *model) same(a, b *layout) bool {
	if len(a.on) != len(b.on) {
		return false
	}
	const near = 0.02
	for i := range a.on {
		x, y := a.on[i], b.on[i]
		if x.node != y.node || x.cpu > y.cpu+near || y.cpu > x.cpu+near || x.mem > y.mem+near || y.mem > x.mem+near {
			return false
		}
	}
	return true
}
