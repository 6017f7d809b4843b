package diagnose_test

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib = topology.MiB
	gib = topology.GiB
)

type byNode = topology.MemoryByNode

func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }
func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func vcpus(list string) guest.VCPUSet    { return topology.MustParseSet[guest.VCPUID](list) }

// host has nodes 0, 1 and 3 of four CPUs and 16 GiB each, a NIC on node 1, and
// is healthy: web on node 0 and wide on nodes 0 and 3 are where they were
// placed, and foreign is bound to node 1 but unmanaged.
func host() *inventory.Host {
	h := &inventory.Host{Version: inventory.Version, Name: "h",
		Kernel: inventory.Kernel{
			NUMABalancing:        "0",
			TransparentHugePages: "madvise",
			KSMRun:               "0",
			KSMAcrossNodes:       "1",
			ZoneReclaim:          "0",
			CgroupV2:             true,
		}}
	t := &h.Topology
	t.Source = "sysfs /"
	for i, id := range []topology.NodeID{0, 1, 3} {
		first := topology.CPUID(4 * i)
		n := topology.Node{ID: id, CPUs: topology.Range(first, first+3), Memory: 16 * gib, Free: 12 * gib,
			HugePages: []topology.HugePagePool{{Size: 2 * mib, Total: 512, Free: 512}},
			Distances: map[topology.NodeID]int{0: 20, 1: 20, 3: 20}}
		n.Distances[id] = 10
		for c := range n.CPUs.All() {
			t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: id, Siblings: topology.SetOf(c)})
		}
		t.Nodes = append(t.Nodes, n)
	}
	t.Devices = []topology.Device{{Address: "0000:3b:00.0", Kind: topology.DeviceNIC, Node: 1}}
	t.Classify()
	h.Guests = []inventory.Guest{foreign(), web(), wide()}
	return h
}

func web() inventory.Guest {
	return inventory.Guest{
		Name: "web", Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU), State: "running",
		PID: 10, Managed: true,
		Placement: &guest.Placement{
			Guest:        "web",
			Nodes:        nodes("0"),
			CPUMode:      guest.CPURange,
			MemoryMode:   guest.MemoryPreferred,
			Movable:      true,
			Cells:        []guest.Cell{{VCPUs: vcpus("0-1"), Memory: 2 * gib, Nodes: nodes("0")}},
			VCPUs:        []guest.VCPU{{ID: 0, CPUs: cpus("0-3")}, {ID: 1, CPUs: cpus("0-3")}},
			Emulator:     cpus("0-3"),
			Reservations: []guest.Reservation{{Node: 0, Memory: 2 * gib, VCPUs: 2}},
		},
		Config: inventory.Config{
			VCPUs:    2,
			Memory:   2 * gib,
			Source:   "memfd",
			NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: nodes("0")},
		},
		Seen: seen(byNode{0: 2 * gib}, vcpu(0, "0-3", "0"), vcpu(1, "0-3", "0"),
			thread(inventory.RoleEmulator, "0-3", "0"), thread(inventory.RoleVhost, "0-3", "0-1,3")),
	}
}

func wide() inventory.Guest {
	return inventory.Guest{
		Name: "wide", Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU), State: "running",
		PID: 11, Managed: true,
		Placement: &guest.Placement{
			Guest:      "wide",
			Nodes:      nodes("0,3"),
			Visible:    true,
			CPUMode:    guest.CPURange,
			MemoryMode: guest.MemoryStrict,
			Cells: []guest.Cell{{ID: 0, VCPUs: vcpus("0-2"), Memory: gib, Nodes: nodes("0")},
				{ID: 1, VCPUs: vcpus("3-5"), Memory: gib, Nodes: nodes("3")}},
			VCPUs: []guest.VCPU{{ID: 0, CPUs: cpus("0-3")}, {ID: 1, CPUs: cpus("0-3")}, {ID: 2, CPUs: cpus("0-3")},
				{ID: 3, CPUs: cpus("8-11")}, {ID: 4, CPUs: cpus("8-11")}, {ID: 5, CPUs: cpus("8-11")}},
			Emulator:     cpus("0-3,8-11"),
			Reservations: []guest.Reservation{{Node: 0, Memory: gib, VCPUs: 3}, {Node: 3, Memory: gib, VCPUs: 3}},
		},
		Config: inventory.Config{VCPUs: 6, Memory: 2 * gib, Source: "memfd",
			NUMATune: &inventory.NUMATune{
				Mode:  "strict",
				Nodes: nodes("0,3"),
				Cells: []inventory.CellTune{{Cell: 0, Mode: "strict", Nodes: nodes("0")},
					{Cell: 1, Mode: "strict", Nodes: nodes("3")}},
			},
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpus("0-2"), Memory: gib},
				{ID: 1, VCPUs: vcpus("3-5"), Memory: gib}}},
		Seen: seen(byNode{0: gib, 3: gib}, vcpu(0, "0-3", "0,3"), vcpu(1, "0-3", "0,3"), vcpu(2, "0-3", "0,3"),
			vcpu(3, "8-11", "0,3"), vcpu(4, "8-11", "0,3"), vcpu(5, "8-11", "0,3"),
			thread(inventory.RoleEmulator, "0-3,8-11", "0,3")),
	}
}

func foreign() inventory.Guest {
	return inventory.Guest{
		Name: "foreign", Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State: "running", PID: 12,
		Config: inventory.Config{VCPUs: 2, Memory: 4 * gib, Source: "anonymous",
			Pins:     map[guest.VCPUID]topology.CPUSet{0: cpus("4-7"), 1: cpus("4-7")},
			NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: nodes("1")}},
		Seen: seen(byNode{1: 4 * gib}, vcpu(0, "4-7", "1"), vcpu(1, "4-7", "1"),
			thread(inventory.RoleEmulator, "4-7", "1")),
	}
}

func seen(memory byNode, threads ...inventory.Thread) inventory.Seen {
	return inventory.Seen{
		MemoryByNode: memory,
		MemorySource: "cgroup memory.numa_stat",
		Threads:      threads,
		ThreadSource: "/proc/PID/task",
	}
}

func vcpu(id guest.VCPUID, affinity, mems string) inventory.Thread {
	return inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id, Affinity: cpus(affinity), Mems: nodes(mems)}
}

func thread(role inventory.ThreadRole, affinity, mems string) inventory.Thread {
	return inventory.Thread{Role: role, Affinity: cpus(affinity), Mems: nodes(mems)}
}

// find returns the guest of that name, for a test to change.
func find(h *inventory.Host, name string) *inventory.Guest {
	for i := range h.Guests {
		if h.Guests[i].Name == name {
			return &h.Guests[i]
		}
	}
	panic(name)
}

// unbind makes a guest as libvirt makes it by default.
func unbind(g *inventory.Guest) {
	g.Placement, g.Spec, g.Managed = nil, nil, false
	g.Config.NUMATune, g.Config.Pins = nil, nil
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity, g.Seen.Threads[i].Mems = cpus("0-11"), nodes("0-1,3")
	}
}
