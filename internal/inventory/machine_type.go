package inventory

import "github.com/numavisor/numavisor/internal/guest"

// Types of machines that hosts make for a fleet (fleet.Machine.Type).
const (
	MachineKVM  = "kvm"
	MachineQEMU = "qemu"
	MachineXen  = "xen"
)

// Makes returns the types of machines that a fleet can create on the host, and migrate to it.
func (h *Host) Makes() []string {
	switch {
	case len(h.MachineTypes) > 0:
		return h.MachineTypes
	case h.NoNewVMs: // of a daemon that did not name the types
		return nil
	}
	return []string{MachineKVM, MachineQEMU}
}

// MachineTypeOf returns the type of a VM's machine by its hypervisor; empty: the default.
func MachineTypeOf(h guest.Hypervisor) string {
	switch h {
	case guest.Xen:
		return MachineXen
	case guest.LibvirtQEMU, guest.PlainQEMU, guest.NoHypervisor:
	}
	return ""
}
