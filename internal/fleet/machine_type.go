package fleet

import (
	"cmp"
	"errors"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Kind returns the type of the machine, which is kvm by default.
func (m *Machine) Kind() string { return cmp.Or(m.Type, inventory.MachineKVM) }

// Fit returns a spec with the defaults of the machine's type, before it is normalized. It refuses what no host can give
// a machine of this type: images, networks and firmware of the types differ, so that a host cannot choose another one.
func (m *Machine) Fit(s guest.Spec) (guest.Spec, error) {
	if m.Kind() != inventory.MachineXen {
		return s, nil
	}
	if err := errors.Join(m.fitsXen(), specFitsXen(&s)); err != nil {
		return s, err
	}
	s.Topology = guest.TopologySpec{Mode: guest.TopologyOff}
	s.Binding.Mode = guest.MemoryStrict
	s.CPU.Emulator, s.CPU.IOPolicy = guest.HelperNone, guest.HelperNone
	return s, nil
}

func (m *Machine) fitsXen() error {
	switch {
	case m.Arch != "" && m.Arch != "x86_64":
		return errors.New("machine: arch: with type xen it is x86_64")
	case m.CPU != "":
		return errors.New("machine: cpu: type xen has no CPU models; leave it out")
	case m.UEFI && m.Kernel != "":
		return errors.New("machine: uefi with kernel: with type xen, a VM boots a kernel or by firmware; leave one out")
	case m.SerialLog != "" && m.Kernel != "":
		return errors.New("machine: serial_log with kernel: the console of such a VM of type xen goes to no file; " +
			"leave it out, and see 'xl console'")
	}
	for i := range m.Disks {
		if m.Disks[i].Pool != "" || m.Disks[i].Volume != "" {
			return errors.New("machine: disks: type xen has no volumes of libvirt pools; give the disk's path")
		}
	}
	return nil
}

func specFitsXen(s *guest.Spec) error {
	helper := func(p guest.HelperPolicy) bool { return p != "" && p != guest.HelperNone }
	switch {
	case s.Topology.Mode == guest.TopologyCells:
		return errors.New("spec: topology: a VM of type xen has no virtual NUMA nodes; leave it out")
	case s.PageSize != 0:
		return errors.New("spec: page_size: Xen chooses the pages of its VMs; leave it out")
	case s.CPU.Sharing != "":
		return errors.New("spec: cpu: sharing: VMs of type xen do not share CPUs by demand; leave it out")
	case s.CPU.IOThreads != 0 || helper(s.CPU.Emulator) || helper(s.CPU.IOPolicy):
		return errors.New("spec: cpu: a VM of type xen has no emulator and I/O threads; leave them out")
	case s.Binding.Mode != "" && s.Binding.Mode != guest.MemoryStrict:
		return errors.New("spec: memory_binding: Xen takes memory from the nodes of the vCPUs; allowed is strict")
	case len(s.Devices) > 0:
		return errors.New("spec: devices: a fleet assigns no devices to VMs of type xen; leave them out")
	case s.Movable != nil && *s.Movable:
		return errors.New("spec: movable: Xen does not move the memory of a running VM; leave it out")
	}
	return nil
}
