package guest

// Hypervisor is the kind of program that runs a guest. Code that decides asks
// what a guest's hypervisor can do (inventory.Capabilities), not which one it is.
type Hypervisor string

// Hypervisors, as inventories name them.
const (
	LibvirtQEMU Hypervisor = "qemu"       // QEMU run by libvirt
	PlainQEMU   Hypervisor = "qemu-plain" // QEMU started without libvirt
	Xen         Hypervisor = "xen"
	// NoHypervisor is that of a process that is not a VM.
	NoHypervisor Hypervisor = "process"
)

// String returns the name that messages use.
func (h Hypervisor) String() string {
	switch h {
	case PlainQEMU:
		return "QEMU without libvirt"
	case Xen:
		return "Xen"
	case LibvirtQEMU, NoHypervisor:
	}
	return string(h)
}
