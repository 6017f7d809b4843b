package guest

import "github.com/numavisor/numavisor/internal/topology"

// Definition is a guest in the form in which its hypervisor starts it, bound to
// its intent.
type Definition struct {
	Name string
	// Text is in the hypervisor's own form: libvirt's domain XML.
	Text []byte
	// Intent is what the hypervisor must record of the guest if Text cannot have it; nil: nothing.
	Intent *Intent
	// LateEmulatorPin are the CPUs to which the hypervisor must pin the emulator
	// once the guest exists, because Text cannot have that pin; empty: none.
	LateEmulatorPin topology.CPUSet
}
