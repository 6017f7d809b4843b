package guest

import (
	"errors"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// SharingMode says how a guest shares the CPUs of its vCPUs with other guests.
type SharingMode string

// Ways to share. Without one, the binding says which CPUs are shared, and the guest always uses all of its vCPUs.
const (
	// SharingHandoff means that guests hand CPUs to each other, and that each CPU serves at
	// most one of them at any time. It needs topology mirror.
	SharingHandoff SharingMode = "handoff"
	// SharingScale means that the number of vCPUs that the guest uses follows its demand and what its
	// nodes have for it.
	SharingScale SharingMode = "scale"
)

// Words returns the ways to share.
func (SharingMode) Words() []string { return []string{string(SharingHandoff), string(SharingScale)} }

// Defaults of guests with an agent.
const (
	defaultMinVCPUs = 1
	defaultWeight   = 100
	maxWeight       = 10_000 // as cgroup v2's cpu.weight
)

// ErrMirrored says why a guest that hands CPUs over cannot migrate. Its kernel has booted with a
// vCPU for each CPU of its host, and uses those that this host grants it. On another host these
// vCPUs would have no CPUs of their own.
var ErrMirrored = errors.New("it mirrors the CPUs of its host, which grants it some of them at a time; create a " +
	"mirrored VM on the other host and move the work")

// IsHandoff reports whether the guest hands CPUs to other guests.
func (s *Spec) IsHandoff() bool { return s.CPU.Sharing == SharingHandoff }

// IsScaled reports whether the number of vCPUs that the guest uses follows its demand.
func (s *Spec) IsScaled() bool { return s.CPU.Sharing == SharingScale }

// Scale is the part of a placement that concerns a guest whose number of vCPUs in use follows its demand.
type Scale struct {
	// Min is the number of vCPUs that the guest always uses.
	Min int `json:"min_vcpus"`
	// Weight is its share, relative to those of others, where the CPUs of its nodes do not suffice.
	Weight int `json:"weight"`
}

// Divisible returns the vCPUs that the daemon may bind to one of several nodes by what they access: those of cells on
// several nodes, of a guest whose number of vCPUs follows its demand. Other cells promise the guest where they are.
func (p *Placement) Divisible() (vcpus VCPUSet) {
	if p == nil || p.Scale == nil || p.CPUMode != CPURange {
		return VCPUSet{}
	}
	for i := range p.Cells {
		if p.Cells[i].Nodes.Len() > 1 {
			vcpus = vcpus.Union(p.Cells[i].VCPUs)
		}
	}
	return vcpus
}

// HasAgent reports whether an agent in the guest takes vCPUs out of use, and needs a port to the host.
func (p *Placement) HasAgent() bool { return p.Handoff != nil || p.Scale != nil }

// Handoff is the part of a placement that concerns a guest that hands CPUs over. VCPUs
// of the placement then have one CPU each: the one that they run on while it is
// granted to the guest.
type Handoff struct {
	// Home is the node whose CPUs the guest takes first and releases last.
	Home topology.NodeID `json:"home"`
	// Min is the number of CPUs that the guest always has.
	Min    int `json:"min_vcpus"`
	Weight int `json:"weight"`
	// First are the CPUs that the guest is granted when it starts: Min CPUs, the anchor
	// among them. No two placements of a host have one in common. All other vCPUs run on
	// these CPUs until they are granted their own.
	First topology.CPUSet `json:"first"`
	// Seen is what the guest sees of cores and caches.
	Seen CPUTopology `json:"cpu_topology"`
}

// CPUTopology is a regular arrangement of vCPUs: their number is the product. vCPUs
// are numbered thread by thread, core by core.
type CPUTopology struct {
	Sockets int `json:"sockets"`
	Dies    int `json:"dies"` // of a socket; each has its own last-level cache
	Cores   int `json:"cores"`
	Threads int `json:"threads"`
}

// CPUs returns the product.
func (t CPUTopology) CPUs() int { return t.Sockets * t.Dies * t.Cores * t.Threads }

// Mirror returns the CPU of each vCPU of a guest that hands CPUs over; the first is
// its anchor.
func (p *Placement) Mirror() []topology.CPUID {
	cpus := make([]topology.CPUID, 0, len(p.VCPUs))
	for _, v := range p.VCPUs {
		if id, ok := v.CPUs.First(); ok {
			cpus = append(cpus, id)
		}
	}
	return cpus
}

// StartPin returns the CPUs on which a vCPU may run when the guest starts.
func (p *Placement) StartPin(v VCPU) topology.CPUSet {
	if p.Handoff == nil || v.CPUs.SubsetOf(p.Handoff.First) {
		return v.CPUs
	}
	return p.Handoff.First
}

// Resolve returns the spec with what only a placement says: the number of vCPUs of
// a guest that mirrors a host.
func (s Spec) Resolve(p *Placement) Spec {
	if s.IsHandoff() {
		s.VCPUs = len(p.VCPUs)
	}
	return s
}

// sharingDefaults fills in what follows from a way to share.
func (s *Spec) sharingDefaults() {
	if s.CPU.Sharing == "" {
		return
	}
	if s.IsHandoff() {
		setDefault(&s.Topology.Mode, TopologyMirror)
	}
	setDefault(&s.CPU.MinVCPUs, defaultMinVCPUs)
	setDefault(&s.CPU.Weight, defaultWeight)
}

// sharing checks the fields of guests with an agent.
func (c *checker) sharing() {
	s, cpu := c.spec, &c.spec.CPU
	if cpu.Home != nil && cpu.Sharing != SharingHandoff {
		c.fail("cpu.home", int(*cpu.Home), "nothing without cpu.sharing handoff")
	}
	if cpu.Sharing == "" {
		if cpu.MinVCPUs != 0 {
			c.fail("cpu.min_vcpus", cpu.MinVCPUs, "0 without cpu.sharing")
		}
		if cpu.Weight != 0 {
			c.fail("cpu.weight", cpu.Weight, "0 without cpu.sharing")
		}
		return
	}
	oneOf(c, "cpu.sharing", cpu.Sharing)
	most := maxVCPUs
	if s.VCPUs > 0 {
		most = s.VCPUs
	}
	c.between("cpu.min_vcpus", cpu.MinVCPUs, 1, most)
	c.between("cpu.weight", cpu.Weight, 1, maxWeight)
	switch cpu.Sharing {
	case SharingHandoff:
		c.handoff()
	case SharingScale:
		if cpu.Binding == CPUExclusive {
			c.fail("cpu.binding", string(cpu.Binding),
				"range or none with cpu.sharing scale: exclusive vCPUs share no CPU")
		}
	}
}

// handoff checks what hand-over needs.
func (c *checker) handoff() {
	s, cpu := c.spec, &c.spec.CPU
	if s.Topology.Mode != TopologyMirror {
		c.fail("topology.mode", string(s.Topology.Mode),
			"mirror with cpu.sharing handoff: the VM has a vCPU for each CPU that it may be granted")
	}
	if cpu.Binding != CPURange {
		c.fail("cpu.binding", string(cpu.Binding), "range with cpu.sharing handoff, which pins each vCPU to its CPU")
	}
	if cpu.Emulator == HelperExclusive {
		c.fail("cpu.emulator", string(cpu.Emulator), "nodes, housekeeping or none with cpu.sharing handoff")
	}
	if cpu.IOPolicy == HelperExclusive {
		c.fail("cpu.io_thread_policy", string(cpu.IOPolicy), "nodes, housekeeping or none with cpu.sharing handoff")
	}
	if cpu.Home != nil && !s.Limits.Nodes.IsEmpty() && !s.Limits.Nodes.Contains(*cpu.Home) {
		c.fail("cpu.home", int(*cpu.Home), "one of limits.nodes, %v", s.Limits.Nodes)
	}
	if slices.Contains([]MemoryMode{MemoryNone, MemoryInterleave}, s.Binding.Mode) {
		c.fail("memory_binding.mode", string(s.Binding.Mode),
			"preferred or strict with cpu.sharing handoff: the VM sees where each cell's memory is")
	}
}
