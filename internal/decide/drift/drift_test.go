package drift_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const mib = topology.MiB

type byNode = topology.MemoryByNode

func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }
func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func vcpus(list string) guest.VCPUSet    { return topology.MustParseSet[guest.VCPUID](list) }

// host has nodes 0, 1, 2 of two CPUs each, and node 7 with memory only.
func host() *topology.Topology {
	t := &topology.Topology{}
	for _, id := range []topology.NodeID{0, 1, 2, 7} {
		n := topology.Node{ID: id, Memory: topology.GiB}
		if id < 7 {
			first := topology.CPUID(2 * id)
			n.CPUs = topology.Range(first, first+1)
			for c := range n.CPUs.All() {
				t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: id, Siblings: topology.SetOf(c)})
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

func vcpu(id guest.VCPUID, affinity, mems string) inventory.Thread {
	return inventory.Thread{
		TID:      100 + int(id),
		Role:     inventory.RoleVCPU,
		VCPU:     &id,
		LastCPU:  -1,
		Affinity: cpus(affinity),
		Mems:     nodes(mems),
	}
}

func helper(role inventory.ThreadRole, affinity, mems string) inventory.Thread {
	return inventory.Thread{TID: 99, Role: role, Affinity: cpus(affinity), Mems: nodes(mems)}
}

func ram(cell guest.CellID, backing, policy string, where byNode) inventory.MemoryRange {
	return inventory.MemoryRange{
		Address:  0x1000 * uint64(cell+1),
		Size:     128 * mib,
		Cell:     &cell,
		Policy:   policy,
		PageSize: 4096,
		Backing:  backing,
		ByNode:   where,
	}
}

// twoCells is a guest on nodes 0 and 1 that matches its placement.
func twoCells() inventory.Guest {
	return inventory.Guest{
		Name: "g", Hypervisor: guest.LibvirtQEMU, State: "running", Managed: true,
		Placement: &guest.Placement{
			Guest: "g", Nodes: nodes("0-1"), Visible: true, CPUMode: guest.CPURange, MemoryMode: guest.MemoryPreferred,
			Cells: []guest.Cell{{ID: 0, VCPUs: vcpus("0"), Memory: 128 * mib, Nodes: nodes("0")},
				{ID: 1, VCPUs: vcpus("1"), Memory: 128 * mib, Nodes: nodes("1")}},
			VCPUs:    []guest.VCPU{{ID: 0, CPUs: cpus("0-1")}, {ID: 1, CPUs: cpus("2-3")}},
			Emulator: cpus("0-3"), IOThread: cpus("0-3"), IOThreads: 1,
		},
		Config: inventory.Config{VCPUs: 2, Memory: 256 * mib, Source: "memfd",
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpus("0"), Memory: 128 * mib},
				{ID: 1, VCPUs: vcpus("1"), Memory: 128 * mib}}},
		Seen: inventory.Seen{
			MemoryByNode: byNode{0: 130 * mib, 1: 128 * mib}, MemorySource: "cgroup memory.numa_stat",
			Ranges: []inventory.MemoryRange{ram(0, "memfd", "prefer:0", byNode{0: 128 * mib}),
				ram(1, "memfd", "prefer:1", byNode{1: 128 * mib})},
			Threads: []inventory.Thread{vcpu(0, "0-1", "0-1"), vcpu(1, "2-3", "0-1"),
				helper(inventory.RoleEmulator, "0-3", "0-1"), helper(inventory.RoleIOThread, "1", "0-1")},
		},
	}
}

// divide makes the vCPUs of twoCells divisible: both may run on both nodes.
func divide(g *inventory.Guest) {
	p := g.Placement
	p.Scale = &guest.Scale{Min: 1, Weight: 100}
	for i := range p.Cells {
		p.Cells[i].Nodes = nodes("0-1")
		p.VCPUs[i].CPUs = cpus("0-3")
		g.Seen.Ranges[i].Policy = "prefer (many):0-1"
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(g *inventory.Guest, t *topology.Topology)
		want   []string
	}{
		{"as intended", func(*inventory.Guest, *topology.Topology) {}, nil},
		{"a guest without a placement", func(g *inventory.Guest, _ *topology.Topology) {
			g.Placement, g.Seen.Threads[0].Affinity = nil, cpus("4")
		}, nil},
		{"a vCPU pinned elsewhere", func(g *inventory.Guest,
			_ *topology.Topology) {
			g.Seen.Threads[0].Affinity = cpus("2")
		},
			[]string{"vCPU 0 may run on CPUs 2, not 0-1"}},
		{"divisible vCPUs, one of them bound to a node", func(g *inventory.Guest, _ *topology.Topology) {
			divide(g)
			g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("2-3"), cpus("0-3")
		}, nil},
		{"a divisible vCPU bound to a part of a node", func(g *inventory.Guest, _ *topology.Topology) {
			divide(g)
			g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("2"), cpus("0-3")
		}, []string{"vCPU 0 may run on CPUs 2, not 0-3"}},
		{"a divisible vCPU bound to another node", func(g *inventory.Guest, _ *topology.Topology) {
			divide(g)
			g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("4-5"), cpus("0-3")
		}, []string{"vCPU 0 may run on CPUs 4-5, not 0-3"}},
		{"a vCPU that is not divisible, bound to a node", func(g *inventory.Guest, _ *topology.Topology) {
			divide(g)
			g.Placement.Scale = nil
			g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("2-3"), cpus("0-3")
		}, []string{"vCPU 0 may run on CPUs 2-3, not 0-3"}},
		{"a vCPU pinned to fewer CPUs", func(g *inventory.Guest,
			_ *topology.Topology) {
			g.Seen.Threads[0].Affinity = cpus("0")
		},
			[]string{"vCPU 0 may run on CPUs 0, not 0-1"}},
		{"a vCPU not bound by intent", func(g *inventory.Guest, _ *topology.Topology) {
			g.Placement.CPUMode, g.Seen.Threads[0].Affinity = guest.CPUNone, cpus("0-5")
		}, nil},
		{"a CPU that is offline", func(g *inventory.Guest, t *topology.Topology) {
			t.CPUs = t.CPUs[1:]
			t.Nodes[0].CPUs = cpus("1")
			g.Seen.Threads[0].Affinity = cpus("1")
		}, nil},
		{"the emulator unpinned", func(g *inventory.Guest,
			_ *topology.Topology) {
			g.Seen.Threads[2].Affinity = cpus("0-5")
		},
			[]string{"emulator threads may run on CPUs 0-5, not 0-3"}},
		{"vhost workers on another node", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Threads = append(g.Seen.Threads, helper(inventory.RoleVhost, "4-5", "0-2,7"))
		}, []string{"vhost threads may run on CPUs 4-5, not 0-3"}},
		{"an I/O thread on another node",
			func(g *inventory.Guest, _ *topology.Topology) { g.Seen.Threads[3].Affinity = cpus("5") },
			[]string{"I/O threads may run on CPUs 5, not 0-3"}},
		{"cells exchanged", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[0].ByNode, g.Seen.Ranges[1].ByNode = g.Seen.Ranges[1].ByNode, g.Seen.Ranges[0].ByNode
		}, []string{"cell 0 has memory on nodes other than 0: node 1: 128 MiB", "cell 1 has memory on nodes other " +
			"than 1: node 0: 128 MiB"}},
		{"a little elsewhere", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[0].ByNode = byNode{0: 126 * mib, 1: 2 * mib}
		}, nil},
		{"more than a little", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[0].ByNode = byNode{0: 124 * mib, 1: 4 * mib}
		},
			[]string{"cell 0 has memory on nodes other than 0: node 0: 124 MiB, node 1: 4 MiB"}},
		{"memory spread over nodes, by cgroup", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 128 * mib, 2: 100 * mib}
		}, []string{"the VM has memory on nodes other than 0-1: node 0: 128 MiB, node 2: 100 MiB"}},
		{"the emulator's own heap elsewhere, by cgroup", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 128 * mib, 1: 128 * mib, 2: 20 * mib}
		}, nil},
		{"memory of a small guest does not count as the process's own", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 44 * mib, 2: 20 * mib}
		}, []string{"the VM has memory on nodes other than 0-1: node 0: 44 MiB, node 2: 20 MiB"}},
		{"memory without a binding", func(g *inventory.Guest, _ *topology.Topology) {
			g.Placement.MemoryMode = guest.MemoryNone
			g.Seen.Ranges = []inventory.MemoryRange{ram(0, "memfd", "default", byNode{2: 128 * mib})}
			g.Seen.Threads[0].Mems = nodes("0-2,7")
		}, nil},
		{"the limit allows all nodes", func(g *inventory.Guest,
			_ *topology.Topology) {
			g.Seen.Threads[2].Mems = nodes("0-2,7")
		},
			[]string{"the VM may take memory from nodes 0-2,7, not 0-1"}},
		{"the limit too narrow", func(g *inventory.Guest, _ *topology.Topology) {
			for i := range g.Seen.Threads {
				g.Seen.Threads[i].Mems = nodes("0")
			}
		}, []string{"the VM may take memory from nodes 0, not 0-1"}},
		{"each vCPU limited to its cell", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Threads[0].Mems, g.Seen.Threads[1].Mems = nodes("0"), nodes("1")
		}, nil},
		{"a memfd policy changed", func(g *inventory.Guest,
			_ *topology.Topology) {
			g.Seen.Ranges[1].Policy = "prefer:0"
		},
			[]string{"cell 1 has memory policy prefer:0, not prefer:1"}},
		{"huge pages of a memfd retain their policy, within the limit", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[1].Policy, g.Seen.Ranges[1].PageSize = "default", 2*mib
		}, nil},
		{"on one node the limit is enough", func(g *inventory.Guest, _ *topology.Topology) {
			p := g.Placement
			p.Nodes, p.Cells[1].Nodes, p.VCPUs[1].CPUs, p.Emulator, p.IOThread = nodes("0"), nodes("0"), cpus("0-1"), cpus("0-1"), cpus("0-1")
			g.Seen.Ranges[0].Policy, g.Seen.Ranges[1].Policy, g.Seen.Ranges[1].ByNode = "default", "default", byNode{0: 128 * mib}
			for i := range g.Seen.Threads {
				g.Seen.Threads[i].Affinity, g.Seen.Threads[i].Mems = cpus("0-1"), nodes("0")
			}
		}, nil},
		{"a split cell is reported once", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[1].Policy = "default"
			g.Seen.Ranges = append(g.Seen.Ranges, g.Seen.Ranges[1])
		}, []string{"cell 1 has memory policy default, not prefer:1"}},
		{"anonymous memory within the limit", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[1].Policy, g.Seen.Ranges[1].Backing = "bind:2", "anonymous"
		}, nil},
		{"anonymous memory is allocated outside", func(g *inventory.Guest, _ *topology.Topology) {
			g.Seen.Ranges[1].Policy, g.Seen.Ranges[1].Backing = "bind:2", "anonymous"
			g.Seen.Threads[0].Mems = nodes("0-2")
		}, []string{"the VM may take memory from nodes 0-2, not 0-1", "cell 1 has memory policy bind:2, not prefer:1"}},
		{"bound to the node is as good as preferring it",
			func(g *inventory.Guest, _ *topology.Topology) { g.Seen.Ranges[1].Policy = "bind:1" }, nil},
		{"flags of a policy do not matter",
			func(g *inventory.Guest, _ *topology.Topology) { g.Seen.Ranges[1].Policy = "prefer=static:1" }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, top := twoCells(), host()
			c.change(&g, top)
			var got []string
			for _, d := range drift.Of(g, top) {
				got = append(got, d.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOf_MemoryWithoutCellsMayBeOnAllNodesOfTheGuest(t *testing.T) {
	g := twoCells()
	g.Placement.Visible, g.Config.Cells = false, nil
	g.Seen.Ranges = []inventory.MemoryRange{ram(0, "memfd", "bind:0-1", byNode{0: 100 * mib, 1: 156 * mib})}
	if got := drift.Of(g, host()); len(got) > 0 {
		t.Errorf("differences %v", got)
	}
}

// Where the memory by node is that of the VM and of no process, each node must have that of its cells.
func TestOf_CellsByNode(t *testing.T) {
	for _, c := range []struct {
		name   string
		seen   byNode
		change func(p *guest.Placement)
		want   []string
		share  float64
	}{
		{"as intended", byNode{0: 128 * mib, 1: 128 * mib}, nil, nil, 1},
		{"with pages of the firmware", byNode{0: 132 * mib, 1: 128 * mib}, nil, nil, 1},
		{"not yet all of it", byNode{0: 128 * mib, 1: 28 * mib}, nil, nil, 1},
		{"both on one node", byNode{0: 256 * mib}, nil,
			[]string{"the cells have their memory on node 0: 256 MiB, not on node 0: 128 MiB, node 1: 128 MiB"}, 0.5},
		{"a part elsewhere", byNode{0: 128 * mib, 1: 64 * mib, 2: 64 * mib}, nil, []string{"the cells have their memory on " +
			"node 0: 128 MiB, node 1: 64 MiB, node 2: 64 MiB, not on node 0: 128 MiB, node 1: 128 MiB"}, 0.75},
		{"cells that the VM does not see", byNode{0: 256 * mib}, func(p *guest.Placement) { p.Visible = false }, nil, 1},
		{"two cells on one node", byNode{0: 256 * mib},
			func(p *guest.Placement) { p.Cells[1].Nodes = nodes("0") }, nil, 1},
		{"a cell on several nodes", byNode{0: 256 * mib},
			func(p *guest.Placement) { p.Cells[1].Nodes = nodes("0-1") }, nil, 1},
	} {
		g := twoCells()
		g.Can = inventory.CapabilitiesOf(guest.Xen)
		g.Seen.Ranges, g.Seen.MemoryByNode, g.Seen.Threads = nil, c.seen, g.Seen.Threads[:2]
		if c.change != nil {
			c.change(g.Placement)
		}
		var got []string
		for _, d := range drift.Of(g, host()) {
			got = append(got, d.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if share, _ := drift.OnIntended(g); share == nil || *share != c.share {
			t.Errorf("%s: share on intended nodes %v, want %v", c.name, share, c.share)
		}
	}
}

func TestDifferenceIsWrittenInSnakeCase(t *testing.T) {
	text, err := json.Marshal(drift.Difference{Kind: drift.VCPUAffinity, Object: "vCPU 0", Intended: "0-1", Seen: "2"})
	if want := `{"kind":"vcpu-affinity","object":"vCPU 0","intended":"0-1","seen":"2"}`; err != nil ||
		string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}

func TestOnIntended(t *testing.T) {
	for _, c := range []struct {
		name          string
		change        func(g *inventory.Guest)
		memory, vcpus string
	}{
		{"as intended", func(*inventory.Guest) {}, "1.00", "1.00"},
		{"no placement", func(g *inventory.Guest) { g.Placement = nil }, "unknown", "unknown"},
		{"half the vCPUs and a quarter of the memory on other nodes", func(g *inventory.Guest) {
			g.Seen.Threads[1].Affinity = cpus("2-4")
			g.Seen.Ranges[0].ByNode = byNode{0: 64 * mib, 1: 64 * mib}
		}, "0.75", "0.50"},
		{"by cgroup", func(g *inventory.Guest) { g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{1: 3, 2: 1} }, "0.75",
			"1.00"},
		{"no memory binding", func(g *inventory.Guest) { g.Placement.MemoryMode = guest.MemoryNone }, "unknown",
			"1.00"},
		{"no CPU binding", func(g *inventory.Guest) {
			g.Placement.CPUMode, g.Seen.Threads[0].Affinity = guest.CPUNone, cpus("4")
		}, "1.00", "1.00"},
		{"nothing seen", func(g *inventory.Guest) { g.Seen = inventory.Seen{} }, "unknown", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := twoCells()
			c.change(&g)
			memory, vcpus := drift.OnIntended(g)
			if text(memory) != c.memory || text(vcpus) != c.vcpus {
				t.Errorf("memory %s, vCPUs %s; want %s, %s", text(memory), text(vcpus), c.memory, c.vcpus)
			}
		})
	}
}

func text(share *float64) string {
	if share == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.2f", *share)
}

func TestLocalShare(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(g *inventory.Guest)
		want   string
	}{
		{"every cell on its node", func(*inventory.Guest) {}, "1.00"},
		{"cells exchanged", func(g *inventory.Guest) {
			g.Seen.Ranges[0].ByNode, g.Seen.Ranges[1].ByNode = g.Seen.Ranges[1].ByNode, g.Seen.Ranges[0].ByNode
		}, "0.00"},
		{"cells count by their memory", func(g *inventory.Guest) {
			g.Seen.Ranges[0].ByNode, g.Seen.Ranges[1].ByNode = byNode{0: 3 * mib}, byNode{0: mib}
		}, "0.75"},
		{"a vCPU on two nodes", func(g *inventory.Guest) { g.Seen.Threads[0].Affinity = cpus("0-3") }, "0.75"},
		{"CPUs count, not nodes", func(g *inventory.Guest) { g.Seen.Threads[0].Affinity = cpus("0-2") }, "0.83"},
		{"total of cells known: memory counts for the cell on its node", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil,
				byNode{0: 3, 1: 1}
		}, "1.00"},
		{"total of cells known: no cell has more than its size", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 192 * mib, 1: 64 * mib}
		}, "0.75"},
		{"total of cells known, greater than their sizes", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 512 * mib}
		}, "0.50"},
		{"total of cells known: an idle cell uses no memory of the other", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 128 * mib, 1: 128 * mib}
			g.Seen.Threads[0].RunTime, g.Seen.Threads[1].RunTime = 9*time.Second, time.Second
		}, "1.00"},
		{"total of cells known, one vCPU on both nodes", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{0: 128 * mib, 1: 128 * mib}
			g.Seen.Threads[0].Affinity = cpus("0-3")
		}, "0.75"},
		{"total of cells known, half of it on a third node", func(g *inventory.Guest) {
			g.Seen.Ranges, g.Seen.MemoryByNode = nil, byNode{1: 64 * mib, 2: 64 * mib}
		}, "0.50"},
		{"one piece of memory, used by all", func(g *inventory.Guest) {
			g.Config.Cells, g.Seen.Ranges, g.Seen.MemoryByNode = nil, nil, byNode{0: 1, 1: 1}
		}, "0.50"},
		{"a vCPU that runs more counts more", func(g *inventory.Guest) {
			g.Config.Cells, g.Seen.Ranges, g.Seen.MemoryByNode = nil, nil, byNode{0: 1}
			g.Seen.Threads[0].RunTime, g.Seen.Threads[1].RunTime = 3*time.Second, time.Second
		}, "0.75"},
		{"memory on a node without CPUs is remote", func(g *inventory.Guest) {
			g.Config.Cells, g.Seen.Ranges, g.Seen.MemoryByNode = nil, nil, byNode{7: 1}
		}, "0.00"},
		{"no memory seen", func(g *inventory.Guest) { g.Seen.Ranges, g.Seen.MemoryByNode = nil, nil }, "unknown"},
		{"no vCPU seen", func(g *inventory.Guest) { g.Seen.Threads = g.Seen.Threads[2:] }, "unknown"},
		{"an unmanaged guest", func(g *inventory.Guest) { g.Placement = nil }, "1.00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := twoCells()
			c.change(&g)
			if got := text(drift.LocalShare(g, host())); got != c.want {
				t.Errorf("local share %s, want %s", got, c.want)
			}
		})
	}
}
