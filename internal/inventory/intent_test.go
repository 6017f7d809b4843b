package inventory

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// intentHost is a host of two nodes with two CPUs each and CPU 4 switched off,
// and a guest of 2 vCPUs and 512 MiB that was placed on node 1.
func intentHost(t *testing.T) Host {
	t.Helper()
	two, err := topology.Synthetic("nodes:2 cores:2 memory:1G")
	if err != nil {
		t.Fatal(err)
	}
	two.Offline = topology.SetOf[topology.CPUID](4)
	on := topology.SetOf[topology.NodeID](1)
	g := Guest{Name: "db", State: "running", Managed: true, Config: Config{VCPUs: 2, Memory: 512 * topology.MiB}}
	g.Spec = &guest.Spec{Name: "db", VCPUs: 2, Memory: 512 * topology.MiB}
	g.Placement = &guest.Placement{
		Guest: "db", Nodes: on, CPUMode: guest.CPURange, MemoryMode: guest.MemoryPreferred,
		VCPUs: []guest.VCPU{{ID: 0, CPUs: topology.Range[topology.CPUID](2, 3)},
			{ID: 1, CPUs: topology.Range[topology.CPUID](2, 3)}},
		Cells:        []guest.Cell{{VCPUs: topology.Range[guest.VCPUID](0, 1), Memory: 512 * topology.MiB, Nodes: on}},
		Reservations: []guest.Reservation{{Node: 1, Memory: 512 * topology.MiB, VCPUs: 2}},
	}
	return Host{Topology: two, Guests: []Guest{g}}
}

func TestCheckIntents_AcceptsPossibleIntents(t *testing.T) {
	cpu := func(ids ...topology.CPUID) topology.CPUSet { return topology.SetOf(ids...) }
	for what, change := range map[string]func(*Guest){
		"unchanged":             func(*Guest) {},
		"on an offline CPU":     func(g *Guest) { g.Placement.VCPUs[0].CPUs = cpu(4) },
		"without CPU binding":   func(g *Guest) { g.Placement.CPUMode = guest.CPUNone; g.Placement.VCPUs[0].CPUs = cpu() },
		"memory rounded to MiB": func(g *Guest) { g.Config.Memory += 700 * topology.KiB },
		"memory plugged in":     func(g *Guest) { g.Config.Cells = []ConfigCell{{Memory: g.Config.Memory}}; g.Config.Memory *= 2 },
		"dedicated CPUs":        func(g *Guest) { ownCPUs(g, 2, 3) },
		"vCPUs on another node": func(g *Guest) { g.Placement.Reservations = vcpusOnNode0(g) },
	} {
		h := intentHost(t)
		change(&h.Guests[0])
		if h.CheckIntents(); h.Guests[0].Placement == nil || !h.Guests[0].Managed || len(h.Gaps) > 0 {
			t.Errorf("%s: %s", what, h.Guests[0].IntentError)
		}
	}
}

func ownCPUs(g *Guest, ids ...topology.CPUID) {
	g.Placement.CPUMode = guest.CPUExclusive
	for i, id := range ids {
		g.Placement.VCPUs[i].CPUs = topology.SetOf(id)
	}
	g.Placement.Reservations[0].Exclusive = topology.SetOf(ids...)
}

func vcpusOnNode0(g *Guest) []guest.Reservation {
	memory := g.Placement.Reservations[0]
	memory.VCPUs = 0
	return []guest.Reservation{{Node: 0, VCPUs: 2}, memory}
}

func TestCheckIntents_RemovesImpossibleIntents(t *testing.T) {
	const huge = 1<<64 - 900<<20
	reservation := func(change func(*guest.Reservation)) func(*Guest) {
		return func(g *Guest) { change(&g.Placement.Reservations[0]) }
	}
	for want, change := range map[string]func(*Guest){
		`placement.guest is "web", another VM`:              func(g *Guest) { g.Placement.Guest = "web" },
		"spec.vcpus is 9, the VM has 2":                     func(g *Guest) { g.Spec.VCPUs = 9 },
		"spec.memory is 16777216.0 TiB, the VM has 512 MiB": func(g *Guest) { g.Spec.Memory = 1<<64 - 1 },
		"placement.nodes is none":                           func(g *Guest) { *g.Placement = guest.Placement{Guest: "db"} },
		"placement.nodes is 0-77":                           func(g *Guest) { g.Placement.Nodes = topology.Range[topology.NodeID](0, 77) },
		`placement.cpu_binding is "weird"`:                  func(g *Guest) { g.Placement.CPUMode = "weird" },
		`placement.memory_binding is "weird"`:               func(g *Guest) { g.Placement.MemoryMode = "weird" },
		"placement.vcpus has 1 vCPUs, the VM has 2":         func(g *Guest) { g.Placement.VCPUs = g.Placement.VCPUs[:1] },
		"placement.vcpus[1].id is -1; wanted 1":             func(g *Guest) { g.Placement.VCPUs[1].ID = -1 },
		"placement.vcpus[0].cpus has CPUs 5-9999":           func(g *Guest) { g.Placement.VCPUs[0].CPUs = topology.Range[topology.CPUID](0, 9999) },
		"placement.emulator has CPUs 5000":                  func(g *Guest) { g.Placement.Emulator = topology.SetOf[topology.CPUID](5000) },
		"placement.io_thread_count is -1":                   func(g *Guest) { g.Placement.IOThreads = -1 },
		"placement.cells is empty":                          func(g *Guest) { g.Placement.Cells = nil },
		"placement.cells[0].id is 7; wanted 0":              func(g *Guest) { g.Placement.Cells[0].ID = 7 },
		"placement.cells[0].vcpus is 0-9":                   func(g *Guest) { g.Placement.Cells[0].VCPUs = topology.Range[guest.VCPUID](0, 9) },
		"placement.cells[0].nodes is 0, placement.nodes is " +
			"1": func(g *Guest) { g.Placement.Cells[0].Nodes = topology.SetOf[topology.NodeID](0) },
		"placement.cells have 16777216.0 TiB of memory":  func(g *Guest) { g.Placement.Cells[0].Memory = 1<<64 - 1 },
		"placement.reservations[0].node is 77":           reservation(func(r *guest.Reservation) { r.Node = 77 }),
		"placement.reservations[0].vcpus is -1000000000": reservation(func(r *guest.Reservation) { r.VCPUs = -1000000000 }),
		"placement.reservations[0].vcpus is 1000000000":  reservation(func(r *guest.Reservation) { r.VCPUs = 1000000000 }),
		"placement.reservations[0].page_size is 1 B":     reservation(func(r *guest.Reservation) { r.PageSize = 1 }),
		"placement.reservations[0].exclusive is 0-1":     reservation(func(r *guest.Reservation) { r.Exclusive = topology.Range[topology.CPUID](0, 1) }),
		"placement.reservations have 16777216.0 TiB":     reservation(func(r *guest.Reservation) { r.Memory = huge }),
		"placement.reservations have 1 MiB of memory, the VM has " +
			"512": reservation(func(r *guest.Reservation) { r.Memory = topology.MiB }),
		"placement.reservations have 0 vCPUs, the VM has 2": reservation(func(r *guest.Reservation) { r.VCPUs = 0 }),
		"placement.reservations[1].node is 1 a second time": func(g *Guest) {
			g.Placement.Reservations = append(g.Placement.Reservations, g.Placement.Reservations...)
		},
		"placement.reservations[0].exclusive is 2-3, which are not " +
			"CP": func(g *Guest) { ownCPUs(g, 2, 3); g.Placement.Reservations[0].Node = 0 },
		"placement.page_size is 2 MiB, the VM's is 0 B": func(g *Guest) {
			g.Placement.PageSize = 2 * topology.MiB
			g.Placement.Reservations[0].PageSize = 2 * topology.MiB
		},
	} {
		h := intentHost(t)
		change(&h.Guests[0])
		h.CheckIntents()
		g := h.Guests[0]
		if !strings.HasPrefix(g.IntentError, want) || g.Managed || g.Spec != nil || g.Placement != nil {
			t.Errorf("error %q, managed %v, placement %v; wanted %q and none", g.IntentError, g.Managed, g.Placement,
				want)
		}
		if len(h.Gaps) != 1 || !strings.Contains(h.Gaps[0].Why, want) || h.Gaps[0].HidesGuests() {
			t.Errorf("gaps %+v; wanted one about %q that hides nothing", h.Gaps, want)
		}
	}
}

// A guest whose intent is not used counts with its configured size.
func TestCheckIntents_CountsTheGuestAsConfigured(t *testing.T) {
	h := intentHost(t)
	h.Guests[0].Placement.Reservations[0].Memory = 1<<64 - 900<<20
	h.CheckIntents()
	var sum topology.Bytes
	for _, held := range h.Holdings("") {
		sum += held.Memory()
	}
	if sum != 512*topology.MiB {
		t.Errorf("it takes %v; wanted its 512 MiB", sum)
	}
}

// A saved inventory reports the same faults when it is read.
func TestCheckIntents_OfASavedInventory(t *testing.T) {
	h := intentHost(t)
	h.Guests[0].Placement.Nodes = topology.SetOf[topology.NodeID](77)
	h.CheckIntents()
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var again Host
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	again.CheckIntents()
	if len(again.Gaps) != 1 || again.Guests[0].IntentError != h.Guests[0].IntentError {
		t.Errorf("gaps %+v, error %q; want the same as before", again.Gaps, again.Guests[0].IntentError)
	}
}
