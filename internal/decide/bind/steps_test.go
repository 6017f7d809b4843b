package bind_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	kib = topology.KiB
	mib = topology.MiB
)

// settled returns a guest that matches its placement on node 2.
func settled() bind.Request {
	want := onNode(2, guest.MemoryStrict)
	g := seenOn(&inventory.NUMATune{Mode: "strict", Nodes: nodes("2")}, "2", "bind:2", "anonymous")
	g.Placement = &want
	g.Config.Pins = map[guest.VCPUID]topology.CPUSet{0: cpus("4-5")}
	g.Config.EmulatorPin = cpus("4-5")
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity = cpus("4-5")
	}
	g.Seen.Ranges[0].ByNode = placed(2, 128*mib)
	return bind.Request{Guest: g, Topology: square(), Placement: want}
}

// bindCase changes one property of a settled guest. Steps are the steps that this
// requires, without the record of intent at their start.
type bindCase struct {
	name   string
	change func(*bind.Request)
	steps  []string
}

func want(steps ...string) []string { return steps }

func checkSteps(t *testing.T, cases []bindCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := settled()
			c.change(&r)
			var got []string
			for _, s := range bind.Steps(r).Steps {
				if s.Kind != plan.Record {
					got = append(got, s.String())
				}
			}
			if diff := cmp.Diff(c.steps, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSteps_VCPUs(t *testing.T) {
	checkSteps(t, []bindCase{
		{"settled", func(*bind.Request) {}, nil},
		{"pinned elsewhere", func(r *bind.Request) { r.Guest.Config.Pins[0] = cpus("4") },
			want("pin-vcpu 0 to CPUs 4-5")},
		{"not pinned", func(r *bind.Request) { r.Guest.Config.Pins = nil }, want("pin-vcpu 0 to CPUs 4-5")},
		{"thread runs elsewhere",
			func(r *bind.Request) { r.Guest.Seen.Threads[1].Affinity = cpus("0-7") },
			want("pin-vcpu 0 to CPUs 4-5")},
		{"thread is not seen",
			func(r *bind.Request) { r.Guest.Seen.Threads = r.Guest.Seen.Threads[:1] },
			want("pin-vcpu 0 to CPUs 4-5")},
		{"unbound as wanted", func(r *bind.Request) {
			r.Placement.VCPUs[0].CPUs, r.Guest.Config.Pins = topology.CPUSet{}, nil
			r.Guest.Seen.Threads[1].Affinity = cpus("0-7")
		}, nil},
		{"pinned, unbound wanted",
			func(r *bind.Request) { r.Placement.VCPUs[0].CPUs = topology.CPUSet{} },
			want("pin-vcpu 0 to CPUs 0-7")},
		{"one of two vCPUs runs elsewhere", func(r *bind.Request) {
			r.Placement.VCPUs = append(r.Placement.VCPUs, guest.VCPU{ID: 1, CPUs: cpus("4-5")})
			r.Guest.Config.Pins[1] = cpus("4-5")
			r.Guest.Seen.Threads = append(
				r.Guest.Seen.Threads,
				inventory.Thread{
					TID:      9,
					Name:     "CPU 1/KVM",
					Role:     inventory.RoleVCPU,
					VCPU:     ptr(guest.VCPUID(1)),
					Affinity: cpus("4"),
					Mems:     nodes("2"),
				},
			)
		}, want("pin-vcpu 1 to CPUs 4-5")},
	})
}

func TestSteps_HelperThreads(t *testing.T) {
	thread := func(role inventory.ThreadRole, affinity string) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Guest.Seen.Threads = append(r.Guest.Seen.Threads,
				inventory.Thread{TID: 20, Name: string(role), Role: role, Affinity: cpus(affinity), Mems: nodes("2")})
		}
	}
	ioThreads := func(pins map[int]topology.CPUSet) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Placement.IOThreads, r.Placement.IOThread = 2, cpus("5")
			r.Guest.Config.IOThreadPins = pins
		}
	}
	checkSteps(t, []bindCase{
		{"emulator pinned elsewhere",
			func(r *bind.Request) { r.Guest.Config.EmulatorPin = cpus("4") },
			want("pin-emulator to CPUs 4-5")},
		{"emulator not pinned",
			func(r *bind.Request) { r.Guest.Config.EmulatorPin = topology.CPUSet{} },
			want("pin-emulator to CPUs 4-5")},
		{"emulator thread runs elsewhere",
			func(r *bind.Request) { r.Guest.Seen.Threads[0].Affinity = cpus("4,6") },
			want("pin-emulator to CPUs 4-5")},
		{"emulator thread on a part of its CPUs",
			func(r *bind.Request) { r.Guest.Seen.Threads[0].Affinity = cpus("4") },
			nil},
		{"emulator unbound as wanted", func(r *bind.Request) {
			r.Placement.Emulator, r.Guest.Config.EmulatorPin = topology.CPUSet{}, topology.CPUSet{}
			r.Guest.Seen.Threads[0].Affinity = cpus("0-7")
		}, nil},
		{"I/O threads not pinned", ioThreads(nil), want("pin-io-thread 1 to CPUs 5", "pin-io-thread 2 to CPUs 5")},
		{"one I/O thread pinned elsewhere",
			ioThreads(map[int]topology.CPUSet{1: cpus("5"), 2: cpus("4")}),
			want("pin-io-thread 2 to CPUs 5")},
		{"I/O threads pinned as wanted", ioThreads(map[int]topology.CPUSet{1: cpus("5"), 2: cpus("5")}), nil},
		{"vhost worker elsewhere", thread(inventory.RoleVhost, "0-7"), want("set-affinity of thread 20 to CPUs 4-5")},
		{"vhost worker in place", thread(inventory.RoleVhost, "4-5"), nil},
		{"other threads are left to libvirt", thread(inventory.RoleOther, "0-7"), nil},
	})
}

// Of a guest without a process on this host, only vCPUs are pinned. Memory that its hypervisor does not move is
// reported.
func TestSteps_MemoryThatDoesNotMove(t *testing.T) {
	g := inventory.Guest{Name: "g", Hypervisor: guest.Xen, Can: inventory.CapabilitiesOf(guest.Xen), State: "running",
		Config: inventory.Config{VCPUs: 1, Memory: 128 * topology.MiB},
		Seen: inventory.Seen{MemoryByNode: placed(2, 128*topology.MiB), Threads: []inventory.Thread{
			{Role: inventory.RoleVCPU, VCPU: ptr(guest.VCPUID(0)), Affinity: cpus("0-7")}}}}
	p := bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: onNode(2, guest.MemoryStrict)})
	if got := kinds(p); got != "record-intent pin-vcpu" || len(p.Cannot) > 0 {
		t.Errorf("on the nodes of its memory: %s, cannot %v", got, p.Cannot)
	}
	p = bind.Steps(bind.Request{Guest: g, Topology: square(), Placement: onNode(1, guest.MemoryStrict)})
	if got := kinds(p); got != "record-intent pin-vcpu" || len(p.Cannot) != 1 {
		t.Errorf("on another node: %s, cannot %v; want the memory to be reported", got, p.Cannot)
	}
	again := bind.Request{Guest: g, Topology: square(), Placement: onNode(1, guest.MemoryStrict), Recreate: true,
		Definition: []byte("name = 'g'")}
	p = bind.Steps(again)
	if got := kinds(p); got != "record-intent recreate" || len(p.Cannot) > 0 || len(p.Steps[1].Definition) == 0 {
		t.Errorf("to be made again: %s, cannot %v", got, p.Cannot)
	}
	again.Placement = onNode(2, guest.MemoryStrict)
	if got := kinds(bind.Steps(again)); got != "record-intent pin-vcpu" {
		t.Errorf("with its memory in place it needs not be made again: %s", got)
	}
}

// If libvirt does not run the process, each thread is set separately.
func TestSteps_PlainProcess(t *testing.T) {
	plain := func(change func(*bind.Request)) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Guest.Hypervisor, r.Guest.Can = guest.PlainQEMU, inventory.CapabilitiesOf(guest.PlainQEMU)
			r.Guest.Config, r.Persistent = inventory.Config{VCPUs: 2}, true
			r.Placement.VCPUs = append(r.Placement.VCPUs, guest.VCPU{ID: 1, CPUs: cpus("5")})
			r.Placement.Emulator, r.Placement.IOThread = cpus("4"), cpus("5")
			r.Guest.Seen.Threads = []inventory.Thread{
				{TID: 7, Name: "qemu", Role: inventory.RoleEmulator, Affinity: cpus("4")},
				{
					TID:      8,
					Name:     "CPU 0/KVM",
					Role:     inventory.RoleVCPU,
					VCPU:     ptr(guest.VCPUID(0)),
					Affinity: cpus("4-5"),
				},
				{TID: 9, Name: "CPU 1/KVM", Role: inventory.RoleVCPU, VCPU: ptr(guest.VCPUID(1)), Affinity: cpus("5")},
				{TID: 10, Name: "worker", Role: inventory.RoleOther, Affinity: cpus("4")},
				{TID: 11, Name: "IO iothread1", Role: inventory.RoleIOThread, Affinity: cpus("5")},
				{TID: 12, Name: "vhost-7", Role: inventory.RoleVhost, Affinity: cpus("4")},
			}
			for i := range r.Guest.Seen.Threads {
				r.Guest.Seen.Threads[i].Mems = nodes("2")
			}
			change(r)
		}
	}
	elsewhere := func(i int) func(*bind.Request) {
		return plain(func(r *bind.Request) { r.Guest.Seen.Threads[i].Affinity = cpus("0-7") })
	}
	checkSteps(t, []bindCase{
		{"settled", plain(func(*bind.Request) {}), nil},
		{"emulator elsewhere", elsewhere(0), want("set-affinity of thread 7 to CPUs 4")},
		{"first vCPU elsewhere", elsewhere(1), want("set-affinity of thread 8 to CPUs 4-5")},
		{"second vCPU elsewhere", elsewhere(2), want("set-affinity of thread 9 to CPUs 5")},
		{"worker elsewhere", elsewhere(3), want("set-affinity of thread 10 to CPUs 4")},
		{"I/O thread elsewhere", elsewhere(4), want("set-affinity of thread 11 to CPUs 5")},
		{"vhost worker elsewhere", elsewhere(5), want("set-affinity of thread 12 to CPUs 4")},
	})
}

func TestSteps_IntentAndNextStart(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*bind.Request)
		want   string
	}{
		{"settled", func(*bind.Request) {}, ""},
		{"settled, with a stored configuration", func(r *bind.Request) { r.Persistent = true }, ""},
		{"interrupted before", func(r *bind.Request) { r.Interrupted = true }, "record-intent"},
		{"interrupted before, with a stored configuration", func(r *bind.Request) {
			r.Interrupted, r.Persistent = true,
				true
		},
			"record-intent write-configuration"},
		{"no intent yet", func(r *bind.Request) { r.Guest.Placement = nil }, "record-intent"},
		{"intent on other nodes", func(r *bind.Request) { r.Guest.Placement.Nodes = nodes("1") }, "record-intent"},
		{"intent of another memory mode",
			func(r *bind.Request) { r.Guest.Placement.MemoryMode = guest.MemoryPreferred }, "record-intent"},
		{"intent of another CPU mode", func(r *bind.Request) { r.Guest.Placement.CPUMode = guest.CPUExclusive },
			"record-intent"},
		{"a step and a stored configuration", func(r *bind.Request) {
			r.Persistent = true
			r.Guest.Config.EmulatorPin = topology.CPUSet{}
		}, "record-intent pin-emulator write-configuration"},
	} {
		r := settled()
		intent := *r.Guest.Placement
		r.Guest.Placement = &intent
		c.change(&r)
		if got := kinds(bind.Steps(r)); got != c.want {
			t.Errorf("%s: steps %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSteps_Memory(t *testing.T) {
	memory := func(set func(*inventory.MemoryRange)) func(*bind.Request) {
		return func(r *bind.Request) { set(&r.Guest.Seen.Ranges[0]) }
	}
	own := func(bytes topology.Bytes) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Guest.Seen.Ranges = append(r.Guest.Seen.Ranges,
				inventory.MemoryRange{Address: 0x5000, Size: 2 * mib, PageSize: 4 * kib, ByNode: placed(1, bytes)})
		}
	}
	interleaved := func(on0, on1, on3 topology.Bytes) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Placement.MemoryMode, r.Placement.Nodes = guest.MemoryInterleave, nodes("0-1")
			r.Placement.Cells[0].Nodes = nodes("0-1")
			r.Guest.Config.NUMATune = &inventory.NUMATune{Mode: "interleave", Nodes: nodes("0-1")}
			for i := range r.Guest.Seen.Threads {
				r.Guest.Seen.Threads[i].Mems = nodes("0-1")
			}
			r.Guest.Seen.Ranges[0].Policy = "interleave:0-1"
			r.Guest.Seen.Ranges[0].ByNode = topology.MemoryByNode{0: on0, 1: on1, 3: on3}
		}
	}
	// Half of 100 MiB, a fiftieth of that and a page.
	const half, tolerated = 50 * mib, 51*mib + 4*kib
	checkSteps(t, []bindCase{
		{"on the wrong node",
			memory(func(m *inventory.MemoryRange) { m.ByNode = placed(1, 128*mib) }),
			want("move-memory: 128 MiB at 0x1000 to nodes 2")},
		{"a part on the wrong node", memory(func(m *inventory.MemoryRange) {
			m.ByNode = topology.MemoryByNode{1: 8 * kib, 2: 128*mib - 8*kib}
		}), want("move-memory: 8 KiB at 0x1000 to nodes 2")},
		{"the process's own memory elsewhere", own(mib + 4*kib),
			want("move-own-memory: 1.0 MiB in 1 mappings to nodes 2")},
		{"little of the process's own memory elsewhere", own(mib), nil},
		{"interleaved evenly", interleaved(half, half, 0), nil},
		{"interleaved within the tolerance", interleaved(tolerated, 100*mib-tolerated, 0), nil},
		{"interleaved beyond the tolerance",
			interleaved(tolerated+4*kib, 100*mib-tolerated-4*kib, 0),
			want("move-memory: 1.0 MiB at 0x1000 to nodes 0-1")},
		{"interleaved and outside",
			interleaved(40*mib, 40*mib, 20*mib),
			want("move-memory: 20 MiB at 0x1000 to nodes 0-1")},
		{"two nodes, not interleaved", func(r *bind.Request) {
			interleaved(100*mib, 0, 0)(r)
			r.Placement.MemoryMode, r.Guest.Seen.Ranges[0].Policy = guest.MemoryStrict, "bind:0-1"
		}, nil},
		{"memfd with the wrong policy",
			memory(func(m *inventory.MemoryRange) { m.Backing, m.Policy = "memfd", "default" }),
			want("set-policy of 128 MiB at 0x1000: strict on nodes 2")},
		{"memfd with the right policy", memory(func(m *inventory.MemoryRange) { m.Backing = "memfd" }), nil},
		{"memfd of 64 KiB pages with the wrong policy", memory(func(m *inventory.MemoryRange) {
			m.Backing, m.Policy, m.PageSize = "memfd", "default", 64*kib
		}), want("set-policy of 128 MiB at 0x1000: strict on nodes 2")},
		{"memfd of huge pages takes no policy", memory(func(m *inventory.MemoryRange) {
			m.Backing, m.Policy, m.PageSize = "memfd", "default", 2*mib
		}), nil},
		{"nodes not allowed", func(r *bind.Request) {
			for i := range r.Guest.Seen.Threads {
				r.Guest.Seen.Threads[i].Mems = nodes("0")
			}
		}, want("allow-nodes 0,2", "hold-to-nodes 2")},
		{"allowed nodes not known", func(r *bind.Request) {
			for i := range r.Guest.Seen.Threads {
				r.Guest.Seen.Threads[i].Mems = topology.NodeSet{}
			}
		}, want("hold-to-nodes 2")},
		{"restrictive in place", func(r *bind.Request) { r.Guest.Config.NUMATune.Mode = "restrictive" }, nil},
		{"restrictive to other nodes", func(r *bind.Request) {
			r.Guest.Config.NUMATune = &inventory.NUMATune{Mode: "restrictive", Nodes: nodes("2-3")}
		}, want("numatune-live: mode restrictive, nodes 2")},
		{"restrictive, threads allowed more", func(r *bind.Request) {
			r.Guest.Config.NUMATune.Mode = "restrictive"
			r.Guest.Seen.Threads[0].Mems = nodes("1-2")
		}, want("numatune-live: mode restrictive, nodes 2")},
		{"numatune of cells only, threads allowed more", func(r *bind.Request) {
			r.Guest.Config.NUMATune = &inventory.NUMATune{
				Cells: []inventory.CellTune{{Mode: "strict", Nodes: nodes("2")}},
			}
			r.Guest.Seen.Threads[0].Mems = nodes("1-2")
		}, want("hold-to-nodes 2")},
		{"numatune without a mode, threads allowed more", func(r *bind.Request) {
			r.Guest.Config.NUMATune = &inventory.NUMATune{Nodes: nodes("2")}
			r.Guest.Seen.Threads[0].Mems = nodes("1-2")
		}, want("numatune-live: mode restrictive, nodes 2")},
		{"not restricted",
			func(r *bind.Request) { r.Guest.Config.NUMATune = nil },
			want("numatune-live: mode restrictive, nodes 2")},
	})
}

func TestSteps_PoolOfGiantPages(t *testing.T) {
	giant := func(page topology.Bytes, misplaced topology.Bytes, free uint64) func(*bind.Request) {
		return func(r *bind.Request) {
			r.Topology.Nodes[2].HugePages = []topology.HugePagePool{{Size: 2 * mib, Total: 9, Free: 9},
				{Size: page, Total: free, Free: free}}
			r.Guest.Seen.Ranges[0].PageSize, r.Guest.Seen.Ranges[0].Backing = page, "hugetlbfs"
			r.Guest.Seen.Ranges[0].ByNode = topology.MemoryByNode{0: misplaced, 2: page}
		}
	}
	checkSteps(t, []bindCase{
		{"free pages", giant(topology.GiB, 3*topology.GiB, 3), want("move-memory: 3 GiB at 0x1000 to nodes 2")},
		{"two pages are missing",
			giant(topology.GiB, 3*topology.GiB, 1),
			want("grow-huge-page-pool: 2 pages of 1 GiB on node 2", "move-memory: 3 GiB at 0x1000 to nodes 2")},
		{"memory in place", giant(topology.GiB, 0, 0), nil},
		{"smaller huge pages are left to the kernel",
			giant(512*mib, 3*topology.GiB, 0),
			want("move-memory: 3 GiB at 0x1000 to nodes 2")},
		{"two mappings", func(r *bind.Request) {
			giant(topology.GiB, 3*topology.GiB, 1)(r)
			r.Guest.Seen.Ranges = append(r.Guest.Seen.Ranges, r.Guest.Seen.Ranges[0])
		}, want("grow-huge-page-pool: 5 pages of 1 GiB on node 2", "move-memory: 3 GiB at 0x1000 to nodes 2",
			"move-memory: 3 GiB at 0x1000 to nodes 2")},
		{"memory pinned by a device", func(r *bind.Request) {
			giant(topology.GiB, 3*topology.GiB, 0)(r)
			r.Guest.Config.Devices = []string{"0000:3b:00.0"}
		}, nil},
	})
}

func TestSteps_MoveNamesTheNodes(t *testing.T) {
	r := settled()
	r.Guest.Seen.Ranges[0].ByNode = topology.MemoryByNode{3: mib, 0: 2 * mib, 1: 3 * mib}
	for _, s := range bind.Steps(r).Steps {
		if s.Kind == plan.MoveRange {
			if want := "node 0: 2 MiB node 1: 3 MiB node 3: 1 MiB"; !strings.Contains(s.Why, want) {
				t.Errorf("reason %q, want it to contain %q", s.Why, want)
			}
			return
		}
	}
	t.Error("nothing moves")
}

// Policies follow cpuset writes by ordinal. The plan reports each policy that does not end as intended.
func TestSteps_PoliciesThatStay(t *testing.T) {
	// A guest of two cells moves from nodes 0 and 1 to nodes 2 and 3.
	two := func(mode guest.MemoryMode, tune, backing string, page topology.Bytes, policies ...string) bind.Request {
		g := seenOn(&inventory.NUMATune{Mode: tune, Nodes: nodes("0-1")}, "0-1", policies[0], backing)
		g.Seen.Ranges[0].PageSize = page
		second := g.Seen.Ranges[0]
		second.Address, second.Cell, second.Policy = 0x9000000, ptr(guest.CellID(1)), policies[1]
		g.Seen.Ranges = append(g.Seen.Ranges, second)
		want := onNode(2, mode)
		want.Nodes = nodes("2-3")
		want.Cells = append(want.Cells, guest.Cell{ID: 1, Memory: 128 * mib, Nodes: nodes("3")})
		return bind.Request{Guest: g, Topology: square(), Placement: want}
	}
	both := func(r bind.Request) bind.Request {
		for i := range r.Placement.Cells {
			r.Placement.Cells[i].Nodes = nodes("2-3")
		}
		return r
	}
	for _, c := range []struct {
		name    string
		request bind.Request
		stay    []string // policies that refusals name
	}{
		{"bind follows", two(guest.MemoryStrict, "strict", "anonymous", 4*kib, "bind:0", "bind:1"), nil},
		{"bind of swapped cells",
			two(guest.MemoryStrict, "strict", "anonymous", 4*kib, "bind:1", "bind:0"),
			[]string{"bind:3", "bind:2"}},
		{"bind of all nodes follows",
			both(two(guest.MemoryStrict, "strict", "anonymous", 4*kib, "bind:0-1", "bind:0-1")),
			nil},
		{"bind of one node for cells of two",
			both(two(guest.MemoryStrict, "strict", "anonymous", 4*kib, "bind:0", "bind:0-1")),
			[]string{"bind:2"}},
		{"prefer stays",
			two(guest.MemoryPreferred, "preferred", "anonymous", 4*kib, "prefer:0", "prefer:1"),
			[]string{"prefer:0", "prefer:1"}},
		{"interleave follows",
			both(two(guest.MemoryInterleave, "interleave", "anonymous", 4*kib, "interleave:0-1", "weighted "+
				"interleave:0-1")),
			nil},
		{"default stays", two(guest.MemoryStrict, "strict", "anonymous", 4*kib, "default", "bind:1"),
			[]string{"default"}},
		{"memfd is changed from outside", two(guest.MemoryStrict, "strict", "memfd", 64*kib, "bind:1", "bind:0"), nil},
		{"memfd of huge pages is not",
			two(guest.MemoryStrict, "strict", "memfd", 2*mib, "bind:1", "bind:0"),
			[]string{"bind:3", "bind:2"}},
		{"restrictive leaves no policy",
			two(guest.MemoryRestrictive, "restrictive", "anonymous", 4*kib, "default", "default"),
			nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			refusals := bind.Steps(c.request).Cannot
			if len(refusals) != len(c.stay) {
				t.Fatalf("%d refusals, want %d: %v", len(refusals), len(c.stay), refusals)
			}
			for i, policy := range c.stay {
				if want := `"` + policy + `"`; !strings.Contains(refusals[i].Why, want) {
					t.Errorf("refusal %q, want it to name the policy %s", refusals[i].Why, want)
				}
			}
		})
	}
}

func TestSteps_PoliciesOfAGuestInPlace(t *testing.T) {
	r := settled()
	r.Guest.Config.NUMATune = &inventory.NUMATune{Mode: "restrictive", Nodes: nodes("2-3")}
	r.Placement.Nodes, r.Placement.MemoryMode = nodes("2-3"), guest.MemoryStrict
	r.Guest.Seen.Ranges[0].Policy = "default"
	for i := range r.Guest.Seen.Threads {
		r.Guest.Seen.Threads[i].Mems = nodes("2-3")
	}
	if got := bind.Steps(r).Cannot; len(got) != 1 {
		t.Errorf("refusals %v, want one: the policy is not strict", got)
	}
}

func TestSteps_GuestViewOfDistances(t *testing.T) {
	for _, c := range []struct {
		name string
		seen map[guest.CellID]int
		want int
	}{
		{"as at boot", map[guest.CellID]int{0: 10, 1: 21}, 0},
		{"another distance", map[guest.CellID]int{0: 10, 1: 31}, 1},
		{"a distance that the guest was not shown", map[guest.CellID]int{0: 10}, 0},
	} {
		r := settled()
		r.Placement.Cells[0].Distances = []int{10, 21}
		r.Guest.Config.Cells = []inventory.ConfigCell{
			{ID: 1, Distances: map[guest.CellID]int{0: 99, 1: 99}}, // of another cell
			{ID: 0, Distances: c.seen},
		}
		if got := bind.Steps(r).Cannot; len(got) != c.want {
			t.Errorf("%s: refusals %v, want %d", c.name, got, c.want)
		}
	}
}

func TestPolicyIs(t *testing.T) {
	for _, c := range []struct {
		policy string
		mode   guest.MemoryMode
		nodes  string
		want   bool
	}{
		{"bind:0-1", guest.MemoryStrict, "0-1", true},
		{"bind:0", guest.MemoryStrict, "0-1", false},
		{"prefer:0", guest.MemoryStrict, "0", false},
		{"prefer:0", guest.MemoryPreferred, "0", true},
		{"prefer:0", guest.MemoryPreferred, "1", false},
		{"prefer (many):0-1", guest.MemoryPreferred, "0-1", true},
		{"bind:0", guest.MemoryPreferred, "0", true},
		{"bind:0", guest.MemoryPreferred, "1", false},
		{"interleave:0", guest.MemoryPreferred, "0", false},
		{"interleave:0-1", guest.MemoryInterleave, "0-1", true},
		{"weighted interleave:0-1", guest.MemoryInterleave, "0-1", true},
		{"interleave:0", guest.MemoryInterleave, "0-1", false},
		{"bind:0-1", guest.MemoryInterleave, "0-1", false},
		{"default", guest.MemoryNone, "", true},
		{"local", guest.MemoryRestrictive, "0", true},
		{"bind:0", guest.MemoryRestrictive, "0", false},
	} {
		if got := bind.PolicyIs(c.policy, c.mode, nodes(c.nodes)); got != c.want {
			t.Errorf("PolicyIs(%q, %s, %q) = %v, want %v", c.policy, c.mode, c.nodes, got, c.want)
		}
	}
}

func TestRebind_EmptySets(t *testing.T) {
	for _, c := range []struct{ name, policy, old, fresh, want string }{
		{"no new nodes: unchanged", "0-1", "0-3", "", "0-1"},
		{"no policy: all new nodes", "", "0-1", "2-3", "2-3"},
		{"node outside the old set: unchanged", "5", "0-1", "2-3", "5"},
	} {
		if got := bind.Rebind(nodes(c.policy), nodes(c.old), nodes(c.fresh)); got.String() != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSplitPolicy_UnreadableNodes(t *testing.T) {
	if mode, set := bind.SplitPolicy("bind:x"); mode != "bind" || !set.IsEmpty() {
		t.Errorf("mode %q, nodes %q", mode, set)
	}
}
