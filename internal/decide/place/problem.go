package place

import (
	"fmt"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// problem is a request with the tables that its search needs.
type problem struct {
	host   *inventory.Host
	spec   guest.Spec
	policy policy.Policy
	list   cost.List
	access *cost.Access
	nodes  []nodeState // in the order of Topology.Nodes
	slots  []slot
	// required are nodes that the guest must have, for its devices.
	required topology.NodeSet
	devices  []int // positions of the nodes of the guest's devices
	// anyFit says that any uneven cells that fit will do: advice is tried, not placed.
	anyFit bool
	aim    aim
	// counted says that the vacancies of all nodes are known.
	counted bool
	// unavoidable is the number of parts that the guest needs regardless of overload.
	unavoidable int
	rooms       []room             // see uneven; nil until needed
	priced      map[partSize][]key // see pricesOf
	ways        []cost.Micro       // see way; nil until uneven cells are searched
}

// nodeState is a node with the resources available to this guest.
type nodeState struct {
	node    *topology.Node
	room    capacity.Node
	allowed bool            // by Limits.Nodes
	usable  topology.CPUSet // shared CPUs within Limits.CPUs
	cpus    int             // number of usable CPUs
	cores   int             // number of cores with usable CPUs; 0 until they are counted
	shared  int             // CPUs that guests share, regardless of the limits
	all     int             // all CPUs except housekeeping
	idle    float64         // usable CPUs that nobody wants; less than 0 if more are wanted
	before  cost.Use
	busy    float64               // share of the memory bandwidth that other guests use; 0: not measured
	free    []core                // for exclusive CPUs; nil unless requested
	picks   map[[2]int]pickedCPUs // by vCPUs and helpers, see pickFor
	// vacancies of the node before placing, and of its neighbours, see addVacancies
	vacant, nearSum, nearMost vacancies
}

// slot is a location for a cell: CPUs of one node and memory of one node, usually the same.
type slot struct{ cpu, mem int }

func (s slot) whole() bool { return s.cpu == s.mem }

// nodeCount is the number of nodes that a cell in this slot uses.
func (s slot) nodeCount() int {
	if s.whole() {
		return 1
	}
	return 2
}

// newProblem prepares a request; the error names the invalid field.
func newProblem(r Request) (*problem, error) {
	if r.Host == nil {
		return nil, fmt.Errorf("placing VM %s: no inventory given", r.Spec.Name)
	}
	if err := r.Policy.Validate(); err != nil {
		return nil, err
	}
	p := &problem{host: r.Host, spec: withDefaults(r.Spec), policy: r.Policy.WithDefaults()}
	var err error
	if p.spec.Limits, err = r.Host.WithinPool(p.spec.Limits); err != nil {
		return nil, fmt.Errorf("placing VM %s: %w", r.Spec.Name, err)
	}
	p.list = cost.NewList(p.policy)
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.access = cost.NewAccess(&r.Host.Topology)
	p.addNodes(capacity.Available(r.Host, p.policy, r.Ignore))
	if err := p.addDevices(); err != nil {
		return nil, err
	}
	p.addSlots()
	return p, nil
}

// withDefaults replaces zero values by the defaults that guest.Spec documents.
func withDefaults(s guest.Spec) guest.Spec {
	if s.CPU.Binding == "" {
		s.CPU.Binding = guest.CPURange
	}
	if s.CPU.SMT == "" {
		s.CPU.SMT = guest.SMTAny
	}
	if s.CPU.Emulator == "" {
		s.CPU.Emulator = guest.HelperNodes
	}
	if s.CPU.IOPolicy == "" {
		s.CPU.IOPolicy = guest.HelperNodes
	}
	if s.Binding.Mode == "" {
		s.Binding.Mode = guest.MemoryPreferred
	}
	if s.Topology.Mode == "" {
		s.Topology.Mode = guest.TopologyAuto
	}
	return s
}

// validate refuses specs that fit no host.
func (p *problem) validate() error {
	s := &p.spec
	bad := func(field string, value any, allowed string) error {
		return fmt.Errorf("placing VM %s: %s is %v; allowed: %s", s.Name, field, value, allowed)
	}
	switch {
	case s.VCPUs < 1:
		return bad("vcpus", s.VCPUs, "1 and more")
	case s.Memory == 0:
		return bad("memory", s.Memory, "more than 0")
	case s.PageSize > 0 && s.Memory%s.PageSize != 0:
		return bad("memory", s.Memory, fmt.Sprintf("whole pages of %v", s.PageSize))
	case s.CPU.IOThreads < 0:
		return bad("cpu.io_threads", s.CPU.IOThreads, "0 and more")
	}
	if s.Topology.Mode != guest.TopologyCells {
		return nil
	}
	if len(s.Topology.Cells) == 0 {
		if s.Topology.Count < 1 {
			return bad("topology.count", s.Topology.Count, "1 and more")
		}
		return nil
	}
	vcpus, memory := 0, topology.Bytes(0)
	for i, c := range s.Topology.Cells {
		if c.VCPUs < 1 || c.Memory == 0 || s.PageSize > 0 && c.Memory%s.PageSize != 0 {
			return bad(fmt.Sprintf("topology.cells[%d]", i), fmt.Sprintf("%d vCPUs, %v", c.VCPUs, c.Memory),
				"1 vCPU and 1 whole page and more")
		}
		vcpus, memory = vcpus+c.VCPUs, memory+c.Memory
	}
	if vcpus != s.VCPUs || memory != s.Memory {
		return bad("topology.cells", fmt.Sprintf("%d vCPUs, %v in all", vcpus, memory),
			fmt.Sprintf("the VM's %d vCPUs, %v", s.VCPUs, s.Memory))
	}
	return nil
}

// addNodes computes the resources of each node that this guest may use.
func (p *problem) addNodes(rooms []capacity.Node) {
	t := &p.host.Topology
	p.nodes = make([]nodeState, len(rooms))
	limits := &p.spec.Limits
	for i := range rooms {
		n := nodeState{node: &t.Nodes[i], room: rooms[i]}
		n.allowed = limits.Nodes.IsEmpty() || limits.Nodes.Contains(n.node.ID)
		n.shared = n.room.Shared.Len()
		n.all = n.room.CPUs.Len() - n.room.Housekeeping.Len()
		n.usable = n.room.Shared
		if !limits.CPUs.IsEmpty() {
			n.usable = n.usable.Intersect(limits.CPUs)
		}
		n.cpus = n.usable.Len()
		n.idle = n.room.Idle(n.usable)
		n.before = n.use(0, 0)
		if mbps, ok := t.Bandwidth(n.node.ID, n.node.ID); ok && mbps > 0 {
			n.busy = n.room.Traffic / mbps
		}
		p.nodes[i] = n
	}
	p.addFree()
}

// use returns the shares of the node in use with the given CPUs and bytes added.
func (n *nodeState) use(cpus int, memory topology.Bytes) cost.Use {
	var u cost.Use
	if n.all > 0 {
		taken := n.room.Exclusive.Minus(n.room.Housekeeping).Len()
		u.CPU = (n.room.Load + float64(taken+cpus)) / float64(n.all)
	}
	if capacity := n.room.Memory - n.room.KeepFree; capacity > 0 {
		u.Memory = float64(n.room.Promised+memory) / float64(capacity)
	}
	return u
}

// demand is the share of the node's CPUs that is wanted with the given CPUs added: by
// other guests and the host as measured. If the guest may use only some of the CPUs, it is the share of these.
func (n *nodeState) demand(cpus int) float64 {
	switch {
	case n.all == 0:
		return 0
	case n.cpus > 0 && n.cpus < n.shared:
		return (n.room.DemandFor(n.usable) + float64(cpus)) / float64(n.cpus)
	}
	taken := n.room.Exclusive.Minus(n.room.Housekeeping).Len()
	return (n.room.Demand + float64(taken+cpus)) / float64(n.all)
}

// overload returns how many of the given CPUs, added to the node, exceed the CPUs that the guest
// may use there, in whole CPUs: a measured demand that exceeds them by a fraction of a CPU does
// not count.
func (n *nodeState) overload(cpus int) int {
	return max(0, min(cpus, int(float64(cpus)-n.idle+roundingSlack)))
}

// withoutOverload returns how many CPUs can be added to the node.
func (n *nodeState) withoutOverload() int {
	return max(0, int(math.Ceil(n.idle+1-roundingSlack))-1)
}

// addFree walks the CPUs once, if the guest is to have CPUs of its own, and adds the cores with free CPUs to the nodes.
func (p *problem) addFree() {
	if p.spec.CPU.Binding != guest.CPUExclusive && p.helperCPUs() == 0 {
		return
	}
	t := &p.host.Topology
	position := make(map[topology.NodeID]int, len(p.nodes))
	for i := range p.nodes {
		position[p.nodes[i].node.ID] = i
	}
	for c := range t.CPUs {
		if i, ok := position[t.CPUs[c].Node]; ok {
			p.nodes[i].addFree(&t.CPUs[c])
		}
	}
}

// addDevices finds the nodes of the guest's devices.
func (p *problem) addDevices() error {
	t := &p.host.Topology
	var required []topology.NodeID
	for _, d := range p.spec.Devices {
		i := slices.IndexFunc(t.Devices, func(h topology.Device) bool { return h.Address == d.Address })
		if i < 0 {
			return fmt.Errorf("placing VM %s: device %s is not on host %s", p.spec.Name, d.Address, p.host.Name)
		}
		node := t.Devices[i].Node
		if _, known := t.Node(node); !known {
			continue // the firmware names no node for the device: all nodes count as equally near
		}
		if d.Required {
			required = append(required, node)
		}
		p.devices = append(p.devices, slices.IndexFunc(t.Nodes, func(n topology.Node) bool { return n.ID == node }))
	}
	p.required = topology.SetOf(required...)
	return nil
}

// addSlots lists the slots that a cell could have on this host.
func (p *problem) addSlots() {
	for i := range p.nodes {
		if !p.nodes[i].allowed || p.nodes[i].node.CPUs.IsEmpty() {
			continue
		}
		for j := range p.nodes {
			if p.pairs(i, j) {
				p.slots = append(p.slots, slot{i, j})
			}
		}
	}
}

// pairs reports whether a cell may run on node i with its memory on node j.
func (p *problem) pairs(i, j int) bool {
	run, mem := &p.nodes[i], &p.nodes[j]
	switch {
	case !mem.allowed || mem.node.Memory == 0 || !p.access.Reachable(i, j):
		return false
	case i == j:
		return true
	case mem.node.CPUs.IsEmpty():
		return p.spec.Limits.Nodes.Contains(mem.node.ID) && p.near(i, j)
	}
	return run.node.Memory == 0 && p.near(i, j)
}

// near reports whether nodes i and j may belong to one guest: each can access the
// other, within the greatest distance and class allowed.
func (p *problem) near(i, j int) bool {
	return p.nearOneWay(i, j) && p.nearOneWay(j, i)
}

func (p *problem) nearOneWay(i, j int) bool {
	if i == j || p.nodes[i].node.CPUs.IsEmpty() || p.nodes[j].node.Memory == 0 {
		return true // no access in this direction
	}
	limits := &p.spec.Limits
	d := p.access.SLIT(i, j)
	switch {
	case !p.access.Reachable(i, j):
		return false
	case limits.MaxDistance > 0 && (d == 0 || d > limits.MaxDistance):
		return false
	case limits.MaxClass != "":
		return classRank(p.nodes[i].node.Classes[p.nodes[j].node.ID]) <= classRank(limits.MaxClass)
	}
	return true
}

// classRank orders the classes; an unknown class is the farthest.
func classRank(c topology.Class) int {
	switch c {
	case topology.Local:
		return 0
	case topology.Neighbour:
		return 1
	case topology.Remote:
	}
	return 2
}

// together reports whether two cells of one guest may have these slots.
func (p *problem) together(a, b slot) bool {
	if a.cpu == b.cpu || a.mem == b.mem || a.cpu == b.mem || a.mem == b.cpu {
		return false
	}
	return p.near(a.cpu, b.mem) && p.near(b.cpu, a.mem) && p.near(a.cpu, b.cpu) && p.near(a.mem, b.mem)
}
