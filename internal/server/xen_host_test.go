package server

import (
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A Xen host whose daemon names no types of machines shows its nodes, pools and VMs. No VM is placed there, and the
// refusal says why; none of its VMs can be adopted.
func TestXenHost_OfAnOlderDaemon(t *testing.T) {
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
	if vm.Host != "" || !strings.Contains(said, "cannot make machines of this type") {
		t.Errorf("a new VM is on host %q: %s", vm.Host, said)
	}
	r.join("k", "nodes:2 cores:4 memory:8G").follow(obey)
	r.eventually("the VM is placed on the other host", func() bool {
		now, err := r.admin.VM(t.Context(), "vm")
		return err == nil && now.Host == "k"
	})
	_, err = r.admin.AdoptVM(t.Context(), fleetapi.VMAdopt{Host: "x", Name: "web"}, fleetapi.Change{})
	if err == nil || !strings.Contains(err.Error(), "cannot make machines of this type") {
		t.Errorf("its VM is adopted: %v", err)
	}
}

// joinXen lets a Xen host join that carries out what the server wants.
func (r *rig) joinXen(name, machine string) *fakeHost {
	r.t.Helper()
	h := r.join(name, machine)
	h.inv.MachineTypes, h.inv.NoNewVMs = []string{inventory.MachineXen}, true
	h.inv.Pools = []inventory.Pool{{Name: "Pool-0", Scheduler: "credit2", CPUs: h.inv.Topology.CPUSet()}}
	h.report()
	h.follow(func(vm fleet.VM) *fleet.VMStatus {
		s := obey(vm)
		m := vm.Migration
		if m == nil {
			return s
		}
		s.Migration = &fleet.MigrationStatus{Began: m.Began, Phase: fleet.MigrationPrepared, Arrival: &fleet.Arrival{
			Host: guest.HostIdentity{Name: name}, URI: "xl+ssh://" + name}}
		switch {
		case m.To != name:
			s.Migration.Phase, s.Migration.Arrival = fleet.MigrationCopying, nil
		case m.Ready != nil:
			s.Migration.Phase = fleet.MigrationArrived
		}
		return s
	})
	return h
}

// xenVM is a request for a VM of type xen.
func xenVM(name string, vcpus int, memory topology.Bytes) fleetapi.VMCreate {
	v := vmOf(name, vcpus, memory)
	v.Machine = fleet.Machine{Type: inventory.MachineXen, Kernel: "/lab/vmlinuz"}
	return v
}

// Of a fleet with two Xen hosts and a KVM host, VMs of each type go to hosts that make it, by placing, by migrations
// and by drains. A VM that fits on no other host of its type stays, and its record says why.
func TestXenHosts_GetTheVMsOfTheirType(t *testing.T) {
	r := newRig(t)
	xens := map[string]*fakeHost{"x1": r.joinXen("x1", "nodes:2 cores:4 memory:8G"),
		"x2": r.joinXen("x2", "nodes:2 cores:4 memory:8G")}
	k := r.join("k", "nodes:8 cores:8 memory:64G") // with much more room
	k.follow(obey)
	on := func(name string) string {
		t.Helper()
		vm, err := r.admin.VM(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return vm.Host
	}
	made, err := r.admin.CreateVM(t.Context(), xenVM("xen", 2, topology.GiB), fleetapi.Change{})
	if err != nil || xens[made.Host] == nil || made.Spec.Topology.Mode != guest.TopologyOff {
		t.Fatalf("the VM of type xen is on host %q with topology %q: %s, %v", made.Host, made.Spec.Topology.Mode, made.Pending,
			err)
	}
	plain, err := r.admin.CreateVM(t.Context(), vmOf("plain", 2, topology.GiB), fleetapi.Change{})
	if err != nil || plain.Host != "k" {
		t.Fatalf("the other VM is on host %q, not k: %s, %v", plain.Host, plain.Pending, err)
	}
	for _, vm := range []string{"xen", "plain"} {
		r.eventually(vm+" runs", func() bool {
			now, err := r.admin.VM(t.Context(), vm)
			return err == nil && now.State == fleetapi.VMRunning
		})
	}
	other := map[string]string{"x1": "x2", "x2": "x1"}[made.Host]
	for vm, to := range map[string]string{"xen": "k", "plain": "x1"} {
		_, err = r.admin.MigrateVM(t.Context(), vm, fleetapi.VMMigrate{To: to}, fleetapi.Change{})
		if err == nil || !strings.Contains(err.Error(), "cannot make machines of this type") {
			t.Errorf("%s migrates to %s: %v", vm, to, err)
		}
	}
	if _, err := r.admin.MigrateVM(t.Context(), "xen", fleetapi.VMMigrate{}, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("it migrates to the other Xen host", func() bool { return on("xen") == other })
	if _, err := r.admin.Drain(t.Context(), other, fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the drain moves it to the first Xen host", func() bool { return on("xen") == made.Host })
	if _, err := r.admin.Drain(t.Context(), made.Host, fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("it stays, as no host of its type is open", func() bool {
		now, err := r.admin.VM(t.Context(), "xen")
		return err == nil && now.Host == made.Host && strings.Contains(now.Stays, "cannot make machines of this type")
	})
}

// A VM of type xen on one node gets one node on the target, or stays.
func TestXenHosts_NodesDoNotBecomeMore(t *testing.T) {
	r := newRig(t)
	r.joinXen("x1", "nodes:1 cores:8 memory:8G")
	made, err := r.admin.CreateVM(t.Context(), xenVM("xen", 2, 6*topology.GiB), fleetapi.Change{})
	if err != nil || made.Host != "x1" || made.Placement.Nodes.Len() != 1 {
		t.Fatalf("on host %q, nodes %s: %v", made.Host, made.Placement.Nodes, err)
	}
	r.eventually("it runs", func() bool {
		now, err := r.admin.VM(t.Context(), "xen")
		return err == nil && now.State == fleetapi.VMRunning
	})
	r.joinXen("x2", "nodes:2 cores:8 memory:4G") // on each node
	_, err = r.admin.MigrateVM(t.Context(), "xen", fleetapi.VMMigrate{}, fleetapi.Change{})
	if err == nil {
		t.Fatal("it migrates to two nodes")
	}
}

// A VM that a Xen host runs already is adopted as one of type xen.
func TestXenHosts_Adopt(t *testing.T) {
	r := newRig(t)
	x := r.joinXen("x1", "nodes:2 cores:4 memory:8G")
	x.inv.Guests = []inventory.Guest{{Name: "web", UUID: "u1", Hypervisor: guest.Xen, State: "running", Pool: "Pool-0",
		Can: inventory.CapabilitiesOf(guest.Xen), Config: inventory.Config{VCPUs: 2, Memory: topology.GiB},
		Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{1: topology.GiB}}}}
	x.inv.Taken = time.Now()
	x.report()
	r.eventually("its VM is known", func() bool {
		inv, err := r.admin.Inventory(t.Context(), "x1")
		return err == nil && len(inv.Guests) == 1
	})
	vm, err := r.admin.AdoptVM(t.Context(), fleetapi.VMAdopt{Host: "x1", Name: "web"}, fleetapi.Change{})
	if err != nil || vm.Host != "x1" || vm.Machine.Type != inventory.MachineXen {
		t.Errorf("adopted on host %q as type %q: %v", vm.Host, vm.Machine.Type, err)
	}
}

// What a VM of type xen cannot have is refused with its name before anything is stored.
func TestXenHosts_RefuseWhatXenHasNot(t *testing.T) {
	r := newRig(t)
	r.joinXen("x1", "nodes:2 cores:4 memory:8G")
	for says, change := range map[string]func(v *fleetapi.VMCreate){
		"topology":   func(v *fleetapi.VMCreate) { v.Spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2} },
		"page_size":  func(v *fleetapi.VMCreate) { v.Spec.PageSize = 2 * topology.MiB },
		"sharing":    func(v *fleetapi.VMCreate) { v.Spec.CPU.Sharing = guest.SharingScale },
		"pools":      func(v *fleetapi.VMCreate) { v.Machine.Disks = []fleet.Disk{{Pool: "p", Volume: "v"}} },
		"serial_log": func(v *fleetapi.VMCreate) { v.Machine.SerialLog = "/l" },
		"arch":       func(v *fleetapi.VMCreate) { v.Machine.Arch = "aarch64" },
		"cpu":        func(v *fleetapi.VMCreate) { v.Machine.CPU = "maximum" },
	} {
		v := xenVM("xen", 2, topology.GiB)
		change(&v)
		_, err := r.admin.CreateVM(t.Context(), v, fleetapi.Change{})
		if problemType(err) != fleetapi.ProblemInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v", says, err)
		}
	}
}
