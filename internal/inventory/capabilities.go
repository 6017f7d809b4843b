package inventory

import (
	"encoding/json"

	"github.com/numavisor/numavisor/internal/guest"
)

// Capabilities are what a guest's hypervisor can do with it. Drivers fill them;
// code that decides asks for these and never for the hypervisor's kind. The
// zero value can do nothing.
type Capabilities struct {
	// PinVCPU: the hypervisor itself pins vCPUs, emulator and I/O threads of a
	// running guest and stores the pins. Without it only the affinity of the
	// guest's threads can be set, if it has threads on this host.
	PinVCPU bool `json:"pin_vcpu"`
	// MoveMemory: the memory of a running guest can be copied to other nodes.
	MoveMemory bool `json:"move_memory"`
	// Recreate: the hypervisor can make a running guest again on this host, with its memory on
	// other nodes: a live migration to the host itself. The host needs the memory of both for a time.
	Recreate bool `json:"recreate,omitempty"`
	// Migrate: the hypervisor's own tools migrate a running guest to another host, without a fleet.
	Migrate bool `json:"migrate,omitempty"`
	// LiveNodeset: the hypervisor takes a new set of nodes for a running guest,
	// if the guest's memory mode allows it.
	LiveNodeset bool `json:"live_nodeset"`
	// StoreIntent: the hypervisor stores the guest's spec and placement with its
	// configuration, and the configuration for its next start.
	StoreIntent bool `json:"store_intent"`
	// SoftAffinity: the hypervisor also knows CPUs on which a vCPU runs if it can.
	SoftAffinity bool `json:"soft_affinity,omitempty"`
	// NoHelpers: the guest has no emulator or I/O threads on this host that could be pinned.
	NoHelpers bool `json:"no_helpers,omitempty"`
}

// CapabilitiesOf returns the capabilities of this version's drivers for guests
// of a hypervisor; none for a hypervisor without a driver.
func CapabilitiesOf(h guest.Hypervisor) Capabilities {
	switch h {
	case guest.LibvirtQEMU:
		return Capabilities{PinVCPU: true, MoveMemory: true, LiveNodeset: true, StoreIntent: true}
	case guest.PlainQEMU, guest.NoHypervisor:
		return Capabilities{MoveMemory: true}
	case guest.Xen:
		return Capabilities{PinVCPU: true, StoreIntent: true, NoHelpers: true, Recreate: true, Migrate: true,
			SoftAffinity: true}
	}
	return Capabilities{}
}

// UnmarshalJSON reads a guest. One without capabilities is from before they
// were recorded and gets those of its hypervisor.
func (g *Guest) UnmarshalJSON(data []byte) error {
	type plain Guest
	var read struct {
		Can *Capabilities `json:"capabilities"`
		plain
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*g = Guest(read.plain)
	if g.Can = CapabilitiesOf(g.Hypervisor); read.Can != nil {
		g.Can = *read.Can
	}
	return nil
}
