package diagnose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// mirroring is a healthy host on which the VMs m1 and m2 hand the CPUs 1-3 and 5-7 of nodes 0 and 1 to each
// other. CPUs 2 and 3, and 6 and 7, are siblings. The VM web runs on node 3.
func mirroring() (*inventory.Host, policy.Policy) {
	h := host()
	for i := range h.Topology.CPUs {
		c := &h.Topology.CPUs[i]
		for _, core := range []topology.CPUSet{cpus("2-3"), cpus("6-7")} {
			if core.Contains(c.ID) {
				c.Siblings = core
			}
		}
	}
	other := web()
	other.Placement.Nodes, other.Placement.Cells[0].Nodes = nodes("3"), nodes("3")
	other.Placement.Emulator, other.Placement.Reservations[0].Node = cpus("8-11"), 3
	other.Placement.VCPUs = []guest.VCPU{{ID: 0, CPUs: cpus("8-11")}, {ID: 1, CPUs: cpus("8-11")}}
	other.Config.NUMATune.Nodes = nodes("3")
	other.Seen = seen(byNode{3: 2 * gib}, vcpu(0, "8-11", "3"), vcpu(1, "8-11", "3"),
		thread(inventory.RoleEmulator, "8-11", "3"))
	h.Guests = []inventory.Guest{mirrorGuest("m1", "1,2,3,5,6,7", "1-3"), mirrorGuest("m2", "5,6,7,1,2,3", "5-7"), other}
	return h, policy.Policy{Handoff: policy.Handoff{CPUs: cpus("1-3,5-7"), WholeCores: true}}
}

// mirrorGuest mirrors CPUs, in the order of its vCPUs, and is granted some of them.
func mirrorGuest(name, mirror, granted string) inventory.Guest {
	p := &guest.Placement{Guest: name, Nodes: nodes("0-1"), Visible: true, CPUMode: guest.CPUHandoff,
		MemoryMode: guest.MemoryPreferred, Movable: true, Emulator: cpus("0,4"),
		Handoff: &guest.Handoff{Min: 1, Weight: 100, First: cpus(granted),
			Seen: guest.CPUTopology{Sockets: 2, Dies: 1, Cores: 3, Threads: 1}}}
	g := inventory.Guest{Name: name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State: "running", PID: 20, Managed: true, Placement: p,
		Config: inventory.Config{VCPUs: 6, Memory: 2 * gib, Source: "memfd",
			NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: nodes("0-1")},
			Cells: []inventory.ConfigCell{{ID: 0, VCPUs: vcpus("0-2"), Memory: gib},
				{ID: 1, VCPUs: vcpus("3-5"), Memory: gib}}},
		Seen: seen(byNode{0: gib, 1: gib}, thread(inventory.RoleEmulator, "0,4", "0-1"))}
	for v, cpu := range strings.Split(mirror, ",") {
		own := cpus(cpu)
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: own})
		if !own.SubsetOf(cpus(granted)) {
			own = cpus(granted)
		}
		g.Seen.Threads = append(g.Seen.Threads, vcpu(guest.VCPUID(v), own.String(), "0-1"))
	}
	for n, id := range []topology.NodeID{0, 1} {
		p.Cells = append(p.Cells, guest.Cell{ID: guest.CellID(n), Memory: gib, Nodes: topology.SetOf(id),
			VCPUs: topology.Range(guest.VCPUID(3*n), guest.VCPUID(3*n+2))})
		p.Reservations = append(p.Reservations, guest.Reservation{Node: id, Memory: gib, VCPUs: 1 - n})
	}
	g.Seen.HandedOver = &inventory.HandedOver{CPUs: cpus(granted), Min: 1, Weight: 100, Means: "partition"}
	return g
}

func TestRun_HealthyHostWithMirroredVMs(t *testing.T) {
	h, p := mirroring()
	for _, f := range diagnose.RunUnder(h, p) {
		t.Errorf("%+v", f)
	}
}

// handoffFaults make the rules of hand-over find something; says must be in evidence, effect, fix or command.
var handoffFaults = []struct {
	rule, name   string
	fault        func(h *inventory.Host, p *policy.Policy)
	object, says string
	severity     diagnose.Severity
}{
	{"handoff-without-agent", "none has reported", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.Means = ""
	}, "guest m1", "has 3 CPUs of its 6: 1-3; its minimum is 1", diagnose.Warning},
	{"handoff-without-agent", "it is silent", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.Silent = true
	}, "guest m1", "systemctl enable --now numavisor-guest", diagnose.Warning},
	{"handoff-without-agent", "no daemon has handed CPUs over", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m2").Seen.HandedOver = nil
	}, "guest m2", "start the daemon", diagnose.Warning},
	{"handoff-slow", "CPUs go offline", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.Means = "offline"
	}, "guest m1", "cgroup v2", diagnose.Info},
	{"handoff-slow", "no means", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.Means = "none"
	}, "guest m1", "releases no CPU", diagnose.Warning},
	{"handoff-outside-policy", "a CPU was taken out", func(_ *inventory.Host, p *policy.Policy) {
		p.Handoff.CPUs = cpus("1-3,6-7")
	}, "guest m2", "handoff.cpus is 1-3,6-7", diagnose.Warning},
	{"handoff-outside-policy", "no policy", func(_ *inventory.Host, p *policy.Policy) { *p = policy.Policy{} },
		"guest m1", "add CPUs 1-3,5-7 to handoff.cpus", diagnose.Warning},
	{"handoff-taken", "an unmanaged VM", func(h *inventory.Host, _ *policy.Policy) {
		h.Guests = append(h.Guests, foreign())
	}, "guest foreign", "vcpu threads may run on CPUs 5-7", diagnose.Warning},
	{"handoff-taken", "the emulator of a managed one", func(h *inventory.Host, _ *policy.Policy) {
		g := find(h, "web")
		g.Placement.Emulator, g.Seen.Threads[2].Affinity = cpus("2,8-11"), cpus("2,8-11")
	}, "guest web", "--recompute", diagnose.Warning},
	{"handoff-taken", "the emulator of a mirrored one, beyond its anchor", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.Threads[0].Affinity = cpus("1-2")
	}, "guest m1", "emulator threads may run on CPUs 2,", diagnose.Warning},
	{"handoff-taken", "a process", func(h *inventory.Host, _ *policy.Policy) {
		h.Claims = append(h.Claims, inventory.Claim{Name: "backup", PID: 99, Placement: guest.Placement{
			VCPUs: []guest.VCPU{{CPUs: cpus("3-4")}}}})
	}, "host", "process 99 (backup) is bound to CPUs 3 ", diagnose.Warning},
	{"handoff-taken", "CPUs of the host's own work", func(h *inventory.Host, _ *policy.Policy) {
		h.Topology.Housekeeping = cpus("0-1")
	}, "host", "CPUs 1 are for the host's own work", diagnose.Warning},
	{"handoff-cores-split", "by the policy", func(_ *inventory.Host, p *policy.Policy) {
		p.Handoff.CPUs = cpus("1,3,5-7")
	}, "host", "of the core with CPUs 2-3, handoff.cpus has only 3", diagnose.Warning},
	{"handoff-cores-split", "between two VMs", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.CPUs = cpus("1-3,6")
		find(h, "m2").Seen.HandedOver.CPUs = cpus("5,7")
	}, "host", "CPUs 6-7 are one core and serve m1 and m2", diagnose.Warning},
}

func TestRun_FindsEveryFaultOfHandOver(t *testing.T) {
	for _, c := range handoffFaults {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			h, p := mirroring()
			c.fault(h, &p)
			found := diagnose.RunUnder(h, p)
			i := slices.IndexFunc(found,
				func(f diagnose.Finding) bool { return f.Rule == c.rule && f.Object == c.object })
			if i < 0 {
				t.Fatalf("not found on %s; found %+v", c.object, found)
			}
			f := found[i]
			text := strings.Join(append(f.Evidence, f.Effect, f.Fix, f.Command), "\n")
			if f.Severity != c.severity || f.Safe || !strings.Contains(text, c.says) {
				t.Errorf("severity %s, safe %v, does not contain %q:\n%s", f.Severity, f.Safe, c.says, text)
			}
			if len(f.Evidence) == 0 || f.Effect == "" || f.Fix == "" {
				t.Errorf("has no evidence, effect or fix: %+v", f)
			}
		})
	}
}

// handoffHealthy are states close to a fault in which the rule reports nothing.
var handoffHealthy = []struct {
	rule, name string
	change     func(h *inventory.Host, p *policy.Policy)
}{
	{"handoff-without-agent", "paused", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").State, find(h, "m1").Seen.HandedOver.Silent = "paused", true
	}},
	{"handoff-without-agent", "an ordinary VM", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "web").Seen.HandedOver = nil
	}},
	{"handoff-slow", "the second best means", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.Means = "flip"
	}},
	{"handoff-slow", "the agent does not answer: another rule says so", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver = &inventory.HandedOver{Means: "offline", Silent: true}
	}},
	{"handoff-outside-policy", "the policy has more", func(_ *inventory.Host, p *policy.Policy) {
		p.Handoff.CPUs = cpus("0-7")
	}},
	{"handoff-taken", "the emulator on its VM's anchor", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.Threads[0].Affinity = cpus("0-1,4")
	}},
	{"handoff-taken", "a process on other CPUs", func(h *inventory.Host, _ *policy.Policy) {
		h.Claims = append(h.Claims, inventory.Claim{Name: "backup", PID: 99, Placement: guest.Placement{
			VCPUs: []guest.VCPU{{CPUs: cpus("4")}}}})
	}},
	{"handoff-taken", "a mirrored VM that is being created", func(h *inventory.Host, _ *policy.Policy) {
		h.Claims = append(h.Claims, inventory.Claim{Name: "m3", Placement: *find(h, "m1").Placement})
	}},
	{"handoff-taken", "no CPUs are handed over", func(h *inventory.Host, p *policy.Policy) {
		h.Guests = append(h.Guests, foreign())
		p.Handoff.CPUs = topology.CPUSet{}
	}},
	{"handoff-cores-split", "the policy does not demand cores", func(h *inventory.Host, p *policy.Policy) {
		p.Handoff = policy.Handoff{CPUs: cpus("1,3,5-7")}
		find(h, "m1").Seen.HandedOver.CPUs, find(h, "m2").Seen.HandedOver.CPUs = cpus("1,3,6"), cpus("5,7")
	}},
	{"handoff-cores-split", "a sibling serves nobody now", func(h *inventory.Host, _ *policy.Policy) {
		find(h, "m1").Seen.HandedOver.CPUs = cpus("1,3")
	}},
	{"vcpus-crowded", "a mirrored VM has one of its CPUs", func(h *inventory.Host, _ *policy.Policy) {
		h.Guests = []inventory.Guest{mirrorGuest("m1", "1,2,3,5,6,7", "1")}
	}},
}

func TestRun_NoFalsePositivesOfHandOver(t *testing.T) {
	for _, c := range handoffHealthy {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			h, p := mirroring()
			c.change(h, &p)
			for _, f := range diagnose.RunUnder(h, p) {
				if f.Rule == c.rule {
					t.Errorf("found %+v", f)
				}
			}
		})
	}
}

// Hand-over matters on a host with one node, too.
func TestRun_HandOverOnOneNode(t *testing.T) {
	h, p := mirroring()
	h.Topology.Nodes, h.Topology.CPUs = h.Topology.Nodes[:1], h.Topology.CPUs[:4]
	find(h, "m1").Seen.HandedOver.Silent = true
	found := diagnose.RunUnder(h, p)
	if !slices.ContainsFunc(found, func(f diagnose.Finding) bool { return f.Rule == "handoff-without-agent" }) {
		t.Errorf("found %+v", found)
	}
}
