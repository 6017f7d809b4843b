package server

import (
	"strings"
	"testing"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A Xen host of a fleet shows its nodes, pools and VMs. No VM is placed there, and the refusal says why; none
// of its VMs can be adopted.
func TestXenHost_ShowsItsVMsAndGetsNone(t *testing.T) {
	r := newRig(t)
	x := r.join("x", "nodes:2 cores:4 memory:8G")
	x.inv.NoNewVMs = true
	x.inv.Pools = []inventory.Pool{{Name: "Pool-0", Scheduler: "credit2", CPUs: x.inv.Topology.CPUSet()}}
	x.inv.Guests = []inventory.Guest{{Name: "web", UUID: "u1", Hypervisor: guest.Xen, State: "running", Pool: "Pool-0",
		Can: inventory.CapabilitiesOf(guest.Xen), Config: inventory.Config{VCPUs: 2, Memory: topology.GiB},
		Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{1: topology.GiB}}}}
	x.report()
	x.follow(obey)
	r.eventually("its VM and its pools are shown", func() bool {
		inv, err := r.admin.Inventory(t.Context(), "x")
		return err == nil && len(inv.Guests) == 1 && inv.Guests[0].Name == "web" && len(inv.Pools) == 1 && inv.NoNewVMs
	})
	vm, err := r.admin.CreateVM(t.Context(), vmOf("vm", 1, topology.GiB), fleetapi.Change{})
	said := vm.Pending
	if err != nil {
		said = err.Error()
	}
	if vm.Host != "" || !strings.Contains(said, "takes no VMs of a fleet") {
		t.Errorf("a new VM is on host %q: %s", vm.Host, said)
	}
	r.join("k", "nodes:2 cores:4 memory:8G").follow(obey)
	r.eventually("the VM is placed on the other host", func() bool {
		now, err := r.admin.VM(t.Context(), "vm")
		return err == nil && now.Host == "k"
	})
	_, err = r.admin.AdoptVM(t.Context(), fleetapi.VMAdopt{Host: "x", Name: "web"}, fleetapi.Change{})
	if err == nil || !strings.Contains(err.Error(), "takes no VMs of a fleet") {
		t.Errorf("its VM is adopted: %v", err)
	}
}
