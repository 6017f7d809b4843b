// Package guest holds the words for virtual machines: what one asks for
// (Spec) and what it got (Placement).
package guest

import (
	"github.com/numavisor/numavisor/internal/topology"
)

// VCPUID numbers a CPU of a guest, from 0.
type VCPUID int

// CellID numbers a NUMA node that the guest sees, from 0.
type CellID int

// VCPUSet is a set of a guest's vCPUs.
type VCPUSet = topology.Set[VCPUID]

// Spec is a request for a guest. VCPUs and Memory are required; every other
// field has a default that Normalize fills in.
type Spec struct {
	Name   string         `json:"name,omitempty"`
	VCPUs  int            `json:"vcpus" minimum:"0" maximum:"4096"`
	Memory topology.Bytes `json:"memory" minimum:"1048576" maximum:"70368744177664" multipleOf:"1048576"`
	// PageSize backs the guest's memory: 0 is the host's small pages (with
	// transparent huge pages as the host has them), else a huge page size.
	PageSize topology.Bytes `json:"page_size,omitempty" minimum:"65536" maximum:"17179869184" multipleOf:"65536"`

	CPU      CPUSpec      `json:"cpu,omitzero"`
	Binding  MemorySpec   `json:"memory_binding,omitzero"`
	Topology TopologySpec `json:"topology,omitzero"`
	Limits   Limits       `json:"limits,omitzero"`

	// Devices are PCI addresses of host devices that the guest is given or uses heavily.
	Devices []DeviceSpec `json:"devices,omitempty"`
	// Movable asks for memory that Numavisor can move while the guest runs
	// (memfd, no pinning); nil means true.
	Movable *bool `json:"movable,omitempty"`
}

// CPUSpec says how vCPUs and helper threads are bound to CPUs.
type CPUSpec struct {
	Binding   CPUMode      `json:"binding,omitempty" enum:"none,range,exclusive"`                       // default range
	SMT       SMTPolicy    `json:"smt,omitempty" enum:"any,prefer,require,isolate"`                     // default any
	Emulator  HelperPolicy `json:"emulator,omitempty" enum:"nodes,housekeeping,exclusive,none"`         // default nodes
	IOThreads int          `json:"io_threads,omitempty" minimum:"0" maximum:"1024"`                     // default 0
	IOPolicy  HelperPolicy `json:"io_thread_policy,omitempty" enum:"nodes,housekeeping,exclusive,none"` // default nodes
	// Sharing handoff: the guest has a vCPU for each CPU of its nodes, and is granted some
	// of these CPUs at a time, by demand. Sharing scale: the number of vCPUs that it uses follows
	// its demand.
	Sharing SharingMode `json:"sharing,omitempty" enum:"handoff,scale"`
	// MinVCPUs is the number of CPUs that the guest always has, or of vCPUs that it always uses;
	// default 1. Weight is its share of the others if they do not suffice; default 100. Both need sharing.
	MinVCPUs int `json:"min_vcpus,omitempty" minimum:"1" maximum:"4096"`
	Weight   int `json:"weight,omitempty" minimum:"1" maximum:"10000"`
	// Home is the node whose CPUs the guest takes first and releases last; nil: the one
	// with most room. It needs sharing handoff.
	Home *topology.NodeID `json:"home,omitempty" minimum:"0" maximum:"65535"`
}

// CPUMode is how vCPUs are bound.
type CPUMode string

// Ways to bind vCPUs.
const (
	CPUNone      CPUMode = "none"      // not bound
	CPURange     CPUMode = "range"     // any CPU of the cell's nodes
	CPUExclusive CPUMode = "exclusive" // one CPU each, for this guest alone
	// CPUHandoff is the mode of placements of guests that hand CPUs over: one CPU each,
	// while the guest is granted it.
	CPUHandoff CPUMode = "handoff"
)

// Words returns the ways to bind vCPUs that a spec may ask for.
func (CPUMode) Words() []string {
	return []string{string(CPUNone), string(CPURange), string(CPUExclusive)}
}

// SMTPolicy says how exclusive vCPUs use SMT siblings.
type SMTPolicy string

// SMT policies.
const (
	SMTAny     SMTPolicy = "any"     // whatever costs least
	SMTPrefer  SMTPolicy = "prefer"  // siblings of a core together where possible
	SMTRequire SMTPolicy = "require" // siblings of a core together, or no placement
	SMTIsolate SMTPolicy = "isolate" // one vCPU a core, the siblings stay idle and reserved
)

// Words returns the SMT policies.
func (SMTPolicy) Words() []string {
	return []string{string(SMTAny), string(SMTPrefer), string(SMTRequire), string(SMTIsolate)}
}

// HelperPolicy says where emulator or I/O threads run.
type HelperPolicy string

// Helper thread policies.
const (
	// any unreserved CPU of the guest's nodes, or its own vCPUs' if none is left
	HelperNodes        HelperPolicy = "nodes"
	HelperHousekeeping HelperPolicy = "housekeeping" // the host's housekeeping CPUs
	HelperExclusive    HelperPolicy = "exclusive"    // a CPU of their own on the guest's first node
	HelperNone         HelperPolicy = "none"         // not bound
)

// Words returns the policies for helper threads.
func (HelperPolicy) Words() []string {
	return []string{string(HelperNodes), string(HelperHousekeeping), string(HelperExclusive), string(HelperNone)}
}

// MemorySpec says how memory is bound to nodes.
type MemorySpec struct {
	Mode MemoryMode `json:"mode,omitempty" enum:"none,preferred,strict,interleave,restrictive"` // default preferred
	// Immediate asks to allocate all memory at start. Always so with huge pages.
	Immediate bool `json:"immediate,omitempty"`
}

// MemoryMode is the kernel memory policy of a guest's cells.
type MemoryMode string

// Memory modes. Whatever the mode (but none), the guest as a whole stays
// within the nodes that it was given.
const (
	MemoryNone        MemoryMode = "none"        // no policy
	MemoryPreferred   MemoryMode = "preferred"   // each cell prefers its node, may overflow to the guest's others
	MemoryStrict      MemoryMode = "strict"      // each cell only on its node
	MemoryInterleave  MemoryMode = "interleave"  // spread over all of the guest's nodes
	MemoryRestrictive MemoryMode = "restrictive" // cgroup limit only, no policy (libvirt restrictive)
)

// Words returns the memory modes.
func (MemoryMode) Words() []string {
	return []string{string(MemoryNone), string(MemoryPreferred), string(MemoryStrict), string(MemoryInterleave),
		string(MemoryRestrictive)}
}

// TopologySpec says what NUMA topology the guest sees.
type TopologySpec struct {
	Mode TopologyMode `json:"mode,omitempty" enum:"off,auto,cells,mirror"` // default auto
	// Cells are the sizes of the cells, for mode cells; empty means Count equal cells.
	Cells []CellSpec `json:"cells,omitempty" maxItems:"4096"`
	Count int        `json:"count,omitempty" minimum:"1" maximum:"4096"` // for mode cells
}

// TopologyMode chooses the guest's cells.
type TopologyMode string

// Guest topologies.
const (
	TopologyOff    TopologyMode = "off"    // the guest sees no NUMA; its memory may still span nodes
	TopologyAuto   TopologyMode = "auto"   // one cell for each node it needs; none is shown if one is enough
	TopologyCells  TopologyMode = "cells"  // a fixed number or list of cells
	TopologyMirror TopologyMode = "mirror" // one cell for each host node that has CPUs and memory
)

// Words returns the guest topologies.
func (TopologyMode) Words() []string {
	return []string{string(TopologyOff), string(TopologyAuto), string(TopologyCells), string(TopologyMirror)}
}

// CellSpec is the size of one cell.
type CellSpec struct {
	VCPUs  int            `json:"vcpus" minimum:"0" maximum:"4096"`
	Memory topology.Bytes `json:"memory" minimum:"4096" maximum:"70368744177664" multipleOf:"4096"`
}

// Limits narrow what placement may choose.
type Limits struct {
	// MaxDistance is the greatest SLIT distance allowed between any two of the guest's nodes; 0 is no limit.
	MaxDistance int `json:"max_distance,omitempty" minimum:"10" maximum:"254"`
	// MaxClass is the farthest class allowed between any two of the guest's nodes; empty is no limit.
	MaxClass topology.Class `json:"max_class,omitempty" enum:"local,neighbour,remote"`
	// Nodes and CPUs are hard affinity: nothing outside is used. Empty means all.
	Nodes topology.NodeSet `json:"nodes,omitzero"`
	CPUs  topology.CPUSet  `json:"cpus,omitzero"`
	// Pool names the CPU pool whose CPUs the guest may use; empty: the hypervisor's default pool, if it has
	// pools.
	Pool string `json:"pool,omitempty"`
	// MaxNodes bounds how many nodes the guest may take; 0 is no limit.
	MaxNodes int `json:"max_nodes,omitempty" minimum:"0" maximum:"65536"`
}

// DeviceSpec names a host device.
type DeviceSpec struct {
	Address string `json:"address" pattern:"^([0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\\.[0-7]$"`
	// Required refuses placements away from the device's node; else nearness is a cost.
	Required bool `json:"required,omitempty"`
	// Passthrough says the device is assigned by vfio, which pins all guest memory.
	Passthrough bool `json:"passthrough,omitempty"`
}

// IsMovable reports whether the spec asks for memory that can move.
func (s *Spec) IsMovable() bool { return s.Movable == nil || *s.Movable }
