package handoff

import (
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Epoch numbers the grants of one guest: each change of the guest's grant has a
// greater epoch. A message of the guest that names an older one is out of date.
type Epoch uint64

// Guest is a guest whose CPUs are handed over.
type Guest struct {
	Name string `json:"name"`
	// Home is the node whose CPUs the guest takes first and releases last.
	Home topology.NodeID `json:"home"`
	// Weight is the guest's share where the CPUs do not suffice, relative to the
	// weights of others; at least 1.
	Weight int `json:"weight"`
	// Min is the number of CPUs that the guest always has, idle or not; at least 1.
	Min int `json:"min_vcpus"`
	// Mirror[v] is the CPU that vCPU v runs on while the guest is granted that CPU.
	// Mirror[0] is the anchor.
	Mirror []topology.CPUID `json:"mirror"`
	// Frozen says that the guest cannot change its vCPUs at present: it is paused, or
	// its agent does not answer. It keeps what it has. Only a minimum of another
	// guest takes CPUs away from it, by force.
	Frozen bool `json:"frozen,omitempty"`
}

// VCPUOn returns the vCPU that mirrors a CPU.
func (g *Guest) VCPUOn(cpu topology.CPUID) (v guest.VCPUID, ok bool) {
	for i, c := range g.Mirror {
		if c == cpu {
			return guest.VCPUID(i), true
		}
	}
	return 0, false
}

// Demand is what a guest could use, as its agent reported it.
type Demand struct {
	Guest string `json:"guest"`
	// At is when the host received the report.
	At time.Time `json:"at"`
	// Running is the mean number of vCPUs that executed the guest's threads.
	Running float64 `json:"running"`
	// Waiting is the mean number of runnable threads that waited for a vCPU.
	Waiting float64 `json:"waiting"`
	// Brief is the part of both that is there for a small share of the time only. It gets CPUs that no guest needs for
	// the rest of its demand.
	Brief float64 `json:"brief,omitempty"`
}

// Grant is a CPU that a guest has. A CPU without a grant is free.
type Grant struct {
	CPU   topology.CPUID `json:"cpu"`
	Guest string         `json:"guest"`
	Epoch Epoch          `json:"epoch"`
	// Since is when the grant reached its present phase.
	Since time.Time `json:"since"`
	// Leaving says that the guest has been asked to release the CPU, which is not
	// free yet.
	Leaving bool `json:"leaving,omitempty"`
	// Stuck says that the guest refused to release the CPU or did not answer in time.
	// It is not asked again while Stuck is set.
	Stuck bool `json:"stuck,omitempty"`
}

// Reason says why a CPU changes hands.
type Reason string

// Reasons.
const (
	// ReasonMinimum: the taker has less than its minimum.
	ReasonMinimum Reason = "minimum"
	// ReasonDemand: the taker demands more, and the releasing guest uses less.
	ReasonDemand Reason = "demand"
	// ReasonShare: both guests demand the CPU, and the taker has less than its
	// weighted share.
	ReasonShare Reason = "share"
	// ReasonNearer: the taker releases a farther CPU in exchange.
	ReasonNearer Reason = "nearer"
	// ReasonCore: the SMT siblings of a core go to one guest.
	ReasonCore Reason = "core"
	// ReasonGone: the guest has stopped, or no longer mirrors the CPU.
	ReasonGone Reason = "gone"
)

// Release asks a guest to free a CPU.
type Release struct {
	CPU   topology.CPUID `json:"cpu"`
	Guest string         `json:"guest"`
	VCPU  guest.VCPUID   `json:"vcpu"`
	// For is the guest that is expected to take the CPU.
	For string `json:"for,omitempty"`
	// Force says that the host takes the CPU without waiting for the guest: it confines
	// the vCPU to the guest's other CPUs.
	Force  bool   `json:"force,omitempty"`
	Reason Reason `json:"reason"`
}

// Take grants a free CPU to a guest.
type Take struct {
	CPU    topology.CPUID `json:"cpu"`
	Guest  string         `json:"guest"`
	VCPU   guest.VCPUID   `json:"vcpu"`
	Reason Reason         `json:"reason"`
}

// Target is the number of CPUs that a guest is to have, and why.
type Target struct {
	Guest string `json:"guest"`
	// Want is what the guest demands after hysteresis, at least its minimum.
	Want int `json:"want"`
	// Steady is the part of Want that is not brief, at least the minimum.
	Steady int `json:"steady"`
	// CPUs is what it is entitled to now: at most Want.
	CPUs int `json:"cpus"`
	// Has is what it is granted now, without CPUs that leave.
	Has int `json:"has"`
}

// Decision is what to do now. Releases and takes are in the order in which they
// are to be carried out; takes name free CPUs only, so they need not wait for
// the releases.
type Decision struct {
	Takes    []Take    `json:"takes,omitempty"`
	Releases []Release `json:"releases,omitempty"`
	// Targets has one entry for each guest, by name.
	Targets []Target `json:"targets"`
	// Again is when to decide next even if no event occurs before; zero: at the next
	// event.
	Again time.Time `json:"again,omitzero"`
}
