package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// The kernel's own limits (CONFIG_NR_CPUS, CONFIG_NODES_SHIFT): a description
// beyond them is broken or hostile.
const (
	maxCPUs  = 8192
	maxNodes = 1024
	maxGaps  = 400
)

// SeenCPU is an online CPU as a source describes it, before cores, dies and caches
// get numbers that are unique on the host.
type SeenCPU struct {
	ID CPUID
	// Socket, Die and Core are the source's numbers: a die's need only be
	// unique in its socket, a core's in its die. -1 is unknown.
	Socket, Die, Core int
	Siblings          CPUSet // SMT siblings; empty: the CPUs with the same Socket, Die and Core
	L3                CPUSet // CPUs that share the last-level cache; empty: unknown
}

// Assemble makes a Topology that satisfies the package's invariants from a source's
// report, which may contradict itself: Assemble omits impossible values and names
// them in Gaps. seen has Nodes (their CPUs may list CPUs that are not
// online), Devices, Housekeeping, Offline, Measured, Source and Gaps in any
// order; its CPUs are ignored. Assemble numbers dies, like cores, by their
// lowest CPU. It fails only if the host has no node, or no node has a CPU.
func Assemble(seen Topology, cpus []SeenCPU) (Topology, error) {
	a := assembly{Topology: seen, seen: map[CPUID]SeenCPU{}}
	a.Gaps = slices.Clone(seen.Gaps)
	if len(cpus) > maxCPUs || len(seen.Nodes) > maxNodes {
		return Topology{}, fmt.Errorf("%d CPUs and %d nodes: Linux knows at most %d and %d", len(cpus), len(seen.Nodes),
			maxCPUs, maxNodes)
	}
	a.takeCPUs(cpus)
	a.takeNodes(seen.Nodes)
	a.dropHomeless()
	if len(a.Nodes) == 0 || len(a.seen) == 0 {
		return Topology{}, errors.New("no online CPU that belongs to a NUMA node")
	}
	a.checkSiblings()
	a.numberCPUs()
	for i := range a.Nodes {
		a.checkNode(&a.Nodes[i])
	}
	a.checkDevices(seen.Devices)
	a.Offline = a.Offline.Minus(a.online)
	a.Housekeeping = a.Housekeeping.Intersect(a.online)
	a.Classify()
	return a.Topology, a.Validate()
}

type assembly struct {
	Topology
	seen   map[CPUID]SeenCPU
	online CPUSet
}

func (a *assembly) gap(format string, args ...any) {
	if len(a.Gaps) < maxGaps {
		a.Gaps = append(a.Gaps, fmt.Sprintf(format, args...))
	}
}

func (a *assembly) takeCPUs(cpus []SeenCPU) {
	ids := make([]CPUID, 0, len(cpus))
	var twice CPUSet
	for _, c := range cpus {
		if c.ID < 0 || c.ID > maxID {
			a.gap("CPU %d: not a number from 0 to %d; left out", c.ID, maxID)
			continue
		}
		if _, ok := a.seen[c.ID]; ok {
			twice = twice.With(c.ID)
			continue
		}
		a.seen[c.ID] = c
		ids = append(ids, c.ID)
	}
	if !twice.IsEmpty() {
		a.gap("CPUs %s are described twice; the first description is used", twice)
	}
	a.online = SetOf(ids...)
}

func (a *assembly) takeNodes(nodes []Node) {
	a.Nodes = slices.Clone(nodes)
	slices.SortStableFunc(a.Nodes, func(x, y Node) int { return cmp.Compare(x.ID, y.ID) })
	var taken CPUSet
	last := NoNode
	a.Nodes = slices.DeleteFunc(a.Nodes, func(n Node) bool {
		if n.ID < 0 || n.ID > maxID || n.ID == last {
			a.gap("node %d: number out of range or given twice; left out", n.ID)
			return true
		}
		last = n.ID
		return false
	})
	for i := range a.Nodes {
		n := &a.Nodes[i]
		n.CPUs = n.CPUs.Intersect(a.online)
		if both := n.CPUs.Intersect(taken); !both.IsEmpty() {
			a.gap("CPUs %s of node %d are also listed by a node of lower number, to which they are assigned", both,
				n.ID)
			n.CPUs = n.CPUs.Minus(taken)
		}
		taken = taken.Union(n.CPUs)
	}
}

func (a *assembly) dropHomeless() {
	homeless := a.online.Minus(a.CPUsOf(a.NodeSet()))
	if homeless.IsEmpty() {
		return
	}
	a.gap("CPUs %s are online but no node lists them; left out", homeless)
	for c := range homeless.All() {
		delete(a.seen, c)
	}
	a.online = a.online.Minus(homeless)
}

// checkSiblings makes the sibling sets a partition of the online CPUs.
func (a *assembly) checkSiblings() {
	cores := map[[3]int]CPUSet{}
	for id := range a.online.All() {
		if c := a.seen[id]; c.Siblings.IsEmpty() && c.Core >= 0 {
			k := [3]int{c.Socket, c.Die, c.Core}
			cores[k] = cores[k].With(id)
		}
	}
	for id := range a.online.All() {
		c := a.seen[id]
		if c.Siblings.IsEmpty() && c.Core >= 0 {
			c.Siblings = cores[[3]int{c.Socket, c.Die, c.Core}]
		}
		c.Siblings = c.Siblings.Intersect(a.online)
		if c.Siblings.IsEmpty() {
			c.Siblings = SetOf(id)
		}
		a.seen[id] = c
	}
	var odd CPUSet
	for id := range a.online.All() {
		c := a.seen[id]
		for s := range c.Siblings.All() {
			if !c.Siblings.Contains(id) || !a.seen[s].Siblings.Equal(c.Siblings) {
				odd = odd.With(id)
				break
			}
		}
	}
	if odd.IsEmpty() {
		return
	}
	a.gap("the SMT siblings of CPUs %s contradict each other; each is taken as a core of its own", odd)
	for id := range odd.All() {
		c := a.seen[id]
		c.Siblings = SetOf(id)
		a.seen[id] = c
	}
}

// numberCPUs fills CPUs: cores, dies and L3 domains get the number of their lowest online CPU.
func (a *assembly) numberCPUs() {
	a.CPUs = make([]CPU, 0, len(a.seen))
	dies := map[[2]int]CPUID{}
	var noSocket, noL3 CPUSet
	for _, n := range a.Nodes {
		for id := range n.CPUs.All() {
			a.CPUs = append(a.CPUs, CPU{ID: id, Node: n.ID})
		}
	}
	slices.SortFunc(a.CPUs, func(x, y CPU) int { return cmp.Compare(x.ID, y.ID) })
	for i := range a.CPUs {
		c := &a.CPUs[i]
		s := a.seen[c.ID]
		if s.Socket < 0 {
			noSocket, s.Socket = noSocket.With(c.ID), 0
		}
		die, ok := dies[[2]int{s.Socket, s.Die}]
		if !ok {
			die = c.ID
			dies[[2]int{s.Socket, s.Die}] = die
		}
		core, _ := s.Siblings.First()
		c.Core, c.Die, c.Socket, c.Siblings, c.L3 = CoreID(core), DieID(die), SocketID(s.Socket), s.Siblings, -1
		if l3 := s.L3.Intersect(a.online); l3.Contains(c.ID) {
			lowest, _ := l3.First()
			c.L3 = L3ID(lowest)
		} else {
			noL3 = noL3.With(c.ID)
		}
	}
	if !noSocket.IsEmpty() {
		a.gap("the socket of CPUs %s is unknown; taken as socket 0", noSocket)
	}
	if !noL3.IsEmpty() {
		a.gap("the L3 domain of CPUs %s is unknown", noL3)
	}
}

func (a *assembly) checkNode(n *Node) {
	if n.Free > n.Memory {
		a.gap("node %d: %v free of %v; taken as %[3]v", n.ID, n.Free, n.Memory)
		n.Free = n.Memory
	}
	n.Reclaimable = min(n.Reclaimable, n.Memory-n.Free)
	n.HugePages = slices.Clone(n.HugePages)
	slices.SortFunc(n.HugePages, func(x, y HugePagePool) int { return cmp.Compare(x.Size, y.Size) })
	for i := range n.HugePages {
		p := &n.HugePages[i]
		if p.Free > p.Total {
			a.gap("node %d: %d huge pages of %v free of %d; taken as %[4]d", n.ID, p.Free, p.Size, p.Total)
			p.Free = p.Total
		}
	}
	known := map[NodeID]int{}
	var missing NodeSet
	for _, to := range a.Nodes {
		if d := n.Distances[to.ID]; d >= 1 {
			known[to.ID] = d
		} else {
			missing = missing.With(to.ID)
		}
	}
	n.Distances = known
	if !missing.IsEmpty() {
		a.gap("node %d: no distance to nodes %s", n.ID, missing)
	}
}

func (a *assembly) checkDevices(devices []Device) {
	a.Devices = slices.Clone(devices)
	slices.SortFunc(a.Devices, func(x, y Device) int { return cmp.Compare(x.Address, y.Address) })
	for i := range a.Devices {
		d := &a.Devices[i]
		slices.Sort(d.Names)
		d.Names = slices.Compact(d.Names)
		if _, ok := a.Node(d.Node); !ok && d.Node != NoNode {
			a.gap("device %s: names node %d, which does not exist", d.Address, d.Node)
			d.Node = NoNode
		}
	}
}
