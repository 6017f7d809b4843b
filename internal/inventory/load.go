package inventory

import (
	"math"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// GuestLoad is a guest's load over a window of time.
type GuestLoad struct {
	Window time.Duration `json:"window_ns"`
	// CPU is how many CPUs its vCPUs used on average, Wait how many more they
	// would have used: the time they were runnable and did not run (steal).
	CPU  float64 `json:"cpu"`
	Wait float64 `json:"wait"`
	// Throttled is the additional number of CPUs that its vCPUs would have used
	// without the guest's own quota. It is not waiting for a CPU, and not in Wait.
	Throttled float64 `json:"throttled,omitempty"`
	// Ungranted is, of a mirrored guest, the additional number of CPUs that its vCPUs would
	// have used on CPUs that the guest is not granted. It is not waiting for a CPU, and not in Wait.
	Ungranted float64 `json:"ungranted,omitempty"`
	// Remote is the share of its accesses that leaves the node; nil: not measured.
	Remote *Remote `json:"remote,omitempty"`
	// MemoryMBps is its traffic to memory, in MB (10^6 bytes) a second; 0: not measured.
	MemoryMBps float64 `json:"memory_mbps,omitempty"`
}

// Demand is how many CPUs the guest would use if nothing limited it.
func (l *GuestLoad) Demand() float64 { return l.CPU + l.Wait }

// IsValid reports whether all figures are possible: none is negative, infinite,
// or not a number, and none is beyond any host.
func (l *GuestLoad) IsValid() bool {
	return possible(l.CPU, mostCPUs) && possible(l.Wait, mostCPUs) && possible(l.Throttled, mostCPUs) &&
		possible(l.Ungranted, mostCPUs) &&
		possible(l.MemoryMBps, mostMBps) &&
		(l.Remote == nil || possible(l.Remote.Share, 1+1e-6)) // shares are sums of parts
}

// Limits that no host exceeds: CPUs, and MB a second of memory traffic.
const (
	mostCPUs = 1e6
	mostMBps = 1e12
)

func possible(v, most float64) bool { return !math.IsNaN(v) && v >= 0 && v <= most }

// Remote is the share of a guest's accesses that leave the node of the CPU that
// makes them, from 0 to 1, and the source of the figure.
type Remote struct {
	Share  float64      `json:"share"`
	Source AccessSource `json:"source"`
}

// AccessSource labels figures about accesses to memory.
type AccessSource string

// Sources, the best first.
const (
	AccessResctrl  AccessSource = "resctrl"            // bandwidth monitoring, per guest
	AccessPMU      AccessSource = "pmu"                // counts on vCPU threads
	AccessCounter  AccessSource = "lab access counter" // of the lab's emulated memory
	AccessEstimate AccessSource = "placement estimate" // none of these: where memory is and vCPUs may run
)

// NodeLoad is the load of one node over a window of time.
type NodeLoad struct {
	Node topology.NodeID `json:"node"`
	// CPU is how many of its CPUs were in use on average, by any program; Wait is
	// how many threads were runnable and waited.
	CPU  float64 `json:"cpu"`
	Wait float64 `json:"wait"`
	// VCPUs is the part of CPU that vCPUs of guests used; 0: none, or not measured.
	VCPUs float64 `json:"vcpus,omitempty"`
}

// IsValid reports whether all figures are possible ones, as GuestLoad.IsValid does.
func (l *NodeLoad) IsValid() bool {
	return possible(l.CPU, mostCPUs) && possible(l.Wait, mostCPUs) && possible(l.VCPUs, mostCPUs)
}

// VCPUsMeasured reports whether the loads of the nodes contain what vCPUs used on each: they then
// have nearly all that the guests used.
func (h *Host) VCPUsMeasured() bool {
	const nearly = 0.9 // the windows of both may differ a little
	guests, vcpus := 0.0, 0.0
	for i := range h.Guests {
		if l := h.Guests[i].Seen.Load; l != nil && l.IsValid() {
			guests += l.CPU
		}
	}
	for i := range h.Load {
		if h.Load[i].IsValid() {
			vcpus += h.Load[i].VCPUs
		}
	}
	return vcpus > 0 && vcpus >= nearly*guests
}

// TakeLoads adds to h the measurements of the same host: loads of its nodes and
// of guests that are still the same process, and the rate of copying memory.
func (h *Host) TakeLoads(measured Host) {
	loads := map[string]*Guest{}
	for i := range measured.Guests {
		loads[measured.Guests[i].Name] = &measured.Guests[i]
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		if m := loads[g.Name]; m != nil && m.PID == g.PID && m.Seen.Load != nil {
			g.Seen.Load = m.Seen.Load
		}
	}
	h.Load, h.MoverBytesPerSecond = measured.Load, measured.MoverBytesPerSecond
}
