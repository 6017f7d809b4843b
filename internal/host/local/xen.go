package local

import (
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// xenKernel is the kernel of Xen's control domain. Its own view of nodes and CPUs is that of a
// guest, and its settings for memory do not apply to Xen's guests.
type xenKernel struct {
	kernel
	xen *xen.Driver
}

func (k xenKernel) Topology() (topology.Topology, error) { return k.xen.Topology() }

func (xenKernel) Settings() (k inventory.Kernel, gaps []inventory.Gap) { return k, gaps }

// Topology returns this host's topology, without its VMs.
func Topology() (topology.Topology, error) {
	if xen.Here(string(linux.Live)) {
		return xen.New(nil).Topology()
	}
	return linux.ReadTopology(string(linux.Live))
}
