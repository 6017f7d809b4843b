package guest

import (
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// Placement is the nodes, CPUs and memory that a guest was given on one host.
type Placement struct {
	Guest string `json:"guest"`
	// Nodes is the outer limit: no memory of the guest leaves them.
	Nodes topology.NodeSet `json:"nodes"`
	// Cells has at least one entry. Visible says whether the guest sees them.
	Cells   []Cell `json:"cells"`
	Visible bool   `json:"visible"`

	CPUMode   CPUMode         `json:"cpu_binding"`
	VCPUs     []VCPU          `json:"vcpus"`               // ascending by ID, one each
	Emulator  topology.CPUSet `json:"emulator,omitzero"`   // empty: not bound
	IOThread  topology.CPUSet `json:"io_threads,omitzero"` // CPUs of every I/O thread; empty: not bound
	IOThreads int             `json:"io_thread_count,omitempty"`

	// Handoff is set if the guest hands CPUs to other guests.
	Handoff *Handoff `json:"handoff,omitempty"`
	// Scale is set if the number of vCPUs that the guest uses follows its demand.
	Scale *Scale `json:"scale,omitempty"`

	MemoryMode MemoryMode     `json:"memory_binding"`
	PageSize   topology.Bytes `json:"page_size,omitempty"` // 0: small pages
	Immediate  bool           `json:"immediate,omitempty"`
	Movable    bool           `json:"movable"`
	Devices    []DeviceSpec   `json:"devices,omitempty"`

	// Reservations are what the placement takes, per node, touched or not.
	Reservations []Reservation `json:"reservations"`
}

// Cell is a part of the guest's memory with the vCPUs that belong to it.
type Cell struct {
	ID     CellID         `json:"id"`
	VCPUs  VCPUSet        `json:"vcpus"`
	Memory topology.Bytes `json:"memory_bytes"`
	// Nodes is usually one node; several for a wide guest without visible topology, or with interleaved memory.
	Nodes topology.NodeSet `json:"nodes"`
	// Distances is the row of distances that the guest sees, to cells 0, 1, ...;
	// empty if not visible.
	Distances []int `json:"distances,omitempty"`
}

// VCPU is where a vCPU may run.
type VCPU struct {
	ID   VCPUID          `json:"id"`
	CPUs topology.CPUSet `json:"cpus,omitzero"` // empty: not bound
}

// Reservation is the room that a guest takes on one node.
type Reservation struct {
	Node      topology.NodeID `json:"node"`
	Memory    topology.Bytes  `json:"memory_bytes"`
	PageSize  topology.Bytes  `json:"page_size,omitempty"` // 0: small pages
	VCPUs     int             `json:"vcpus"`               // vCPUs that run here
	Exclusive topology.CPUSet `json:"exclusive,omitzero"`  // CPUs no other guest may use (isolated siblings included)
}

// CellOf returns the cell that a vCPU belongs to.
func (p *Placement) CellOf(v VCPUID) (*Cell, bool) {
	for i := range p.Cells {
		if p.Cells[i].VCPUs.Contains(v) {
			return &p.Cells[i], true
		}
	}
	return nil, false
}

// MemoryOn sums the reserved memory of one node over all page sizes.
func (p *Placement) MemoryOn(node topology.NodeID) topology.Bytes {
	var sum topology.Bytes
	for _, r := range p.Reservations {
		if r.Node == node {
			sum = sum.Plus(r.Memory)
		}
	}
	return sum
}

// Apart returns the nodes of the vCPUs if they are other nodes than those of the memory: Nodes has both. Memory that
// cannot move stays where it is while vCPUs go where there are CPUs for them. Empty: Nodes has CPUs and memory.
func (p *Placement) Apart() (vcpus topology.NodeSet) {
	away := false
	for _, r := range p.Reservations {
		if r.VCPUs > 0 {
			vcpus = vcpus.With(r.Node)
			away = away || r.Memory == 0
		}
	}
	if !away || !vcpus.SubsetOf(p.Nodes) || vcpus.Equal(p.Nodes) {
		return topology.NodeSet{}
	}
	return vcpus
}

// LostCPUs reports whether some thread of the guest is bound to CPUs of which
// none is online: the placement cannot be carried out any more.
func (p *Placement) LostCPUs(online topology.CPUSet) bool {
	lost := func(cpus topology.CPUSet) bool { return !cpus.IsEmpty() && !cpus.Intersects(online) }
	return lost(p.Emulator) || lost(p.IOThread) ||
		slices.ContainsFunc(p.VCPUs, func(v VCPU) bool { return lost(v.CPUs) })
}

// Exclusive returns all CPUs the guest has to itself.
func (p *Placement) Exclusive() topology.CPUSet {
	var s topology.CPUSet
	for _, r := range p.Reservations {
		s = s.Union(r.Exclusive)
	}
	return s
}
