package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// selfDistance is the distance of a cell to itself in the guest's SLIT (ACPI).
const selfDistance = 10

// assembly collects a placement.
type assembly struct {
	p        *problem
	sol      *solution
	out      guest.Placement
	picks    []picked        // by cell
	alone    topology.CPUSet // all CPUs dedicated to the guest
	reserved map[topology.NodeID]*guest.Reservation
}

// assemble turns a solution into a placement: cells, CPUs, helpers, reservations.
func (p *problem) assemble(sol *solution) guest.Placement {
	s := &p.spec
	a := &assembly{p: p, sol: sol, reserved: map[topology.NodeID]*guest.Reservation{}}
	a.out = guest.Placement{
		Guest: s.Name, CPUMode: s.CPU.Binding, IOThreads: s.CPU.IOThreads,
		MemoryMode: s.Binding.Mode, PageSize: s.PageSize,
		Immediate: s.Binding.Immediate || s.PageSize > 0,
		Movable:   s.IsMovable(), Devices: slices.Clone(s.Devices),
		Visible: p.visible(sol),
	}
	if s.IsScaled() {
		a.out.Scale = &guest.Scale{Min: s.CPU.MinVCPUs, Weight: s.CPU.Weight}
	}
	a.pick()
	a.reserve()
	a.cells()
	a.vcpus()
	a.out.Emulator = a.helper(s.CPU.Emulator, 0, 1)
	if s.CPU.IOThreads > 0 {
		first := 0
		if s.CPU.Emulator == guest.HelperExclusive {
			first = 1
		}
		a.out.IOThread = a.helper(s.CPU.IOPolicy, first, s.CPU.IOThreads)
	}
	return a.out
}

// visible reports whether the guest sees its cells.
func (p *problem) visible(sol *solution) bool {
	switch p.spec.Topology.Mode {
	case guest.TopologyOff:
		return false
	case guest.TopologyAuto:
		return len(sol.cells) > 1 && !sol.thin()
	case guest.TopologyCells, guest.TopologyMirror:
	}
	return true
}

// thin reports whether a part of the guest is memory without vCPUs. Such a guest sees
// no NUMA: a cell would have nothing that runs in it.
func (sol *solution) thin() bool {
	return slices.ContainsFunc(sol.cells, func(c cellSize) bool { return c.vcpus == 0 })
}

// demandOf returns the kind of a cell.
func (sol *solution) demandOf(cell int) *demand {
	for k := range sol.kinds {
		if slices.Contains(sol.kinds[k].cells, cell) {
			return &sol.kinds[k]
		}
	}
	return nil
}

func (a *assembly) pick() {
	a.picks = make([]picked, len(a.sol.cells))
	for i := range a.sol.cells {
		d := a.sol.demandOf(i)
		if a.p.alone(d) == 0 {
			continue
		}
		a.picks[i], _ = a.p.pickFor(&a.p.nodes[a.sol.slots[i].cpu], d)
		a.alone = a.alone.Union(a.picks[i].all())
	}
}

func (a *assembly) reserve() {
	at := func(i int) *guest.Reservation {
		id := a.p.nodes[i].node.ID
		r, ok := a.reserved[id]
		if !ok {
			r = &guest.Reservation{Node: id}
			a.reserved[id] = r
		}
		return r
	}
	for i, c := range a.sol.cells {
		run, mem := at(a.sol.slots[i].cpu), at(a.sol.slots[i].mem)
		run.VCPUs += c.vcpus
		run.Exclusive = run.Exclusive.Union(a.picks[i].all())
		mem.Memory += c.take
		mem.PageSize = a.p.spec.PageSize
		a.out.Nodes = a.out.Nodes.With(mem.Node)
	}
	for _, r := range a.reserved {
		a.out.Reservations = append(a.out.Reservations, *r)
	}
	slices.SortFunc(a.out.Reservations, func(x, y guest.Reservation) int { return cmp.Compare(x.Node, y.Node) })
}

// cells fills in the guest's cells: a single one if the spec hides NUMA from it.
func (a *assembly) cells() {
	first := guest.VCPUID(0)
	for i, c := range a.sol.cells {
		cell := guest.Cell{
			ID: guest.CellID(i), Memory: c.memory,
			VCPUs: topology.Range(first, first+guest.VCPUID(c.vcpus)-1),
			Nodes: topology.SetOf(a.p.nodes[a.sol.slots[i].mem].node.ID),
		}
		if a.p.spec.Binding.Mode == guest.MemoryInterleave {
			cell.Nodes = a.out.Nodes
		}
		if a.out.Visible {
			cell.Distances = a.distances(i)
		}
		first += guest.VCPUID(c.vcpus)
		a.out.Cells = append(a.out.Cells, cell)
	}
	if !a.out.Visible && len(a.out.Cells) > 1 {
		a.out.Cells = []guest.Cell{{
			VCPUs: topology.Range(0, first-1), Memory: a.p.spec.Memory, Nodes: a.out.Nodes,
		}}
	}
}

// distances returns the row of one cell in the guest's SLIT.
func (a *assembly) distances(from int) []int {
	row := make([]int, len(a.sol.slots))
	own := a.sol.slots[from]
	for to, s := range a.sol.slots {
		row[to] = selfDistance
		if to != from {
			row[to] = a.p.access.GuestDistance(own.cpu, own.mem, s.mem)
		}
	}
	return row
}

// vcpus sets the CPUs on which each vCPU may run.
func (a *assembly) vcpus() {
	var everywhere topology.CPUSet // for a guest without NUMA: all nodes with vCPUs
	for i, s := range a.sol.slots {
		if a.sol.cells[i].vcpus > 0 {
			everywhere = everywhere.Union(a.p.nodes[s.cpu].usable)
		}
		if a.p.host.NearMemoryOnly {
			everywhere = everywhere.Union(a.p.nodes[s.mem].usable)
		}
	}
	everywhere = everywhere.Minus(a.alone)
	spans := !a.out.Visible
	id := guest.VCPUID(0)
	for i, c := range a.sol.cells {
		here := a.p.nodes[a.sol.slots[i].cpu].usable.Minus(a.alone)
		for v := range c.vcpus {
			vcpu := guest.VCPU{ID: id}
			switch {
			case a.out.CPUMode == guest.CPUExclusive:
				vcpu.CPUs = topology.SetOf(a.picks[i].vcpus[v])
			case a.out.CPUMode == guest.CPUNone:
			case spans:
				vcpu.CPUs = everywhere
			default:
				vcpu.CPUs = here
			}
			a.out.VCPUs = append(a.out.VCPUs, vcpu)
			id++
		}
	}
}

// helper returns the CPUs of emulator or I/O threads. Exclusive threads get count
// of the CPUs picked on the first node, starting with index first.
func (a *assembly) helper(policy guest.HelperPolicy, first, count int) topology.CPUSet {
	switch policy {
	case guest.HelperNone:
		return topology.CPUSet{}
	case guest.HelperHousekeeping:
		return a.p.housekeeping()
	case guest.HelperExclusive:
		return topology.SetOf(a.picks[0].helpers[first : first+count]...)
	case guest.HelperNodes:
	}
	var free, own topology.CPUSet
	for i, s := range a.sol.slots {
		if a.sol.cells[i].vcpus > 0 {
			free = free.Union(a.p.nodes[s.cpu].usable.Minus(a.alone))
		}
		own = own.With(a.picks[i].vcpus...)
	}
	if free.IsEmpty() {
		return own
	}
	return free
}

func (p *problem) housekeeping() topology.CPUSet {
	return p.host.Topology.Housekeeping.Union(p.policy.Housekeeping).Intersect(p.host.Topology.CPUSet())
}

// checkHelpers refuses housekeeping threads on a host without housekeeping CPUs.
func (p *problem) checkHelpers() error {
	for _, h := range []struct {
		field  string
		policy guest.HelperPolicy
		used   bool
	}{
		{"cpu.emulator", p.spec.CPU.Emulator, true},
		{"cpu.io_thread_policy", p.spec.CPU.IOPolicy, p.spec.CPU.IOThreads > 0},
	} {
		if h.used && h.policy == guest.HelperHousekeeping && p.housekeeping().IsEmpty() {
			return fmt.Errorf(
				"placing VM %s: %s is %q, but host %s has no housekeeping CPUs; set some in the policy, or use %q",
				p.spec.Name,
				h.field,
				h.policy,
				p.host.Name,
				guest.HelperNodes,
			)
		}
	}
	return nil
}
