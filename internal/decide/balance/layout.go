package balance

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// layout is one distribution of a guest's vCPUs and memory over nodes.
type layout struct {
	homes []topology.NodeID // home node of each cell; nil: the current layout
	on    []share           // ascending by node

	excessLatency float64 // mean access latency over the host's best latency, minus 1
	access        float64 // weighted cost of accesses for each CPU in demand with intensity 1
	copied        float64 // share of its resident memory to copy, 0 to 1
	tables        float64 // share of its page tables that stay on other nodes, 0 to 1
	price         float64 // one-time price of the move to this layout, in units of the price list times CPUs
	apart         bool    // vCPUs are on the homes, and memory stays where it is
	rejected      bool    // the full check refused it
	tried         tried   // what model.tryOne returned last
}

// share is the part of a guest on one node.
type share struct {
	node         int     // position in model.nodes
	cpu, mem     float64 // shares of the guest's vCPUs and memory, 0 to 1
	vcpus, bytes float64 // vCPUs on shared CPUs and bytes promised to the guest there
	confined     bool    // a vCPU may run on some of the shared CPUs there, but not on all
	set          int8    // set of CPUs to which its vCPUs there are confined, see model.setOf; 0: none
	dedicated    float64 // CPUs there that no other guest may use
	alone        float64 // the part of cpu that runs on dedicated CPUs
	roaming      float64 // the part of cpu that may run on the CPUs of every node
	handed       float64 // share of the guest's vCPUs, 0 to 1, on CPUs that guests hand to each other; not in cpu
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

// runsWith reports whether vCPUs run on a node with both layouts.
func (l *layout) runsWith(other *layout) bool {
	for _, a := range l.on {
		for _, b := range other.on {
			if a.node == b.node && a.cpu > 0 && b.cpu > 0 {
				return true
			}
		}
	}
	return false
}

// inPart reports whether a part of the memory is where vCPUs run, and a part where none run.
func (l *layout) inPart() bool {
	here, elsewhere := 0.0, 0.0
	for _, s := range l.on {
		if s.cpu > 0 {
			here += s.mem
		} else {
			elsewhere += s.mem
		}
	}
	return here > slack && elsewhere > slack
}

// part is a cell's shares of a guest's vCPUs and memory, 0 to 1.
type part struct{ cpu, mem float64 }

// parts divides a guest into k cells as package place does.
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

// currentLayout returns a guest's layout as observed: vCPUs by the CPUs on which
// they may run, memory by the nodes that hold it, promises by its holdings.
func (m *model) currentLayout(g *subject, held []inventory.Holding) layout {
	on := m.shares
	clear(on)
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
	if runs, roams := m.vcpuShares(g.seen); runs != nil {
		vcpus = 1
		for i := range on {
			on[i].cpu, on[i].roaming = runs[i], roams[i]
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
			on[i].alone, on[i].roaming = on[i].cpu, 0
		}
		if on[i].confined = on[i].cpu > on[i].alone && m.confined(g.seen, i); on[i].confined {
			on[i].set = m.setOf(i, capacity.ConfinedTo(m.nodes[i].usable, g.seen))
		}
		dedicated += on[i].dedicated
	}
	if g.exclusive() { // an unmanaged guest has no dedicated CPUs yet, but will need them
		g.dedicated = max(dedicated-helpers(&g.spec), float64(g.spec.VCPUs))
	}
	var l layout
	for _, s := range on {
		if s.cpu != 0 || s.mem != 0 || s.vcpus != 0 || s.bytes != 0 || s.dedicated != 0 {
			l.on = append(l.on, s)
		}
	}
	if load := g.load; load != nil && load.Remote != nil && load.Remote.Source != inventory.AccessEstimate {
		if expected := remote(&l); expected > 0.01 {
			g.remoteScale = load.Remote.Share / expected
		}
	}
	m.priceAccess(g, &l)
	if g.spec.IsHandoff() { // its CPUs are no part of what nodes have for others
		for i := range l.on {
			s := &l.on[i]
			s.handed, s.cpu, s.roaming, s.confined, s.set = s.cpu, 0, 0, false, 0
		}
	}
	return l
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// remote returns the expected share of remote accesses, 0 to 1:
//
//	1 - sum over nodes of cpu mem
//
// It assumes that every vCPU accesses all of the guest's memory uniformly.
func remote(l *layout) float64 {
	local := 0.0
	for _, s := range l.on {
		local += s.cpu * s.mem
	}
	return 1 - local
}

// vcpuShares returns the share of a guest's vCPUs on each node: a vCPU counts on
// each node in proportion to the node's CPUs in its affinity. roams is the part of
// vCPUs that may run on every node that has CPUs. Both are nil if no vCPU thread was observed.
func (m *model) vcpuShares(g *inventory.Guest) (runs, roams []float64) {
	runs, roams = make([]float64, len(m.nodes)), make([]float64, len(m.nodes))
	row := make([]float64, len(m.nodes))
	var known topology.CPUSet // the affinity of row: mostly all vCPUs have the same
	count, all, everywhere := 0.0, 0.0, false
	for i := range g.Seen.Threads {
		t := &g.Seen.Threads[i]
		if t.VCPU == nil {
			continue
		}
		if !known.Equal(t.Affinity) {
			known, all, everywhere = t.Affinity, 0, true
			for k := range m.host.Topology.Nodes {
				row[k] = float64(m.host.Topology.Nodes[k].CPUs.Common(known))
				all += row[k]
				everywhere = everywhere && (row[k] > 0 || m.nodes[k].cpus == 0)
			}
		}
		if all == 0 {
			continue
		}
		count++
		for k := range row {
			runs[k] += row[k] / all
			if everywhere {
				roams[k] += row[k] / all
			}
		}
	}
	if count == 0 {
		return nil, nil
	}
	for k := range runs {
		runs[k] /= count
		roams[k] /= count
	}
	return runs, roams
}

// confined reports whether a vCPU of a guest was observed that may run on some of the shared
// CPUs of a node, but not on all.
func (m *model) confined(g *inventory.Guest, node int) bool {
	var known topology.CPUSet // the last affinity: mostly all vCPUs have the same
	for i := range g.Seen.Threads {
		t := &g.Seen.Threads[i]
		if t.VCPU == nil || known.Equal(t.Affinity) {
			continue
		}
		known = t.Affinity
		if known.Intersects(m.host.Topology.Nodes[node].CPUs) && !m.nodes[node].usable.SubsetOf(known) {
			return true
		}
	}
	return false
}

// priceAccess computes a layout's excessLatency and access.
//
//	excessLatency = sum over nodes a,b of cpu(a) mem(b) (L(a,b) - 1)
//	access        = weight(latency) wasted(excessLatency) +
//	                weight(bandwidth) sum over a,b of cpu(a) mem(b) (B(a,b) - 1) +
//	                Spreading weight(devices) sum over devices d and nodes b of mem(b) (L(d,b) - 1)
//
// How much a guest loses to a far device is not measured: devices decide between layouts that are equal otherwise.
// cpu and mem are the guest's shares on the nodes; L and B are the ratios of
// package cost (latency over the host's best, best bandwidth over the path's).
// The sums assume uniform accesses. If a meter measured another share of remote
// accesses, remoteScale corrects for it on layouts with more than one node.
func (m *model) priceAccess(g *subject, l *layout) {
	bandwidth := 0.0
	l.excessLatency = 0
	for _, a := range l.on {
		for _, b := range l.on {
			if a.cpu > 0 && b.mem > 0 {
				l.excessLatency += a.cpu * b.mem * (m.latency(a.node, b.node) - 1)
				bandwidth += a.cpu * b.mem * (m.access.Bandwidth(a.node, b.node) - 1)
			}
		}
	}
	if len(l.on) > 1 {
		l.excessLatency, bandwidth = l.excessLatency*g.remoteScale, bandwidth*g.remoteScale
	}
	l.access = m.list.Weight(cost.Latency)*wasted(l.excessLatency) + m.list.Weight(cost.Bandwidth)*bandwidth
	for _, device := range g.devices {
		for _, b := range l.on {
			if latency := m.access.Latency(device, b.node); latency > 1 {
				l.access += cost.Spreading * m.list.Weight(cost.Devices) * b.mem * (latency - 1)
			}
		}
	}
}

// wasted returns the share of its time that a CPU that always accesses memory loses
// if an access takes 1 + slow times as long as at best.
func wasted(slow float64) float64 { return slow / (1 + slow) }

// noPathLatency stands for the latency where firmware says that a node's CPUs
// do not reach the memory (SLIT 255). It is a ratio to the host's best latency
// and exceeds that of the longest path that SLIT can express (25.4^0.65 = 8.2
// with the damping of package cost).
const noPathLatency = 10

// saturates reports whether a guest alone uses so much of the memory bandwidth of any k
// nodes that it would be degraded.
func (m *model) saturates(g *subject, k int) bool {
	most := 0.0
	for i := range m.nodes {
		if m.nodes[i].bandwidth == 0 {
			return false
		}
		most = max(most, m.nodes[i].bandwidth)
	}
	return g.mbps >= m.policy.Balance.Traffic*most*float64(k)
}

// addLayouts adds the layouts to which a guest could move. It uses the fewest
// cells that fit and do not use up the memory bandwidth of their nodes, and only
// layouts in which the fewest vCPUs share a core, or no more than now.
func (m *model) addLayouts(g *subject) {
	type option struct {
		homes   []topology.NodeID
		sharing int
	}
	var options []option
	least, room := 1<<30, false
	for _, k := range m.cells(g) {
		divided := parts(&g.spec, k)
		if g.mayPart() {
			divided = withoutMemory(divided)
		}
		for _, homes := range m.homeSets(g, divided) {
			sharing, ok := m.largeEnough(g, divided, homes)
			if !ok {
				continue
			}
			if err := g.seen.CheckNodes(topology.SetOf(homes...)); err != nil {
				g.limited = err
				continue
			}
			least = min(least, sharing)
			room = room || m.fitsNow(g, divided, homes)
			options = append(options, option{homes, sharing})
		}
		if least == 0 && room && !m.saturates(g, k) {
			break // more nodes than necessary are never better: see package place
		}
	}
	g.layouts = slices.Grow(g.layouts, len(options))
	least = max(least, m.sharingNow(g))
	for _, o := range options {
		if o.sharing > least {
			continue
		}
		l := m.layoutOn(g, o.homes)
		// To its memory a guest always returns.
		returns := !g.leftNodes.IsEmpty() && m.nodeSet(&l).Intersects(g.leftNodes) && !g.mayPart()
		if l.copied > maxUnmovable && g.mayPart() {
			l = m.apart(g, l)
		}
		if (g.pinned && l.copied > maxUnmovable) || m.same(&l, &g.layouts[0]) || returns {
			continue
		}
		g.layouts = append(g.layouts, l)
	}
}

// maxUnmovable is the share of resident memory that may be on other nodes than
// those of a layout that copies nothing. This much is QEMU's own memory and
// shared libraries rather than the guest's RAM.
const maxUnmovable = 0.05

// largeEnough reports whether nodes are large enough for the cells if no other
// guest used them, and how many of the guest's vCPUs would share a core.
func (m *model) largeEnough(g *subject, divided []part, homes []topology.NodeID) (sharing int, ok bool) {
	for i, id := range homes {
		n := &m.nodes[m.position(id)]
		vcpus := int(divided[i].cpu*float64(g.spec.VCPUs) + 0.5)
		usable := n.countFor(g)
		if g.exclusive() && g.seen.Placement != nil {
			own := g.seen.Placement.Exclusive().Intersect(m.host.Topology.Nodes[m.position(id)].CPUs)
			usable = n.usableBy(g).Union(own).Len()
		}
		if vcpus > usable || divided[i].mem*float64(g.spec.Memory) > n.memory {
			return 0, false
		}
		if m.policy.Count == policy.CountCores {
			sharing += max(0, vcpus-n.cores)
		}
	}
	return sharing, true
}

// usableBy returns the shared CPUs of a node that a guest may use.
func (n *node) usableBy(g *subject) topology.CPUSet {
	if g.limits.IsEmpty() {
		return n.usable
	}
	return n.usable.Intersect(g.limits)
}

// countFor returns the number of shared CPUs of a node that a guest may use.
func (n *node) countFor(g *subject) int {
	if g.limits.IsEmpty() {
		return n.count
	}
	return n.usable.Common(g.limits)
}

// sharingNow returns how many of a guest's vCPUs share a core on the nodes where they run.
func (m *model) sharingNow(g *subject) (sharing int) {
	if m.policy.Count != policy.CountCores {
		return 0
	}
	for _, s := range g.layouts[0].on {
		sharing += max(0, int(s.cpu*float64(g.spec.VCPUs)+0.5)-m.nodes[s.node].cores)
	}
	return sharing
}

// fitsNow reports whether the homes have enough CPUs and memory left for the
// cells in the current state, or lack no more memory than now.
func (m *model) fitsNow(g *subject, divided []part, homes []topology.NodeID) bool {
	for i, id := range homes {
		n := m.position(id)
		a := m.usage[n]
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
		left := a.left[g.size] - divided[i].mem*float64(g.spec.Memory)
		if left < min(0, m.usage[n].left[g.size])-1 ||
			a.vcpus+divided[i].cpu*float64(g.spec.VCPUs) > m.policy.Overcommit*(m.nodes[n].cpus-a.dedicated)+slack {
			return false
		}
	}
	return true
}

// layoutOn returns the layout of a guest with its cells on the given homes.
//
// copied is the share of memory that is not on its target nodes yet. tables is
// the share of page tables that the move leaves on other nodes: those of vCPUs
// that change nodes, except for the pages that are copied, whose tables the
// kernel fills again on the target.
func (m *model) layoutOn(g *subject, homes []topology.NodeID) layout {
	l := layout{homes: homes, on: make([]share, 0, len(homes))}
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
			if s.confined = !g.limits.IsEmpty() && !m.nodes[s.node].usable.SubsetOf(g.limits); s.confined {
				s.set = m.setOf(s.node, m.nodes[s.node].usableBy(g))
			}
		}
		if i == 0 {
			s.dedicated += helpers(&g.spec)
		}
		l.on = append(l.on, s)
	}
	slices.SortFunc(l.on, func(a, b share) int { return cmp.Compare(a.node, b.node) })
	m.spreadVCPUs(g, &l)
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
	l.copied = max(max(0, 1-stays), m.swappedMemory(g, homes))
	if l.copied < slack {
		l.copied = 0
	}
	l.tables = max(0, 1-ran) * (1 - l.copied)
	l.price = m.priceOfMove(g, &l)
	return l
}

// priceOfMove returns the one-time price of a layout: the CPU time that copying takes,
// spread over the horizon in which the move must repay it, at the price of a CPU
// that is lost all the time; the page tables left behind; and how far the memory is until it is copied.
func (m *model) priceOfMove(g *subject, l *layout) float64 {
	afar := l.copied * g.intensity * wasted(m.excessWhileCopying(g, l))
	copying := m.copyingCPUs(g, l)
	if m.cautious {
		copying /= soonRepaid
	}
	return cost.Waiting*copying + g.demand*(cost.PageTables(l.tables)+cost.FromAfar(afar))
}

// copyingCPUs is the CPU time that the copy for a layout takes, in CPUs over the horizon.
func (m *model) copyingCPUs(g *subject, l *layout) float64 {
	seconds := cost.MovingSeconds + l.copied*float64(g.resident)/m.copyRate
	return cost.CopyingCPU(seconds, g.demand) / time.Duration(m.policy.Balance.Horizon).Seconds()
}

// excessWhileCopying is the excess latency, as in priceAccess, of a guest whose vCPUs run in a layout and access only
// memory that is still to be copied:
//
//	sum over nodes a,b of cpu(a) left(b) (L(a,b) - 1) / sum over nodes b of left(b)
//
// left is the share of its memory that is on a node now and not there in the layout. The sum is 0 if nothing is copied.
// For vCPUs that stay on their node, b counts as if it were their nearest: a guest does not move to a third
// node, whose room others may need, only to be nearer to its memory for the time of the copy.
func (m *model) excessWhileCopying(g *subject, l *layout) float64 {
	excess, all := 0.0, 0.0
	for _, now := range g.layouts[0].on {
		left := now.mem - l.at(now.node).mem
		if left < slack {
			continue
		}
		all += left
		for _, s := range l.on {
			far := m.latency(s.node, now.node) - 1
			stays := min(s.cpu, g.layouts[0].at(s.node).cpu)
			excess += left * ((s.cpu-stays)*far + stays*min(far, m.nodes[now.node].nearest))
		}
	}
	return ratio(excess, all)
}

// at returns the guest's part on a node.
func (l *layout) at(node int) share {
	for _, s := range l.on {
		if s.node == node {
			return s
		}
	}
	return share{node: node}
}

// latency returns the latency from a node's CPUs to another node's memory, over the host's best latency.
func (m *model) latency(from, to int) float64 {
	if latency := m.access.Latency(from, to); latency > 0 {
		return latency
	}
	return noPathLatency
}

// helpers returns how many CPUs are dedicated to a guest's emulator and I/O
// threads. Package place puts them on the first node.
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

// spreadVCPUs divides the vCPUs of a guest without cells in proportion to the
// CPUs of its nodes, because each of its vCPUs may run on all of them.
func (m *model) spreadVCPUs(g *subject, l *layout) {
	if g.spec.Topology.Mode != guest.TopologyOff || g.exclusive() {
		return
	}
	all := 0
	for i := range l.on {
		all += m.nodes[l.on[i].node].countFor(g)
	}
	for i := range l.on {
		l.on[i].cpu = ratio(float64(m.nodes[l.on[i].node].countFor(g)), float64(all))
	}
}

// swappedMemory returns the share of memory of cells whose new home is another
// cell's current one. Cells that swap homes leave the memory on each node
// unchanged, so a comparison by node does not see that their memory is copied.
func (m *model) swappedMemory(g *subject, homes []topology.NodeID) float64 {
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
	const near = 0.02 // smaller differences between shares do not count
	for i := range a.on {
		x, y := a.on[i], b.on[i]
		if x.node != y.node || x.cpu > y.cpu+near || y.cpu > x.cpu+near || x.mem > y.mem+near || y.mem > x.mem+near {
			return false
		}
	}
	return true
}
