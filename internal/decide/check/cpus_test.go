package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func vcpu0(set string) func(*situation) {
	return func(s *situation) { s.placed.VCPUs[0].CPUs = cpus(set) }
}

func unbind(s *situation) {
	s.placed.CPUMode = guest.CPUNone
	for i := range s.placed.VCPUs {
		s.placed.VCPUs[i].CPUs = topology.CPUSet{}
	}
}

func TestPlacement_CPUs(t *testing.T) {
	checkRules(t, []ruleCase{
		{"housekeeping CPU", shared, vcpu0("0-5"), want("cpus vCPU 0")},
		{"housekeeping CPU of the policy", shared,
			func(s *situation) { s.policy.Housekeeping = cpus("1") },
			want("cpus vCPU 0", "cpus vCPU 1", "cpus emulator")},
		{"offline CPU", shared, vcpu0("1-5,99"), want("cpus vCPU 0")},
		{"CPU of another node", shared, vcpu0("1-5,8"), want("cpus vCPU 0")},
		{"exclusive CPU of another guest", shared, vcpu0("1-6"), want("exclusive vCPU 0")},
		{"no CPU", shared, vcpu0(""), want("cpus vCPU 0")},
		{"all CPUs within the limits", shared, func(s *situation) { s.spec.Limits.CPUs = cpus("1-5,8-15") }, nil},
		{"CPU outside the limits", shared,
			func(s *situation) { s.spec.Limits.CPUs = cpus("2-15") },
			want("cpus vCPU 0", "cpus vCPU 1", "cpus emulator")},
		{"not bound", shared, unbind, nil},
		{"bound against the request", shared,
			func(s *situation) { s.placed.CPUMode = guest.CPUNone },
			want("cpus vCPU 0", "cpus vCPU 1", "cpus vCPU 2", "cpus vCPU 3")},
		{"CPU-only node lends its CPUs", shared, lendCPUs, nil},
		{"CPU-only node outside limits.nodes", shared, func(s *situation) {
			lendCPUs(s)
			s.spec.Limits.Nodes = nodes("0-1")
		}, want("cpus vCPU 2", "cpus vCPU 3")},
		{"CPU-only node within limits.nodes", shared, func(s *situation) {
			lendCPUs(s)
			s.spec.Limits.Nodes = nodes("0-1,3")
		}, nil},
		{"memory-only node takes CPUs of another", shared, func(s *situation) {
			s.placed.Nodes, s.placed.Cells[1].Nodes = nodes("0,2"), nodes("2")
			s.placed.Reservations[1].VCPUs = 0
			s.placed.Reservations[0].VCPUs = 4
			s.placed.Reservations[1].Node = 2
			s.placed.VCPUs[2].CPUs, s.placed.VCPUs[3].CPUs = cpus("1-5"), cpus("1-5")
			s.placed.Emulator, s.placed.IOThread = cpus("1-5"), cpus("1-5")
			s.spec.Limits.Nodes = nodes("0,2")
		}, nil},
		{"interleaved memory lets vCPUs use all nodes", shared, interleave, nil},
	})
}

// Node 0 has five usable CPUs: CPU 0 is for housekeeping, guest old has 6 and 7.
func TestPlacement_EnoughCPUs(t *testing.T) {
	wide := func(vcpus0 int, change func(*situation)) func(*situation) {
		return func(s *situation) {
			s.placed.Reservations[0].VCPUs, s.placed.Reservations[1].VCPUs = vcpus0, 4-vcpus0
			s.policy.Overcommit = 64
			change(s)
		}
	}
	limit := func(set string) func(*situation) {
		return func(s *situation) {
			s.spec.Limits.CPUs = cpus(set)
			for i := range 2 {
				s.placed.VCPUs[i].CPUs = s.placed.VCPUs[i].CPUs.Intersect(cpus(set))
			}
			s.placed.Emulator = cpus("8-15")
		}
	}
	helper := func(s *situation) {
		s.spec.CPU.Emulator = guest.HelperExclusive
		s.placed.Reservations[0].Exclusive = cpus("3")
		limit("1-3,8-15")(s)
		s.placed.Emulator = cpus("3")
		s.placed.VCPUs[0].CPUs, s.placed.VCPUs[1].CPUs = cpus("1-2"), cpus("1-2")
	}
	checkRules(t, []ruleCase{
		{"a CPU for each vCPU within the limits", shared, wide(3, limit("1-3,8-15")), nil},
		{"more vCPUs than CPUs within the limits", shared, wide(4, limit("1-3,8-15")), want("cpus node 0")},
		{"a CPU for each vCPU without the emulator's", shared, wide(2, helper), nil},
		{"more vCPUs than CPUs without the emulator's", shared, wide(3, helper), want("cpus node 0")},
		{"a CPU for each vCPU of the node", shared, wide(4, func(s *situation) {
			s.policy.Housekeeping = cpus("5")
			s.placed.VCPUs[0].CPUs, s.placed.VCPUs[1].CPUs = cpus("1-4"), cpus("1-4")
			s.placed.Emulator = cpus("1-4")
		}), nil},
		{"more vCPUs than CPUs of the node", shared, wide(4, func(s *situation) {
			s.policy.Housekeeping = cpus("4-5")
			s.placed.VCPUs[0].CPUs, s.placed.VCPUs[1].CPUs = cpus("1-3"), cpus("1-3")
			s.placed.Emulator = cpus("1-3")
		}), want("cpus node 0")},
		{"exclusive vCPUs use the guest's own CPUs", alone,
			func(s *situation) { s.policy.Housekeeping = cpus("13-15") },
			nil},
	})
}

func TestPlacement_ExclusiveCPUs(t *testing.T) {
	pinned := func(set string) func(*situation) {
		return func(s *situation) {
			s.host.Guests = append(s.host.Guests, inventory.Guest{Name: "wild", Config: inventory.Config{
				VCPUs: 1, Memory: gib, Pins: map[guest.VCPUID]topology.CPUSet{0: cpus(set)},
			}})
		}
	}
	checkRules(t, []ruleCase{
		{"reserved CPU of another guest", alone,
			func(s *situation) { s.placed.Reservations[0].Exclusive = cpus("6,8-12") },
			want("exclusive guest", "reservations node 1")},
		{"CPU with a vCPU of another guest pinned to it", alone, pinned("9"), want("exclusive guest")},
		{"CPU of a wider pin of another guest", alone, pinned("9-10"), nil},
		{"housekeeping CPU", alone, func(s *situation) { s.policy.Housekeeping = cpus("9") }, want("exclusive guest")},
		{"vCPU with two CPUs", alone, vcpu0("8-9"), want("exclusive vCPU 0", "smt vCPU 0")},
		{"vCPU without a CPU", alone, vcpu0(""), want("cpus vCPU 0", "exclusive vCPU 0")},
		{"vCPU on an offline CPU", alone, vcpu0("99"), want("cpus vCPU 0", "exclusive vCPU 0")},
		{"CPU of two vCPUs", alone, func(s *situation) { s.placed.VCPUs[1].CPUs = cpus("8") },
			want("exclusive vCPU 1")},
		{"CPU not reserved", alone,
			func(s *situation) { s.placed.VCPUs[1].CPUs = cpus("14") },
			want("exclusive vCPU 1", "smt vCPU 1")},
		{"shared vCPUs on the CPU of an exclusive emulator", shared, func(s *situation) {
			s.spec.CPU.Emulator, s.placed.Emulator = guest.HelperExclusive, cpus("5")
			s.placed.Reservations[0].Exclusive = cpus("5")
			s.placed.VCPUs[0].CPUs, s.placed.VCPUs[1].CPUs = cpus("1-4"), cpus("1-4")
		}, nil},
		{"shared vCPU on the emulator's exclusive CPU", shared, func(s *situation) {
			s.spec.CPU.Emulator, s.placed.Emulator = guest.HelperExclusive, cpus("5")
			s.placed.Reservations[0].Exclusive = cpus("5")
			s.placed.VCPUs[0].CPUs = cpus("1-4")
		}, want("exclusive vCPU 1", "helpers emulator")},
	})
}

func TestPlacement_SMT(t *testing.T) {
	onCores := func(ids ...topology.CPUID) func(*situation) {
		return func(s *situation) {
			reserved := topology.CPUSet{}
			for i, id := range ids {
				s.placed.VCPUs[i].CPUs = topology.SetOf(id)
				reserved = reserved.With(id&^1, id|1)
			}
			s.placed.Reservations[0].Exclusive = reserved
		}
	}
	three := func(s *situation) {
		s.spec.VCPUs, s.placed.Reservations[0].VCPUs = 3, 3
		s.placed.Cells[0].VCPUs, s.placed.VCPUs = vcpus("0-2"), s.placed.VCPUs[:3]
	}
	checkRules(t, []ruleCase{
		{"isolate: sibling not reserved", alone,
			func(s *situation) { s.placed.Reservations[0].Exclusive = cpus("8,10-12") },
			want("smt vCPU 0")},
		{"isolate: two vCPUs on a core", alone,
			func(s *situation) { s.placed.VCPUs[1].CPUs = cpus("9") },
			want("smt vCPU 0", "smt vCPU 1")},
		{"any: siblings of others", alone, func(s *situation) {
			s.spec.CPU.SMT, s.placed.Reservations[0].Exclusive = guest.SMTAny, cpus("8,10,12")
		}, nil},
		{"require: one core half filled", paired, three, nil},
		{"require: sibling not reserved", paired, func(s *situation) {
			three(s)
			s.placed.Reservations[0].Exclusive = cpus("8-10")
		}, want("smt vCPU 2")},
		{"require: two cores half filled", paired, onCores(8, 10, 12, 13), want("smt node 1")},
		{"require: three vCPUs on three cores", paired,
			func(s *situation) { three(s); onCores(8, 10, 12)(s) },
			want("smt node 1")},
		{"require: every core half filled", paired, onCores(8, 10, 12, 14), want("smt node 1")},
		{"require: shared CPUs", shared, func(s *situation) { s.spec.CPU.SMT = guest.SMTRequire }, nil},
	})
}

// Node 0 has five CPUs to share, which may carry ten vCPUs.
func TestPlacement_Overcommit(t *testing.T) {
	promise := func(node topology.NodeID, vcpus int) func(*situation) {
		return func(s *situation) { s.promise(guest.Reservation{Node: node, VCPUs: vcpus}) }
	}
	checkRules(t, []ruleCase{
		{"at the limit", shared, promise(0, 8), nil},
		{"beyond the limit", shared, promise(0, 9), want("overcommit node 0")},
		{"beyond the limit of the policy", shared, func(s *situation) {
			s.policy.Overcommit = 1
			promise(0, 4)(s)
		}, want("overcommit node 0")},
		{"beyond the limit on a node that the guest does not use", alone, promise(0, 50), nil},
		{"exclusive CPUs leave enough for others", alone, several(1, 2, 2, 2), nil},
		{"exclusive CPUs leave too few for others", alone, several(1, 2, 2, 3), want("overcommit node 1")},
	})
}

// several promises vCPUs on a node to as many VMs.
func several(node topology.NodeID, vcpus ...int) func(*situation) {
	return func(s *situation) {
		for _, n := range vcpus {
			s.promise(guest.Reservation{Node: node, VCPUs: n})
		}
	}
}

// Of the eight CPUs of node 1, the VM has five: two cores for its vCPUs, and the emulator's CPU.
func TestPlacement_LeavesOthersACPUForEachVCPU(t *testing.T) {
	checkRules(t, []ruleCase{
		{"as many CPUs as another VM has vCPUs", alone, several(1, 3), nil},
		{"as many CPUs as each of two VMs has vCPUs", alone, several(1, 3, 3), nil},
		{"fewer CPUs than another VM has vCPUs", alone, several(1, 1, 4), want("exclusive VM claim1")},
		{"fewer CPUs than a VM has vCPUs that is not managed", alone, func(s *situation) {
			s.host.Guests = append(s.host.Guests, inventory.Guest{
				Name: "theirs", State: "running",
				Config: inventory.Config{VCPUs: 4, Pins: map[guest.VCPUID]topology.CPUSet{
					0: cpus("8-15"), 1: cpus("8-15"), 2: cpus("8-15"), 3: cpus("8-15"),
				}},
			})
		}, nil},
		{"a node that it takes no CPUs from", alone, several(0, 7), nil},
		{"others have too few CPUs without this VM", shared, func(s *situation) {
			s.policy.Overcommit = 64
			several(0, 6)(s)
		}, nil},
	})
}

func TestPlacement_Helpers(t *testing.T) {
	emulator := func(policy guest.HelperPolicy, set string) func(*situation) {
		return func(s *situation) { s.spec.CPU.Emulator, s.placed.Emulator = policy, cpus(set) }
	}
	io := func(policy guest.HelperPolicy, set string) func(*situation) {
		return func(s *situation) { s.spec.CPU.IOPolicy, s.placed.IOThread = policy, cpus(set) }
	}
	checkRules(t, []ruleCase{
		{"emulator without CPU", shared, emulator(guest.HelperNodes, ""), want("helpers emulator")},
		{"emulator not bound", shared, emulator(guest.HelperNone, ""), nil},
		{"emulator bound against the request", shared, emulator(guest.HelperNone, "1"), want("helpers emulator")},
		{"emulator on housekeeping CPUs", shared, emulator(guest.HelperHousekeeping, "0"), nil},
		{"emulator off housekeeping CPUs", shared, emulator(guest.HelperHousekeeping, "0-1"), want("helpers emulator")},
		{"emulator on an offline CPU", shared, emulator(guest.HelperNodes, "1,99"), want("cpus emulator")},
		{"emulator on a housekeeping CPU", shared, emulator(guest.HelperNodes, "0-1"), want("cpus emulator")},
		{"emulator outside the guest's nodes", shared, emulator(guest.HelperNodes, "16"), want("helpers emulator")},
		{"exclusive emulator on a vCPU's CPU", alone, emulator(guest.HelperExclusive, "8"), want("helpers emulator")},
		{"exclusive emulator on a CPU that is not reserved", alone,
			emulator(guest.HelperExclusive, "14"),
			want("helpers emulator")},
		{"exclusive emulator with two CPUs", alone, emulator(guest.HelperExclusive, "11-12"), want("helpers emulator")},
		{"shared emulator on a reserved CPU", alone, emulator(guest.HelperNodes, "9,13"), want("helpers emulator")},
		{"shared emulator on the vCPUs' CPUs", alone, emulator(guest.HelperNodes, "8,10"), nil},
		{"I/O threads on a housekeeping CPU", shared, io(guest.HelperNodes, "0"), want("cpus I/O threads")},
		{"I/O threads outside the guest's nodes", shared, io(guest.HelperNodes, "17"), want("helpers I/O threads")},
		{"I/O threads with fewer CPUs than threads", shared, func(s *situation) {
			s.spec.CPU.IOThreads, s.placed.IOThreads = 2, 2
			s.placed.Reservations[1].Exclusive = cpus("8")
			s.placed.VCPUs[2].CPUs, s.placed.VCPUs[3].CPUs = cpus("9-15"), cpus("9-15")
			s.placed.Emulator = cpus("1-5")
			io(guest.HelperExclusive, "8")(s)
		}, want("helpers I/O threads")},
		{"I/O threads that do not exist", shared,
			func(s *situation) { s.spec.CPU.IOThreads = 0 },
			want("helpers I/O threads")},
	})
}

// A VM with exclusive CPUs that leave another VM too few may start on them again. A new VM may not take them, and the
// first VM may not take more.
func TestPlacement_ExclusiveCPUsThatItHasAlready(t *testing.T) {
	topo, err := topology.Synthetic("nodes:1 cores:4 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	shared := guest.Placement{Guest: "shared", CPUMode: guest.CPURange, Reservations: []guest.Reservation{{VCPUs: 2}}}
	alone := guest.Placement{Guest: "alone", CPUMode: guest.CPUExclusive}
	reserved := guest.Reservation{VCPUs: 3}
	for v := range 3 {
		one := topology.SetOf(topology.CPUID(v))
		alone.VCPUs = append(alone.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: one})
		reserved.Exclusive = reserved.Exclusive.Union(one)
	}
	alone.Reservations = []guest.Reservation{reserved}
	h := inventory.Host{Topology: topo, Guests: []inventory.Guest{
		{Name: "shared", State: "running", Managed: true, Placement: &shared}}}
	starved := func(h *inventory.Host) bool {
		spec := guest.Spec{Name: "alone", VCPUs: 3}
		spec.CPU.Binding = guest.CPUExclusive
		return slices.ContainsFunc(Placement(h, policy.Policy{}, spec, alone), func(v Violation) bool {
			return v.Rule == RuleExclusive && strings.HasSuffix(v.Object, "shared")
		})
	}
	if !starved(&h) {
		t.Error("a new VM may take the CPUs")
	}
	with := func(had guest.Placement) *inventory.Host {
		more := h
		more.Guests = append([]inventory.Guest{{Name: "alone", State: "shutoff", Managed: true, Placement: &had}},
			h.Guests...)
		return &more
	}
	if starved(with(alone)) {
		t.Error("a VM that has these CPUs already may not start on them again")
	}
	fewer := alone
	fewer.Reservations = []guest.Reservation{{VCPUs: 2, Exclusive: topology.Range(topology.CPUID(0), topology.CPUID(1))}}
	if !starved(with(fewer)) {
		t.Error("a VM may take one more CPU")
	}
}
