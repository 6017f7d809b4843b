package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestRun_HealthyHost(t *testing.T) {
	for _, f := range diagnose.Run(host()) {
		t.Errorf("%+v", f)
	}
}

// faults make each rule report a finding. says is text that the finding must contain.
var faults = []struct {
	rule, name string
	fault      func(h *inventory.Host)
	object     string
	severity   diagnose.Severity
	says       string // in evidence, fix or command
	safe       bool
}{
	{"preallocated-unbound", "huge pages", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.PageSize = 2 * mib
	}, "guest foreign", diagnose.Warning, "numavisor bind foreign", false},
	{"preallocated-unbound", "pages of 1 GiB", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.PageSize = gib
	}, "guest foreign", diagnose.Warning, "huge pages of 1 GiB", false},
	{"preallocated-unbound", "immediate", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.Immediate = true
	}, "guest foreign", diagnose.Warning, "node 1: 4 GiB (cgroup memory.numa_stat)", false},
	{"vfio-unbound", "a device", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.Devices = []string{"0000:3b:00.0"}
	}, "guest foreign", diagnose.Warning, "virsh dumpxml foreign", false},
	{"vfio-unbound", "with cells, which need a mode", func(h *inventory.Host) {
		g := find(h, "wide")
		unbind(g)
		g.Config.Devices = []string{"0000:3b:00.0"}
	}, "guest wide", diagnose.Warning, "--memory-binding preferred", false},
	{"preallocated-unbound", "an emulator that starts on one of two nodes", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.PageSize, g.Config.EmulatorPin = 2*mib, cpus("4,8")
		g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("4-11"), cpus("4-11")
	}, "guest foreign", diagnose.Warning, "huge pages of 2 MiB", false},
	{"preallocated-unbound", "shut off, so its next start", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.State, g.Seen, g.Config.Immediate = "shutoff", inventory.Seen{}, true
	}, "guest foreign", diagnose.Warning, "virsh define bound.xml", false},
	{"binding-matters-little", "a small guest", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.Memory = 256 * mib
	}, "guest foreign", diagnose.Info, "256 MiB", false},
	{"memory-far", "pinned away from its memory", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Config.NUMATune = nil
		g.Seen.MemoryByNode = byNode{3: 4 * gib}
	}, "guest foreign", diagnose.Warning, "local share 0 %", false},
	{"memory-far", "not pinned: by the CPUs it last ran on", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Seen.Threads[0].LastCPU, g.Seen.Threads[1].LastCPU = 2, 5
	}, "guest foreign", diagnose.Warning, "last ran on CPUs 2,5, nodes 0-1 (/proc/PID/task)\nlocal share 50 %", false},
	{"memory-far", "one vCPU, memory on two nodes", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.VCPUs, g.Seen.Threads = 1, g.Seen.Threads[:1]
		g.Seen.MemoryByNode = byNode{0: 2121 * mib, 1: 1810 * mib} // as numastat showed it
	}, "guest foreign", diagnose.Warning, "local share 54 %", false},
	{"memory-far", "a plain process", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Hypervisor, g.Can = guest.PlainQEMU, inventory.CapabilitiesOf(guest.PlainQEMU)
		g.Config.NUMATune, g.Seen.MemoryByNode = nil, byNode{3: 4 * gib}
	}, "guest foreign", diagnose.Warning, "numavisor bind --pid 12", false},
	{"memory-far", "Xen cannot move memory", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Hypervisor, g.Can = guest.Xen, inventory.CapabilitiesOf(guest.Xen)
		g.Config.NUMATune, g.Seen.MemoryByNode = nil, byNode{3: 4 * gib}
	}, "guest foreign", diagnose.Warning, "recreate the VM", false},
	{"helpers-far", "vhost on another node", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Seen.Threads = append(g.Seen.Threads, thread(inventory.RoleVhost, "8-9", "0-1,3"))
	}, "guest foreign", diagnose.Warning, "vhost threads may run on CPUs 8-9, nodes 3", false},
	{"helpers-far", "the emulator of a guest that cannot move", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Seen.Threads[2].Affinity, g.Config.Devices = cpus("0"), []string{"0000:3b:00.0"}
	}, "guest foreign", diagnose.Warning, "virsh emulatorpin foreign 4-7", false},
	{"device-far", "a NIC on another node", func(h *inventory.Host) {
		find(h, "web").Placement.Devices = []guest.DeviceSpec{{Address: "0000:3b:00.0"}}
	}, "guest web", diagnose.Warning, "--nodes 1", false},
	{"exclusive-overlap", "two pinned guests", func(h *inventory.Host) {
		for _, name := range []string{"foreign", "web"} {
			g := find(h, name)
			g.Placement = nil
			g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("4"), cpus("5")
		}
	}, "guest foreign", diagnose.Error, "CPUs 4-5", false},
	{"exclusive-overlap", "an unpinned guest on dedicated CPUs", func(h *inventory.Host) {
		find(h, "web").Placement.Reservations[0].Exclusive = cpus("6-7")
	}, "guest web", diagnose.Warning, "of web and of foreign may run on CPUs 6-7", false},
	{"exclusive-overlap", "a managed VM that can leave dedicated CPUs", func(h *inventory.Host) {
		g := find(h, "foreign")
		own := *find(h, "web").Placement
		own.Guest, own.CPUMode, own.VCPUs = "foreign", guest.CPUExclusive, []guest.VCPU{{CPUs: cpus("3")}}
		own.Reservations = []guest.Reservation{{Node: 0, Exclusive: cpus("3"), VCPUs: 1}}
		g.Managed, g.Placement, g.Config.VCPUs = true, &own, 1
		g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("3"), cpus("3")
		find(h, "web").Spec = &guest.Spec{Name: "web", VCPUs: 2}
	}, "guest foreign", diagnose.Warning, "numavisor bind web", true},
	{"restrictive-memnodes", "cells on different nodes", func(h *inventory.Host) {
		for i := range find(h, "wide").Config.NUMATune.Cells {
			find(h, "wide").Config.NUMATune.Cells[i].Mode = "restrictive"
		}
	}, "guest wide", diagnose.Warning, "cell 0: nodes 0, cell 1: nodes 3", false},
	{"auto-placement-without-numad", "even if shut off", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.State, g.Seen, g.Config.AutoPlacement = "shutoff", inventory.Seen{}, true
	}, "guest foreign", diagnose.Info, "numad is not running", false},
	{"auto-placement-without-numad", "not installed", func(h *inventory.Host) {
		h.Kernel.NumadInstalled, find(h, "foreign").Config.NUMATune.Auto = new(bool), true
	}, "guest foreign", diagnose.Error, "numad is not installed", false},
	{"numa-hidden", "more vCPUs than a node has CPUs", func(h *inventory.Host) { find(h, "foreign").Config.VCPUs = 5 },
		"guest foreign", diagnose.Warning, "--topology auto", false},
	{"numa-hidden", "more memory than a node", func(h *inventory.Host) { find(h, "foreign").Config.Memory = 17 * gib },
		"guest foreign", diagnose.Warning, "the largest node has 16 GiB", false},
	{"cells-folded", "by memory", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.Seen.MemoryByNode = nil, byNode{0: 2 * gib}
	}, "guest wide", diagnose.Warning, "node 0: 2 GiB", false},
	{"cells-folded", "by policy", func(h *inventory.Host) {
		find(h, "wide").Seen.Ranges = []inventory.MemoryRange{ram(0, "bind:3", byNode{3: gib}),
			ram(1, "bind:3", byNode{3: gib})}
	}, "guest wide", diagnose.Warning, "bind:3", true},
	{"drift", "an operator pinned it to other CPUs",
		func(h *inventory.Host) { find(h, "web").Seen.Threads[0].Affinity = cpus("4") }, "guest web", diagnose.Warning,
		"vCPU 0 may run on CPUs 4, not 0-3", true},
	{"placed-for-another-host", "it migrated in", func(h *inventory.Host) {
		g := find(h, "web")
		g.PlacedFor = &guest.HostIdentity{ID: "1f", Name: "far"}
		g.KeepIntentOf(h.Identity())
	}, "guest web", diagnose.Warning, "a placement for host far", false},
	{"strict-without-room", "the node is full before the guest has all its memory", func(h *inventory.Host) {
		find(h, "foreign").Seen.MemoryByNode = byNode{1: gib}
		h.Topology.Nodes[1].Free = 2 * gib
	}, "guest foreign", diagnose.Warning, "3 GiB of its memory on node 1 is untouched", false},
	{"node-over-bound", "more memory bound than the node has", func(h *inventory.Host) {
		find(h, "web").Placement.Reservations[0].Memory = 12 * gib
		find(h, "wide").Placement.Reservations[0].Memory = 6 * gib
	}, "node 0", diagnose.Error, "numavisor bind wide --recompute", false},
	{"memory-only-node-used", "by demotion", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Kernel.Demotion = "true"
		find(h, "web").Seen.MemoryByNode = byNode{0: gib, 8: gib}
	}, "guest web", diagnose.Warning, "demotion_enabled is true", true},
	{"uneven-huge-pages", "all pages on one node", func(h *inventory.Host) {
		h.Topology.Nodes[1].HugePages, h.Topology.Nodes[2].HugePages[0].Total = nil, 10
	}, "huge pages of 2 MiB", diagnose.Warning, "echo 512 > " +
		"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", false},
	{"ksm-across-nodes", "nothing merged yet", func(h *inventory.Host) { h.Kernel.KSMRun = "1" }, "host",
		diagnose.Warning, "merge_across_nodes", true},
	{"ksm-across-nodes", "unmerging takes memory",
		func(h *inventory.Host) { h.Kernel.KSMRun, h.Kernel.KSMPagesShared = "1", 1000 }, "host", diagnose.Warning,
		"1000", false},
	{"numa-balancing-against-binding", "all bound", func(h *inventory.Host) {
		h.Kernel.NUMABalancing, find(h, "foreign").Config.NUMATune.Mode = "3", "restrictive"
	}, "host", diagnose.Warning, "sysctl -w kernel.numa_balancing=2", true},
	{"numa-balancing-against-binding", "placed, memory takes no policy from outside", func(h *inventory.Host) {
		h.Kernel.NUMABalancing = "1"
		c := &find(h, "web").Config
		c.NUMATune, c.Source = nil, "anonymous"
	}, "host", diagnose.Warning, "without a policy: web", true},
	{"numa-balancing-against-binding", "bound, but its mappings have no policy", func(h *inventory.Host) {
		h.Kernel.NUMABalancing = "1"
		find(h, "foreign").Seen.Ranges = []inventory.MemoryRange{ram(0, "default", byNode{1: 4 * gib})}
	}, "host", diagnose.Warning, "without a policy: foreign", true},
	{"numa-balancing-against-binding", "unbound guests profit from it", func(h *inventory.Host) {
		h.Kernel.NUMABalancing, find(h, "web").Config.NUMATune.Mode = "1", "restrictive"
		find(h, "web").Placement.MemoryMode = guest.MemoryRestrictive
		unbind(find(h, "foreign"))
	}, "host", diagnose.Warning, "bind 1 unbound VM,", false},
	{"numad-with-bindings", "", func(h *inventory.Host) { h.Kernel.NumadRunning = true }, "host", diagnose.Warning,
		"foreign, web, wide", false},
	{"cpusets-missing", "", func(h *inventory.Host) { h.Kernel.Cpusets = new(bool) }, "host", diagnose.Warning,
		"no cpuset controller", false},
	{"zone-reclaim", "", func(h *inventory.Host) { h.Kernel.ZoneReclaim = "1" }, "host", diagnose.Warning,
		"vm.zone_reclaim_mode is 1", true},
	{"distances-missing", "unreachable", func(h *inventory.Host) { h.Topology.Nodes[0].Distances[3] = 255 }, "host",
		diagnose.Warning, "node 0 to node 3: 255", false},
	{"distances-missing", "all missing", func(h *inventory.Host) {
		for i := range h.Topology.Nodes {
			h.Topology.Nodes[i].Distances = nil
		}
	}, "host", diagnose.Warning, "and 2 more pairs", false},
	{"node-without-memory", "", func(h *inventory.Host) { h.Topology.Nodes[1].Memory = 0 }, "node 1", diagnose.Warning,
		"CPUs 4-7", false},
	{"memory-only-node-used", "its CPUs may be offline", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Topology.Offline = cpus("90-91")
		find(h, "web").Seen.MemoryByNode = byNode{0: gib, 8: gib}
	}, "guest web", diagnose.Warning, "node 8 has memory and no CPUs online; CPUs 90-91 of the host are offline", true},
	{"demotion-against-binding", "its CPUs may be offline", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Kernel.Demotion, h.Topology.Offline = "true", cpus("90-91")
	}, "host", diagnose.Warning, "nodes 8 have memory and no CPUs online; CPUs 90-91 of the host are offline", false},
	{"memory-only-node", "its CPUs may be offline", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Topology.Offline = cpus("90-91")
	}, "node 8", diagnose.Info, "CPUs 90-91 of the host are offline", false},
	{"memory-only-node", "", func(h *inventory.Host) { addMemoryNode(h) }, "node 8", diagnose.Info,
		"nearest to node 3 (distance 17)", false},
	{"bound-to-nothing", "pinned to offline CPUs", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.State, g.Seen, g.Config.Pins[1] = "shutoff", inventory.Seen{}, cpus("12-15")
	}, "guest foreign", diagnose.Error, "vCPU 1 is pinned to CPUs 12-15 (configuration); online CPUs are 0-11", false},
	{"bound-to-nothing", "helpers", func(h *inventory.Host) {
		c := &find(h, "foreign").Config
		c.EmulatorPin, c.IOThreadPins = cpus("20"), map[int]topology.CPUSet{1: cpus("21")}
	}, "guest foreign", diagnose.Error, "I/O thread 1 is pinned to CPUs 21", false},
	{"bound-to-nothing", "a node without memory",
		func(h *inventory.Host) { find(h, "foreign").Config.NUMATune.Nodes = nodes("2") }, "guest foreign",
		diagnose.Error, "memory is bound to nodes 2 (configuration); nodes with memory are 0-1,3", false},
	{"vcpus-crowded", "more vCPUs than CPUs", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Config.VCPUs, g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = 4, cpus("4-5"), cpus("5-6")
	}, "guest foreign", diagnose.Warning, "4 vCPUs (configuration) on 3 CPUs", false},
	{"housekeeping-taken", "by a pin", func(h *inventory.Host) { h.Topology.Housekeeping = cpus("0,4") },
		"guest foreign", diagnose.Warning, "CPUs 0,4 are housekeeping CPUs", false},
	{"cells-contradicted", "two cells on one node", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.Config.NUMATune.Cells[1].Nodes = nil, nodes("0")
	}, "guest wide", diagnose.Warning, "cells 0 and 1 are both bound to node 0", false},
	{"cells-contradicted", "vCPUs on another node than their cell, shut off", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.State, g.Seen = nil, "shutoff", inventory.Seen{}
		g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: cpus("0"), 4: cpus("1-2")}
	}, "guest wide", diagnose.Warning, "vCPU 4 of cell 1 is pinned to CPUs 1-2; the cell's memory is on nodes " +
		"3", false},
	{"demotion-against-binding", "to CXL memory", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Kernel.Demotion, h.Kernel.Release = "true", "6.12.1"
	}, "host", diagnose.Warning, "Linux 6.12.1", false},
	{"distances-asymmetric", "one is longer", func(h *inventory.Host) { h.Topology.Nodes[0].Distances[3] = 30 },
		"host", diagnose.Info, "node 0 to node 3: 30, back: 20", false},
	{"memory-lopsided", "a missing module", func(h *inventory.Host) { h.Topology.Nodes[1].Memory = 12 * gib }, "node 1",
		diagnose.Info, "12 GiB of memory; node 0 has 16 GiB", false},
	{"topology-incomplete", "", func(h *inventory.Host) { h.Topology.Gaps = []string{"node 1: no distances"} }, "host",
		diagnose.Info, "node 1: no distances", false},
	{"control-domain-unlimited", "", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: h.Topology.CPUSet().Len(), CPUs: h.Topology.CPUSet()}
	}, "host", diagnose.Warning, "dom0_max_vcpus=N", false},
	{"control-domain-unpinned", "", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: h.Topology.CPUSet()}
	}, "host", diagnose.Info, "xl vcpu-pin 0 all 0-3", false},
	{"control-domain-balloons", "", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: cpus("0-1"), Memory: 14 * gib, Balloons: true}
	}, "host", diagnose.Warning, "dom0 has 14 GiB", false},
	{"claims-off", "", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: cpus("0-1"), ClaimsOff: true}
	}, "host", diagnose.Info, "claim_mode=0", false},
	{"node-affinity-far", "", func(h *inventory.Host) { find(h, "foreign").Config.NodeAffinity = nodes("3") },
		"guest foreign", diagnose.Warning, "node affinity 3 (xl list -n)\n4 GiB of 4 GiB on other nodes, 1", false},
	{"cell-memory-elsewhere", "", func(h *inventory.Host) {
		node := topology.NodeID(3)
		g := find(h, "foreign")
		g.Config.Cells = []inventory.ConfigCell{{Memory: 4 * gib, Node: &node}}
	}, "guest foreign", diagnose.Warning, "node 3: virtual nodes of 4 GiB (xl list -l), 0 B of the memory", false},
	{"pins-outside-pool", "", func(h *inventory.Host) { pool(h, "credit2", "4-5") }, "guest foreign", diagnose.Warning,
		"hard affinity to CPUs 4-7", false},
	{"soft-affinity-ignored", "", func(h *inventory.Host) {
		pool(h, "rtds", "0-11")
		find(h, "foreign").Seen.Threads[0].Preferred = cpus("4")
	}, "guest foreign", diagnose.Warning, "scheduler rtds", false},
	{"scale-without-agent", "no daemon", scaled(nil), "guest web", diagnose.Warning,
		"systemctl enable --now numavisor", false},
	{"scale-without-agent", "no agent", scaled(&inventory.Scaled{}), "guest web", diagnose.Warning,
		"install and start the agent in the VM", false},
	{"scale-without-agent", "it is silent", scaled(&inventory.Scaled{Means: "partition", Silent: true}), "guest web",
		diagnose.Warning, "has sent nothing for 3 s", false},
	{"scale-without-agent", "no means", scaled(&inventory.Scaled{Means: "none"}), "guest web", diagnose.Warning,
		"boot a kernel from Linux 6.1 on", false},
	{"intent-unusable", "running", func(h *inventory.Host) {
		find(h, "foreign").IntentError = "placement.nodes is 77"
	}, "guest foreign", diagnose.Warning, "numavisor bind foreign", false},
	{"intent-unusable", "shut off", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.State, g.PID, g.Seen, g.IntentError = "shutoff", 0, inventory.Seen{}, "placement.nodes is 77"
	}, "guest foreign", diagnose.Warning, "virsh metadata foreign", false},
}

func addMemoryNode(h *inventory.Host) {
	t := &h.Topology
	t.Nodes = append(
		t.Nodes,
		topology.Node{
			ID:        8,
			Memory:    32 * gib,
			Free:      30 * gib,
			Distances: map[topology.NodeID]int{0: 24, 1: 24, 3: 17, 8: 10},
		},
	)
	t.Nodes[0].Distances[8], t.Nodes[1].Distances[8], t.Nodes[2].Distances[8] = 24, 24, 17
	t.Classify()
}

func ram(cell guest.CellID, policy string, where byNode) inventory.MemoryRange {
	return inventory.MemoryRange{
		Cell:     &cell,
		Size:     gib,
		PageSize: 4096,
		Backing:  "anonymous",
		Policy:   policy,
		ByNode:   where,
	}
}

func TestRun_FindsEveryFault(t *testing.T) {
	for _, c := range faults {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			h := host()
			c.fault(h)
			found := diagnose.Run(h)
			i := slices.IndexFunc(found,
				func(f diagnose.Finding) bool { return f.Rule == c.rule && f.Object == c.object })
			if i < 0 {
				t.Fatalf("not found on %s; found %+v", c.object, found)
			}
			f := found[i]
			if f.Severity != c.severity || f.Safe != c.safe {
				t.Errorf("severity %s, safe %v; want %s, %v", f.Severity, f.Safe, c.severity, c.safe)
			}
			if text := strings.Join(append(f.Evidence, f.Fix, f.Command), "\n"); !strings.Contains(text, c.says) {
				t.Errorf("does not contain %q:\n%s", c.says, text)
			}
			if len(f.Evidence) == 0 || f.Effect == "" || f.Fix == "" {
				t.Errorf("has no evidence, effect or fix: %+v", f)
			}
		})
	}
}

// healthy are states close to a fault in which the rule reports nothing.
var healthy = []struct {
	rule, name string
	change     func(h *inventory.Host)
}{
	{"preallocated-unbound", "bound from outside", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Config.NUMATune, g.Config.PageSize = nil, 2*mib // the cpusets of its threads restrict it
	}},
	{"preallocated-unbound", "the emulator starts where the vCPUs are", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.PageSize, g.Config.EmulatorPin = 2*mib, cpus("4")
		g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("4-7"), cpus("4-7")
	}},
	{"vfio-unbound", "bound", func(h *inventory.Host) { find(h, "foreign").Config.Devices = []string{"0000:3b:00.0"} }},
	{"binding-matters-little", "a large one", func(h *inventory.Host) { unbind(find(h, "foreign")) }},
	{"memory-far", "a little",
		func(h *inventory.Host) { find(h, "foreign").Seen.MemoryByNode = byNode{1: 4 * gib, 0: 200 * mib} }},
	{"memory-far", "unpinned, with memory near its vCPUs by first touch", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Seen.Threads[0].LastCPU, g.Seen.Threads[1].LastCPU = 4, 7
	}},
	{"memory-far", "interleaved as requested", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Config.NUMATune.Mode, g.Seen.MemoryByNode = "interleave", byNode{0: 2 * gib, 1: 2 * gib}
	}},
	{"memory-far", "cells on their nodes, in total", func(h *inventory.Host) { find(h, "wide").Placement = nil }},
	{"helpers-far", "on housekeeping CPUs", func(h *inventory.Host) {
		h.Topology.Housekeeping = cpus("0")
		find(h, "foreign").Seen.Threads[2].Affinity = cpus("0")
	}},
	{"helpers-far", "placed there", func(h *inventory.Host) {
		g := find(h, "web")
		g.Placement.Emulator = cpus("8")
		g.Seen.Threads[2].Affinity, g.Seen.Threads[3].Affinity = cpus("8"), cpus("8")
	}},
	{"helpers-far", "of a guest that runs everywhere", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Seen.Threads[2].Affinity = cpus("0")
	}},
	{"device-far", "near", func(h *inventory.Host) { find(h, "foreign").Config.Devices = []string{"0000:3b:00.0"} }},
	{"device-far", "on a node that the firmware does not name", func(h *inventory.Host) {
		h.Topology.Devices[0].Node = topology.NoNode
		find(h, "web").Config.Devices = []string{"0000:3b:00.0"}
	}},
	{"exclusive-overlap", "ranges may overlap",
		func(h *inventory.Host) { find(h, "foreign").Seen.Threads[0].Affinity = cpus("0-3") }},
	{"restrictive-memnodes", "the same nodes for all", func(h *inventory.Host) {
		for i := range find(h, "wide").Config.NUMATune.Cells {
			c := &find(h, "wide").Config.NUMATune.Cells[i]
			c.Mode, c.Nodes = "restrictive", nodes("0,3")
		}
	}},
	{"auto-placement-without-numad", "numad is running", func(h *inventory.Host) {
		h.Kernel.NumadRunning, find(h, "foreign").Config.AutoPlacement = true, true
	}},
	{"auto-placement-without-numad", "installed, and not running as a daemon", func(h *inventory.Host) {
		there := true
		h.Kernel.NumadInstalled, find(h, "foreign").Config.AutoPlacement = &there, true
	}},
	{"numa-hidden", "requested", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Config.Cells, g.Spec = nil, &guest.Spec{Topology: guest.TopologySpec{Mode: guest.TopologyOff}}
	}},
	{"numa-hidden", "cells are visible", func(h *inventory.Host) { find(h, "wide").Config.Memory = 20 * gib }},
	{"cells-folded", "cells that share a node on purpose", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.Seen.MemoryByNode = nil, byNode{0: 2 * gib}
		g.Config.NUMATune.Cells[1].Nodes = nodes("0")
	}},
	{"cells-folded", "one cell has touched more memory than the other", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.Seen.MemoryByNode = nil, byNode{0: gib, 3: 200 * mib}
	}},
	{"cells-folded", "one cell has touched memory", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement, g.Seen.MemoryByNode = nil, byNode{0: 200 * mib}
	}},
	{"drift", "an unmanaged guest",
		func(h *inventory.Host) { find(h, "foreign").Seen.Threads[0].Affinity = cpus("5") }},
	{"placed-for-another-host", "placed for this host", func(h *inventory.Host) {
		h.ID = "1f"
		g := find(h, "web")
		g.PlacedFor = &guest.HostIdentity{ID: "1f", Name: "its former name"}
		g.KeepIntentOf(h.Identity())
	}},
	{"strict-without-room", "all its memory is touched", func(h *inventory.Host) { h.Topology.Nodes[1].Free = mib }},
	{"strict-without-room", "its memory may overflow", func(h *inventory.Host) {
		find(h, "web").Seen.MemoryByNode = byNode{0: gib}
		h.Topology.Nodes[0].Free = mib
	}},
	{"node-over-bound", "full", func(h *inventory.Host) { find(h, "web").Placement.Reservations[0].Memory = 15 * gib }},
	{"node-over-bound", "guests that may use other nodes", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.Memory, g.Seen.MemoryByNode = 40*gib, byNode{1: gib}
	}},
	{"memory-only-node-used", "on purpose", func(h *inventory.Host) {
		addMemoryNode(h)
		g := find(h, "web")
		g.Placement.Nodes, g.Seen.MemoryByNode = nodes("0,8"), byNode{0: gib, 8: gib}
	}},
	{"uneven-huge-pages", "a pool enlarged for a guest", func(h *inventory.Host) {
		h.Topology.Nodes[0].HugePages[0].Total = 512 + 4096
		find(h, "web").Placement.Reservations = []guest.Reservation{
			{Node: 0, Memory: 8 * gib, PageSize: 2 * mib, VCPUs: 2}}
	}},
	{"uneven-huge-pages", "a node of much less memory", func(h *inventory.Host) {
		h.Topology.Nodes[2].Memory, h.Topology.Nodes[2].HugePages = 4*gib, nil
	}},
	{"ksm-across-nodes", "off", func(h *inventory.Host) { h.Kernel.KSMPagesShared = 5 }},
	{"ksm-across-nodes", "within nodes",
		func(h *inventory.Host) { h.Kernel.KSMRun, h.Kernel.KSMAcrossNodes = "1", "0" }},
	{"numa-balancing-against-binding", "memory with a policy",
		func(h *inventory.Host) { h.Kernel.NUMABalancing = "1" }},
	{"numa-balancing-against-binding", "memfd memory whose policy was set from outside", func(h *inventory.Host) {
		h.Kernel.NUMABalancing, find(h, "web").Config.NUMATune = "1", nil
	}},
	{"numa-balancing-against-binding", "huge pages of a pool", func(h *inventory.Host) {
		h.Kernel.NUMABalancing, find(h, "foreign").Config.NUMATune.Mode = "1", "restrictive"
		find(h, "foreign").Config.PageSize = 2 * mib
	}},
	{"numa-balancing-against-binding", "tiering only", func(h *inventory.Host) { h.Kernel.NUMABalancing = "2" }},
	{"numa-balancing-against-binding", "no guest is bound", func(h *inventory.Host) {
		h.Kernel.NUMABalancing, h.Guests = "1", h.Guests[:1]
		unbind(&h.Guests[0])
	}},
	{"numad-with-bindings", "no guest", func(h *inventory.Host) { h.Kernel.NumadRunning, h.Guests = true, nil }},
	{"cpusets-missing", "present", func(h *inventory.Host) { has := true; h.Kernel.Cpusets = &has }},
	{"cpusets-missing", "unknown", func(h *inventory.Host) { h.Kernel.Cpusets = nil }},
	{"zone-reclaim", "unreadable", func(h *inventory.Host) { h.Kernel.ZoneReclaim = "" }},
	{"distances-missing", "measured", func(h *inventory.Host) {
		h.Topology.Nodes[0].Distances[3] = 255
		h.Topology.Measured = &topology.Measured{
			Nodes:        []topology.NodeID{0, 1, 3},
			LatencyNanos: [][]float64{{80, 140, 140}, {140, 80, 140}, {140, 140, 80}},
		}
	}},
	{"node-without-memory", "a node with neither",
		func(h *inventory.Host) { h.Topology.Nodes = append(h.Topology.Nodes, topology.Node{ID: 9}) }},
	{"memory-only-node", "a node with neither",
		func(h *inventory.Host) { h.Topology.Nodes = append(h.Topology.Nodes, topology.Node{ID: 9}) }},
	{"bound-to-nothing", "one of the CPUs is online",
		func(h *inventory.Host) { find(h, "foreign").Config.Pins[0] = cpus("7-40") }},
	{"bound-to-nothing", "CPUs unknown", func(h *inventory.Host) { h.Topology.CPUs = nil }},
	{"vcpus-crowded", "a CPU for each", func(h *inventory.Host) { find(h, "foreign").Config.VCPUs = 4 }},
	{"vcpus-crowded", "anywhere on the host", func(h *inventory.Host) {
		g := find(h, "foreign")
		unbind(g)
		g.Config.VCPUs = 40
	}},
	{"housekeeping-taken", "an unpinned guest", func(h *inventory.Host) {
		h.Topology.Housekeeping = cpus("4")
		unbind(find(h, "foreign"))
	}},
	{"housekeeping-taken", "only the emulator uses them", func(h *inventory.Host) {
		h.Topology.Housekeeping, find(h, "foreign").Seen.Threads[0].Affinity = cpus("4"), cpus("5-7")
		find(h, "foreign").Seen.Threads[1].Affinity, find(h, "foreign").Seen.Threads[2].Affinity = cpus("5-7"), cpus(
			"4")
	}},
	{"cells-contradicted", "cells that may overflow to each other's nodes", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement = nil
		g.Config.NUMATune.Cells[0].Nodes, g.Config.NUMATune.Cells[1].Nodes = nodes("0,3"), nodes("0,3")
	}},
	{"cells-contradicted", "placed, so it was checked before", func(h *inventory.Host) {
		find(h, "wide").Config.NUMATune.Cells[1].Nodes = nodes("0")
	}},
	{"cells-contradicted", "each cell on its node", func(h *inventory.Host) {
		g := find(h, "wide")
		g.Placement = nil
		g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: cpus("0-3"), 4: cpus("2,8")}
	}},
	{"demotion-against-binding", "off", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Kernel.Demotion = "false"
	}},
	{"demotion-against-binding", "no slow memory", func(h *inventory.Host) { h.Kernel.Demotion = "true" }},
	{"distances-asymmetric", "a memory-only node has no distances", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Topology.Nodes[3].Distances = map[topology.NodeID]int{0: 255, 1: 255, 3: 255, 8: 10}
	}},
	{"distances-asymmetric", "distances of a memory-only node", func(h *inventory.Host) {
		addMemoryNode(h)
		h.Topology.Nodes[3].Distances = map[topology.NodeID]int{0: 50, 1: 50, 3: 50, 8: 10}
	}},
	{"memory-lopsided", "reserved memory", func(h *inventory.Host) { h.Topology.Nodes[0].Memory = 15 * gib }},
	{"memory-lopsided", "a memory-only node of another size", func(h *inventory.Host) { addMemoryNode(h) }},
	{"intent-unusable", "no placement is recorded", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Managed, g.Spec, g.Placement = false, nil, nil
	}},
	{"topology-incomplete", "gaps of the inventory", func(h *inventory.Host) {
		h.Gaps = []inventory.Gap{
			{Kind: inventory.ThreadsUnread, Object: inventory.GuestRef("web"), What: "its threads", Why: "not root"}}
	}},
	{"control-domain-unlimited", "limited and pinned", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: cpus("0-1")}
	}},
	{"control-domain-unpinned", "on one node", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: cpus("0-3")}
	}},
	{"control-domain-unpinned", "wider than a node", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 9, CPUs: h.Topology.CPUSet()}
	}},
	{"control-domain-balloons", "fixed memory, claims", func(h *inventory.Host) {
		h.ControlDomain = &inventory.ControlDomain{VCPUs: 2, CPUs: cpus("0-1"), Memory: 2 * gib}
	}},
	{"claims-off", "no Xen", func(h *inventory.Host) { h.ControlDomain = nil }},
	{"node-affinity-far", "where the memory is", func(h *inventory.Host) {
		find(h, "foreign").Config.NodeAffinity = nodes("1")
	}},
	{"node-affinity-far", "memory not read", func(h *inventory.Host) {
		g := find(h, "foreign")
		g.Config.NodeAffinity, g.Seen.MemoryByNode = nodes("3"), nil
	}},
	{"cell-memory-elsewhere", "on its node", func(h *inventory.Host) {
		node := topology.NodeID(1)
		find(h, "foreign").Config.Cells = []inventory.ConfigCell{{Memory: 4 * gib, Node: &node}}
	}},
	{"pins-outside-pool", "within the pool", func(h *inventory.Host) { pool(h, "credit2", "4-11") }},
	{"soft-affinity-ignored", "credit2 obeys it", func(h *inventory.Host) {
		pool(h, "credit2", "0-11")
		find(h, "foreign").Seen.Threads[0].Preferred = cpus("4")
	}},
	{"scale-without-agent", "its agent answers", scaled(&inventory.Scaled{Means: "partition"})},
	{"scale-without-agent", "the second best means", scaled(&inventory.Scaled{Means: "flip"})},
	{"scale-without-agent", "it does not run", func(h *inventory.Host) {
		scaled(nil)(h)
		g := find(h, "web")
		g.State, g.PID, g.Seen = "shutoff", 0, inventory.Seen{}
	}},
	{"soft-affinity-ignored", "the hard affinity is as narrow", func(h *inventory.Host) {
		pool(h, "rtds", "0-11")
		for i := range find(h, "foreign").Seen.Threads {
			find(h, "foreign").Seen.Threads[i].Preferred = cpus("4-7")
		}
	}},
}

// scaled makes the number of vCPUs of the VM web follow its demand, and records a state of it.
func scaled(state *inventory.Scaled) func(h *inventory.Host) {
	return func(h *inventory.Host) {
		g := find(h, "web")
		g.Placement.Scale, g.Seen.Scaled = &guest.Scale{Min: 1, Weight: 100}, state
	}
}

func TestRun_ReportsNoFalsePositives(t *testing.T) {
	for _, c := range healthy {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			h := host()
			c.change(h)
			for _, f := range diagnose.Run(h) {
				if f.Rule == c.rule {
					t.Errorf("found %+v", f)
				}
			}
		})
	}
}

func TestRun_EveryRuleHasBothTests(t *testing.T) {
	for _, rule := range diagnose.Rules() {
		loud := false
		for _, f := range faults {
			loud = loud || f.rule == rule
		}
		for _, f := range handoffFaults {
			loud = loud || f.rule == rule
		}
		if !loud {
			t.Errorf("no test makes rule %s find something", rule)
		}
		silent := false
		for _, s := range healthy {
			silent = silent || s.rule == rule
		}
		for _, s := range handoffHealthy {
			silent = silent || s.rule == rule
		}
		if !silent {
			t.Errorf("no test in which rule %s finds nothing", rule)
		}
	}
}

// Run offers no bind for a guest that is being moved between two placements. The
// finding says who moves the guest, and since when.
func TestRun_NoBindForGuestBeingMoved(t *testing.T) {
	drifted := func(h *inventory.Host) {
		g := find(h, "web")
		for n := range g.Seen.Threads {
			g.Seen.Threads[n].Affinity = h.Topology.CPUSet()
		}
		g.Placement.MemoryMode = guest.MemoryStrict // and its node has no room for the rest
		g.Seen.MemoryByNode = byNode{0: gib}
		h.Topology.Nodes[0].Free = mib
	}
	of := func(h *inventory.Host) (all []diagnose.Finding) {
		for _, f := range diagnose.Run(h) {
			if f.Object == "guest web" {
				all = append(all, f)
			}
		}
		return all
	}
	h := host()
	drifted(h)
	rules := map[string]bool{}
	for _, f := range of(h) {
		rules[f.Rule] = true
		if f.Command == "" {
			t.Errorf("of a guest that is not being moved, %s offers nothing", f.Rule)
		}
	}
	if !rules["drift"] || !rules["strict-without-room"] {
		t.Fatalf("rules %v, want drift and strict-without-room", rules)
	}
	h.Claims = []inventory.Claim{{Name: "web", Holder: 812, By: "balancer",
		Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Placement: *find(h, "web").Placement}}
	for _, f := range of(h) {
		if f.Rule == "drift" && f.Severity != diagnose.Info {
			t.Errorf("drift is of severity %s while the guest is moved, want %s", f.Severity, diagnose.Info)
		}
		if f.Safe || f.Action != nil || f.Command != "" {
			t.Errorf("%s offers %q", f.Rule, f.Command)
		}
		want := "moved by balancer (process 812) since 2026-03-01T12:00:00Z"
		if evidence := strings.Join(f.Evidence, "; "); !strings.Contains(evidence, want) {
			t.Errorf("%s has evidence %q, want %q in it", f.Rule, evidence, want)
		}
	}
}

// Where a cgroup above a guest keeps it from its nodes, bind would be refused:
// the doctor offers the command that widens the cgroup.
func TestRun_DriftBelowANodeLimit(t *testing.T) {
	h := host()
	g := find(h, "web")
	g.Seen.Threads[0].Affinity = cpus("4")
	g.Seen.NodeLimits = []inventory.NodeLimit{{File: "/sys/fs/cgroup/vms.slice/cpuset.mems", Nodes: nodes("2")}}
	for _, f := range diagnose.Run(h) {
		if f.Rule != "drift" {
			continue
		}
		want := "echo " + nodes("2").Union(g.Placement.Nodes).String() + " > /sys/fs/cgroup/vms.slice/cpuset.mems"
		if f.Command != want || f.Action != nil || f.Safe {
			t.Errorf("command %q, action %+v, safe %v; want %q and no action", f.Command, f.Action, f.Safe, want)
		}
		return
	}
	t.Error("no drift is found")
}

// pool puts the VM foreign, whose vCPUs are pinned to CPUs 4-7, into a CPU pool.
func pool(h *inventory.Host, scheduler, list string) {
	g := find(h, "foreign")
	g.Pool = "db"
	g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: cpus("4-7"), 1: cpus("4-7")}
	h.Pools = append(h.Pools, inventory.Pool{Name: "db", Scheduler: scheduler, CPUs: cpus(list)})
}
