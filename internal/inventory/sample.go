package inventory

import (
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Sample holds the measurements of a host at one moment, over the window since
// the sample before it, from sources whose cost does not grow with memory.
type Sample struct {
	Taken time.Time `json:"taken"`
	// Window is the time since the sample before; 0 for the first, whose rates are all 0.
	Window   time.Duration  `json:"window_ns"`
	Nodes    []NodeSample   `json:"nodes"`  // ascending by node
	Guests   []GuestSample  `json:"guests"` // running ones, ascending by name
	Pressure Pressure       `json:"pressure"`
	Moves    KernelMoves    `json:"kernel_moves"`
	Accesses []AccessSource `json:"access_sources"` // those in use on this host, the best first
	// CPUSource is the source of CPU use and waits; empty: the kernel's scheduler.
	CPUSource string `json:"cpu_source,omitempty"`
	// Unmeasured means that the CPU use of a guest is not known yet, or not any more: its source is slow. Plans wait,
	// since a guest without a load counts as busy.
	Unmeasured bool  `json:"unmeasured,omitempty"`
	Gaps       []Gap `json:"gaps,omitempty"`
	// Cost is the CPU time used to take the sample.
	Cost time.Duration `json:"cost_ns"`
}

// NodeSample holds the measurements of one node.
type NodeSample struct {
	NodeLoad
	CPUs   int            `json:"cpus"` // online
	Memory topology.Bytes `json:"memory_bytes"`
	Free   topology.Bytes `json:"free_bytes"`
	// HugePages are the node's pools now.
	HugePages []topology.HugePagePool `json:"huge_pages,omitempty"`
	// MemoryMBps is the traffic to this node's memory, in MB (10^6 bytes) a second; 0: not measured.
	MemoryMBps float64 `json:"memory_mbps,omitempty"`
}

// GuestSample holds the measurements of one running guest.
type GuestSample struct {
	Name string    `json:"name"`
	PID  int       `json:"pid"`
	Load GuestLoad `json:"load"`
	// MemoryByNode is guest memory resident per node, from MemorySource.
	MemoryByNode topology.MemoryByNode `json:"memory_by_node,omitempty"`
	MemorySource string                `json:"memory_source,omitempty"`
	// CPUByNode is how many CPUs its vCPUs used on each node, by the CPU that
	// each ran on last.
	CPUByNode map[topology.NodeID]float64 `json:"cpu_by_node,omitempty"`
	// Accesses are shares of its accesses to memory by the node that holds it
	// and the node of the CPU that makes them; they sum to 1. Empty: not measured.
	Accesses []AccessShare `json:"accesses,omitempty"`
	// VCPUAccesses are those of each vCPU that the daemon may bind to a node by them (guest.Placement.Divisible),
	// ascending by vCPU. Empty: there are no such vCPUs, or no source counts by vCPU.
	VCPUAccesses []VCPUAccess `json:"vcpu_accesses,omitempty"`
	// HandedOver is what a mirrored guest has of the CPUs that guests hand to each other; nil:
	// it hands none over, or the daemon does not.
	HandedOver *HandedOver `json:"handed_over,omitempty"`
	// Scaled is which vCPUs a guest uses whose number of vCPUs follows its demand; nil: it is none, or the daemon does
	// not decide on it.
	Scaled *Scaled `json:"scaled,omitempty"`
}

// VCPUAccess holds the accesses of one vCPU to memory in the window of a sample.
type VCPUAccess struct {
	VCPU guest.VCPUID `json:"vcpu"`
	// On is the node of the CPU on which the vCPU ran last.
	On topology.NodeID `json:"on"`
	// ByNode are accesses to the memory of each node that the caches did not answer, in the unit of the source.
	ByNode map[topology.NodeID]float64 `json:"by_node"`
}

// Total is the number of accesses to all nodes.
func (a *VCPUAccess) Total() (sum float64) {
	for _, n := range a.ByNode {
		sum += n
	}
	return sum
}

// AccessShare is the part of a guest's accesses that goes from CPUs of one
// node to memory of another (or the same), from 0 to 1.
type AccessShare struct {
	From  topology.NodeID `json:"from"`
	To    topology.NodeID `json:"to"`
	Share float64         `json:"share"`
}

// Pressure is the share of the last 10 seconds, from 0 to 1, in which some task
// of the host (Full: all tasks) waited for something (/proc/pressure). Nil: the
// kernel does not report it.
type Pressure struct {
	CPU        *float64 `json:"cpu,omitempty"`
	Memory     *float64 `json:"memory,omitempty"`
	MemoryFull *float64 `json:"memory_full,omitempty"`
	IO         *float64 `json:"io,omitempty"`
}

// KernelMoves is the memory that the kernel moved between nodes in the window
// of a sample, for any reason, and the part that its own NUMA balancing moved.
type KernelMoves struct {
	Moved     topology.Bytes `json:"moved_bytes"`
	Failed    topology.Bytes `json:"failed_bytes"`
	Balancing topology.Bytes `json:"balancing_bytes"`
}
