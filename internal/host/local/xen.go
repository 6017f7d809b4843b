package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/operate"
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

// XenDefinitions writes xl configurations.
func XenDefinitions(v *fleet.VM, p Parts) (operate.Renderer, error) {
	w := &v.Machine
	if w.Kind() != inventory.MachineXen {
		return nil, fmt.Errorf("its type is %s, and this host makes machines of type %s", w.Kind(),
			inventory.MachineXen)
	}
	if _, err := w.Fit(v.Spec); err != nil {
		return nil, err
	}
	of := xen.Machine{UUID: p.UUID, MAC: p.MAC, UEFI: w.UEFI, Kernel: w.Kernel, Initrd: w.Initrd, Cmdline: w.Cmdline,
		Network: w.Network, SerialLog: w.SerialLog}
	for _, d := range p.Disks {
		of.Disks = append(of.Disks, xen.Disk(d))
	}
	return func(i guest.Intent) (operate.Rendered, error) {
		d, err := of.Definition(i)
		return operate.Rendered{Definition: d, Transient: true}, err // xl stores no configuration
	}, of.Check(v.Spec)
}

// Define returns the definition of a VM that runs here, for the target of its migration.
func (m *Machines) Define(ctx context.Context, v *fleet.VM, i guest.Intent) ([]byte, error) {
	render, undo, err := m.Prepare(ctx, v)
	if err != nil {
		return nil, err
	}
	made, err := render(i)
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return made.Definition.Text, nil
}

// noVolume is Machines.Volume on a Xen host.
func noVolume(_ context.Context, pool, volume string) (string, error) {
	return "", fmt.Errorf("disk %s of pool %s: a Xen host has no libvirt pools; give the disk's path", volume, pool)
}
