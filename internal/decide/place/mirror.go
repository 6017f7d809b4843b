package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// mirror places a guest that hands CPUs over: there is nothing to search, since it
// covers each CPU of the policy's on its nodes. What is chosen is its home, its anchor,
// and the CPUs of its minimum.
type mirror struct {
	p      *problem
	rules  handoff.Rules
	others []handoff.Guest
	first  []handoff.Grant // with which the others start
	free   topology.CPUSet // CPUs that no other guest starts with
	nodes  []int           // positions of the nodes with CPUs and memory for it
	cells  []cellSize      // by node
	home   int
	out    guest.Placement
}

// placeMirror places a guest with sharing by hand-over.
func placeMirror(r Request) (guest.Placement, Why, error) {
	asked := r.Spec.VCPUs
	r.Spec.VCPUs = max(1, asked) // the number follows from the host
	p, err := newProblem(r)
	if err != nil {
		return guest.Placement{}, Why{}, err
	}
	if err := p.checkHelpers(); err != nil {
		return guest.Placement{}, Why{}, err
	}
	m := &mirror{p: p, rules: handoff.RulesOf(p.policy)}
	m.rules.CPUs = m.rules.CPUs.Intersect(p.host.Topology.CPUSet())
	m.others, m.first = handoff.Placed(p.host, r.Ignore)
	m.free = m.rules.CPUs
	for _, g := range m.first {
		m.free = m.free.Minus(m.unit(g.CPU))
	}
	for _, step := range []func() string{m.findNodes, m.findMemory, m.findHome, m.number, m.start} {
		if why := step(); why != "" {
			return guest.Placement{}, Why{}, &NoFitError{Guest: p.spec.Name, Reason: why}
		}
	}
	if asked > 0 && asked != len(m.out.VCPUs) {
		return guest.Placement{}, Why{}, &NoFitError{Guest: p.spec.Name, Reason: fmt.Sprintf(
			"it asks for %d vCPUs, and its nodes %s have %d CPUs for hand-over; leave vcpus out", asked, m.out.Nodes,
			len(m.out.VCPUs))}
	}
	m.fill()
	return m.out, m.why(), nil
}

// unit returns the CPUs that are handed over together with a CPU.
func (m *mirror) unit(id topology.CPUID) topology.CPUSet {
	if c, ok := m.p.host.Topology.CPU(id); ok && m.rules.WholeCores {
		return c.Siblings
	}
	return topology.SetOf(id)
}

// cpus returns the CPUs that the guest mirrors on a node.
func (m *mirror) cpus(i int) topology.CPUSet {
	cpus := m.p.nodes[i].node.CPUs.Intersect(m.rules.CPUs)
	if limits := m.p.spec.Limits.CPUs; !limits.IsEmpty() {
		cpus = cpus.Intersect(limits)
	}
	return cpus
}

func (m *mirror) findNodes() string {
	if m.rules.CPUs.IsEmpty() {
		return "the policy names no CPUs of this host for hand-over; set handoff.cpus"
	}
	for i := range m.p.nodes {
		if n := &m.p.nodes[i]; n.allowed && n.node.Memory > 0 && !m.cpus(i).IsEmpty() {
			m.nodes = append(m.nodes, i)
		}
	}
	for _, i := range m.nodes {
		for _, j := range m.nodes {
			if !m.p.near(i, j) {
				return fmt.Sprintf("nodes %d and %d are farther apart than its limits allow", m.p.nodes[i].node.ID,
					m.p.nodes[j].node.ID)
			}
		}
		m.out.Nodes = m.out.Nodes.With(m.p.nodes[i].node.ID)
	}
	if len(m.nodes) == 0 {
		return fmt.Sprintf("none of its nodes has memory and CPUs for hand-over (%s)", m.rules.CPUs)
	}
	if missing := m.p.required.Minus(m.out.Nodes); !missing.IsEmpty() {
		return fmt.Sprintf("a required device is on node %s", missing)
	}
	return ""
}

// findMemory divides the memory over the nodes, in proportion to theirs or as asked, and
// checks that they have it.
func (m *mirror) findMemory() string {
	unit := max(m.p.spec.PageSize, smallUnit)
	asked := m.p.spec.Topology.Cells
	switch {
	case len(asked) > 0 && len(asked) != len(m.nodes):
		return fmt.Sprintf("topology.cells has %d cells; its nodes are %s", len(asked), m.out.Nodes)
	case len(asked) == 0 && m.p.spec.Memory/unit < topology.Bytes(len(m.nodes)):
		return fmt.Sprintf("%v cannot be divided into %d cells", m.p.spec.Memory, len(m.nodes))
	}
	var weights []uint64
	for _, i := range m.nodes {
		weights = append(weights, uint64(m.p.nodes[i].node.Memory/topology.MiB))
	}
	parts := proportion(uint64(m.p.spec.Memory/unit), weights)
	for k, i := range m.nodes {
		c := cellSize{node: i, memory: topology.Bytes(parts[k]) * unit}
		if k == 0 {
			c.memory += m.p.spec.Memory % unit
		}
		if len(asked) > 0 {
			c.memory = asked[k].Memory
		}
		if c.memory == 0 {
			return fmt.Sprintf("no memory is left for a cell on node %d", m.p.nodes[i].node.ID)
		}
		m.cells = append(m.cells, c)
		if why := m.lacks(i, c.memory); why != "" {
			return why
		}
	}
	return ""
}

func (m *mirror) lacks(i int, memory topology.Bytes) string {
	n := &m.p.nodes[i]
	size := m.p.spec.PageSize
	grow := topology.Bytes(m.p.growth(n, memory)) * size
	switch {
	case size == 0 && memory > n.room.Left:
		return fmt.Sprintf("node %d has %v of memory left; the cell needs %v", n.node.ID, n.room.Left, memory)
	case grow > 0 && !m.p.policy.MayGrow(size), grow > n.room.Left:
		return fmt.Sprintf("node %d has %d free pages of %v; the cell needs %d", n.node.ID, n.room.Pool(size), size,
			memory/size)
	}
	return ""
}

// findHome takes the home that is asked for, else the node with most CPUs that no other
// guest starts with.
func (m *mirror) findHome() string {
	free := func(i int) int { return m.cpus(i).Intersect(m.free).Len() }
	if home := m.p.spec.CPU.Home; home != nil {
		at := slices.IndexFunc(m.nodes, func(i int) bool { return m.p.nodes[i].node.ID == *home })
		if at < 0 {
			return fmt.Sprintf("its home, node %d, has no memory or no CPUs for hand-over", *home)
		}
		m.home = m.nodes[at]
	} else {
		m.home = slices.MaxFunc(m.nodes, func(a, b int) int { return cmp.Compare(free(a), free(b)) })
	}
	if free(m.home) > 0 {
		return ""
	}
	return fmt.Sprintf("each CPU for hand-over on its home, node %d, belongs to the minimum of another VM",
		m.p.nodes[m.home].node.ID)
}

// number gives each CPU a vCPU, so that those of a core, a cache, a node and a socket
// follow each other. The home comes first, and begins with the anchor: the first CPU
// of a core that no other guest starts with, if there is one.
func (m *mirror) number() string {
	t := &m.p.host.Topology
	anchor := m.anchor()
	at, _ := t.CPU(anchor)
	homeSocket := at.Socket
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	var all []*topology.CPU
	for _, i := range m.nodes {
		for id := range m.cpus(i).All() {
			c, _ := t.CPU(id)
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *topology.CPU) int {
		return cmp.Or(cmp.Compare(rank(a.Socket == homeSocket), rank(b.Socket == homeSocket)),
			cmp.Compare(a.Socket, b.Socket),
			cmp.Compare(rank(a.Node == at.Node), rank(b.Node == at.Node)), cmp.Compare(a.Node, b.Node),
			cmp.Compare(rank(a.L3 == at.L3), rank(b.L3 == at.L3)), cmp.Compare(a.L3, b.L3),
			cmp.Compare(rank(a.Core == at.Core), rank(b.Core == at.Core)), cmp.Compare(a.Core, b.Core),
			cmp.Compare(rank(a.ID == anchor), rank(b.ID == anchor)), cmp.Compare(a.ID, b.ID))
	})
	for v, c := range all {
		m.out.VCPUs = append(m.out.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: topology.SetOf(c.ID)})
	}
	m.out.Handoff = &guest.Handoff{
		Home: m.p.nodes[m.home].node.ID, Min: max(1, m.p.spec.CPU.MinVCPUs), Weight: max(1, m.p.spec.CPU.Weight),
		Seen: seen(all),
	}
	m.makeCells(all)
	if m.out.Handoff.Min > len(all) {
		return fmt.Sprintf("min_vcpus is %d, and its nodes have %d CPUs for hand-over", m.out.Handoff.Min, len(all))
	}
	return ""
}

// anchor is a CPU of the home that no other guest starts with, on a core of which the
// same holds if there is one.
func (m *mirror) anchor() topology.CPUID {
	free := m.cpus(m.home).Intersect(m.free)
	for id := range free.All() {
		if c, _ := m.p.host.Topology.CPU(id); c.Siblings.Intersect(m.rules.CPUs).SubsetOf(m.free) {
			return id
		}
	}
	id, _ := free.First()
	return id
}

// makeCells makes a cell of each node, in the order of the vCPUs.
func (m *mirror) makeCells(all []*topology.CPU) {
	for v, c := range all {
		n := len(m.out.Cells)
		if n == 0 || !m.out.Cells[n-1].Nodes.Contains(c.Node) {
			cell := guest.Cell{ID: guest.CellID(n), Nodes: topology.SetOf(c.Node)}
			for _, size := range m.cells {
				if m.p.nodes[size.node].node.ID == c.Node {
					cell.Memory = size.memory
				}
			}
			m.out.Cells = append(m.out.Cells, cell)
			n++
		}
		m.out.Cells[n-1].VCPUs = m.out.Cells[n-1].VCPUs.With(guest.VCPUID(v))
	}
	for i := range m.out.Cells {
		cell := &m.out.Cells[i]
		from := m.position(cell)
		for j := range m.out.Cells {
			d := selfDistance
			if i != j {
				d = m.p.access.GuestDistance(from, from, m.position(&m.out.Cells[j]))
			}
			cell.Distances = append(cell.Distances, d)
		}
	}
}

func (m *mirror) position(c *guest.Cell) int {
	return slices.IndexFunc(m.p.nodes, func(n nodeState) bool { return c.Nodes.Contains(n.node.ID) })
}

// seen is the regular arrangement that shows most of the CPUs' sockets, caches and
// cores: QEMU has no irregular ones.
func seen(all []*topology.CPU) guest.CPUTopology {
	threads := runLength(all, func(c *topology.CPU) int { return int(c.Core) })
	dies := runLength(all, func(c *topology.CPU) int { return int(c.L3) })
	sockets := runLength(all, func(c *topology.CPU) int { return int(c.Socket) })
	threads = max(1, threads)
	if sockets == 0 {
		sockets = runLength(all, func(c *topology.CPU) int { return int(c.Node) })
	}
	if sockets == 0 || sockets%threads != 0 {
		return guest.CPUTopology{Sockets: len(all) / threads, Dies: 1, Cores: 1, Threads: threads}
	}
	if dies == 0 || all[0].L3 < 0 || sockets%dies != 0 || dies%threads != 0 {
		dies = sockets
	}
	return guest.CPUTopology{
		Sockets: len(all) / sockets, Dies: sockets / dies, Cores: dies / threads, Threads: threads,
	}
}

// runLength returns the length of the runs of CPUs with one key, 0 if they differ or a key
// has several.
func runLength(all []*topology.CPU, key func(*topology.CPU) int) int {
	length, before := 0, map[int]bool{}
	for i := 0; i < len(all); {
		k, n := key(all[i]), 0
		for i+n < len(all) && key(all[i+n]) == k {
			n++
		}
		if before[k] || length != 0 && length != n {
			return 0
		}
		before[k], length = true, n
		i += n
	}
	return length
}

// start grants the guest the CPUs of its minimum, of those with which no other guest
// starts.
func (m *mirror) start() string {
	own, _ := handoff.GuestOf(m.p.spec.Name, &m.out)
	own.Name = "\x00" + own.Name // no other guest's name
	in := handoff.Input{
		Topology: &m.p.host.Topology, Rules: m.rules, Guests: append([]handoff.Guest{own}, m.others...),
		Grants: m.first,
	}
	for i := range m.others { // CPUs that left the policy meanwhile are not theirs to mirror
		g := &in.Guests[i+1]
		gone := func(c topology.CPUID) bool { return !m.rules.CPUs.Contains(c) }
		g.Mirror = slices.DeleteFunc(slices.Clone(g.Mirror), gone)
		if len(g.Mirror) == 0 {
			return fmt.Sprintf("the policy's CPUs for hand-over (%s) have none of VM %s", m.rules.CPUs, g.Name)
		}
		g.Min = min(g.Min, len(g.Mirror))
	}
	d, _, err := handoff.Decide(in)
	if err != nil {
		return err.Error()
	}
	for _, take := range d.Takes {
		if take.Guest == own.Name {
			m.out.Handoff.First = m.out.Handoff.First.With(take.CPU)
		}
	}
	if n := m.out.Handoff.First.Len(); n < own.Min {
		return fmt.Sprintf("min_vcpus is %d, and %d CPUs of its nodes belong to no minimum of another VM", own.Min, n)
	}
	return ""
}

// fill sets what does not depend on a choice.
func (m *mirror) fill() {
	s, out := &m.p.spec, &m.out
	out.Guest, out.CPUMode, out.Visible = s.Name, guest.CPUHandoff, true
	out.MemoryMode, out.PageSize = s.Binding.Mode, s.PageSize
	out.Immediate = s.Binding.Immediate || s.PageSize > 0
	out.Movable, out.Devices, out.IOThreads = s.IsMovable(), slices.Clone(s.Devices), s.CPU.IOThreads
	out.Emulator = m.helper(s.CPU.Emulator)
	if s.CPU.IOThreads > 0 {
		out.IOThread = m.helper(s.CPU.IOPolicy)
	}
	left := out.Handoff.Min
	first := out.Handoff.First
	for _, c := range m.cells {
		id := m.p.nodes[c.node].node.ID
		out.Reservations = append(out.Reservations, guest.Reservation{Node: id, Memory: c.memory, PageSize: s.PageSize})
	}
	for i := range out.Reservations { // a whole core may be more than the minimum
		n, _ := m.p.host.Topology.Node(out.Reservations[i].Node)
		here := min(left, n.CPUs.Intersect(first).Len())
		out.Reservations[i].VCPUs = here
		left -= here
	}
}

// helper returns CPUs for QEMU's own threads: those of the guest's nodes that guests
// do not hand over, else the host's own, else the anchor.
func (m *mirror) helper(h guest.HelperPolicy) topology.CPUSet {
	if h == guest.HelperNone {
		return topology.CPUSet{}
	}
	var cpus topology.CPUSet
	for _, i := range m.nodes {
		if h == guest.HelperNodes {
			cpus = cpus.Union(m.p.nodes[i].room.Shared)
		}
	}
	if cpus.IsEmpty() {
		cpus = m.p.housekeeping().Minus(m.rules.CPUs)
	}
	if cpus.IsEmpty() {
		cpus = m.out.VCPUs[0].CPUs
	}
	return cpus
}

func (m *mirror) why() Why {
	h := m.out.Handoff
	w := Why{
		Guest: m.p.spec.Name, Nodes: m.out.Nodes, Optimal: true, Considered: 1, Access: "SLIT, damped",
		Summary: fmt.Sprintf("nodes %s: mirrors their %d CPUs for hand-over and has at least %d of them, "+
			"first CPUs %s; home node %d, anchor CPU %s",
			m.out.Nodes, len(m.out.VCPUs), h.Min, h.First, h.Home, m.out.VCPUs[0].CPUs),
	}
	if m.p.access.Measured() {
		w.Access = "measured latency"
	}
	for _, c := range m.cells {
		if pages := m.p.growth(&m.p.nodes[c.node], c.memory); pages > 0 {
			w.Grow = append(w.Grow, Growth{m.p.nodes[c.node].node.ID, m.p.spec.PageSize, pages})
		}
	}
	return w
}
