package diagnose_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestRun_SortsBySeverity(t *testing.T) {
	h := host()
	addMemoryNode(h)
	h.Kernel.ZoneReclaim = "1"
	find(h, "web").Placement.Reservations[0].Memory = 20 * gib
	var got []string
	for _, f := range diagnose.Run(h) {
		got = append(got, string(f.Severity)+" "+f.Object)
	}
	if diff := cmp.Diff([]string{"error node 0", "warning host", "info node 8"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRun_OneNode(t *testing.T) {
	h := host()
	h.Topology.Nodes, h.Topology.CPUs = h.Topology.Nodes[:1], h.Topology.CPUs[:4]
	h.Kernel.NUMABalancing, h.Kernel.ZoneReclaim = "1", "1"
	if found := diagnose.Run(h); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
}

func TestFinding_JSON(t *testing.T) {
	h := host()
	h.Kernel.ZoneReclaim = "1"
	text, err := json.Marshal(diagnose.Run(h)[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rule":"zone-reclaim"`, `"severity":"warning"`, `"object":"host"`, `"safe":true`,
		`"action":{"kind":"write-kernel-setting","path":"/proc/sys/vm/zone_reclaim_mode","from":"1","value":"0"}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}

func TestRun_QuotesNamesForShell(t *testing.T) {
	h := host()
	g := find(h, "foreign")
	unbind(g)
	g.Name, g.Config.Immediate = "it's; rm -rf", true
	i := slices.IndexFunc(
		diagnose.Run(h),
		func(f diagnose.Finding) bool { return f.Command == `numavisor bind 'it'\''s; rm -rf'` },
	)
	if i < 0 {
		t.Errorf("no finding quotes the name: %+v", diagnose.Run(h))
	}
}

// With an incomplete or invalid inventory there is no panic, the findings are the same each
// time, and every finding is complete and, if safe, has an action.
func TestPartialInventories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := host()
		rapid.SampledFrom(faults).Draw(t, "fault").fault(h)
		for i := range rapid.IntRange(0, 5).Draw(t, "losses") {
			lose(rapid.IntRange(0, 17).Draw(t, fmt.Sprint("loss ", i)), h)
		}
		found := diagnose.Run(h)
		if diff := cmp.Diff(found, diagnose.Run(h)); diff != "" {
			t.Fatalf("differs the second time:\n%s", diff)
		}
		for _, f := range found {
			if f.Rule == "" || f.Object == "" || len(f.Evidence) == 0 || f.Effect == "" || f.Fix == "" {
				t.Fatalf("unfinished: %+v", f)
			}
			if f.Safe && f.Action == nil {
				t.Fatalf("safe, but nothing to do: %+v", f)
			}
			if a := f.Action; a != nil && a.Kind == plan.WriteSetting && !strings.HasPrefix(a.Path, "/proc/sys/") &&
				!strings.HasPrefix(a.Path, "/sys/") {
				t.Fatalf("writes to %s", a.Path)
			}
		}
	})
}

func lose(what int, h *inventory.Host) {
	each := func(f func(g *inventory.Guest)) {
		for i := range h.Guests {
			f(&h.Guests[i])
		}
	}
	switch what {
	case 0:
		h.Topology = topology.Topology{}
	case 1:
		h.Topology.Nodes = h.Topology.Nodes[:len(h.Topology.Nodes)/2]
	case 2:
		h.Topology.CPUs = nil
	case 3:
		for i := range h.Topology.Nodes {
			h.Topology.Nodes[i] = topology.Node{ID: h.Topology.Nodes[i].ID, Memory: gib}
		}
	case 4:
		h.Kernel = inventory.Kernel{
			NUMABalancing:  "often",
			KSMRun:         "1",
			KSMAcrossNodes: "1",
			ZoneReclaim:    "7",
			NumadRunning:   true,
		}
	case 5:
		h.Guests = append(h.Guests, inventory.Guest{}, inventory.Guest{})
	case 6:
		each(func(g *inventory.Guest) { g.Seen = inventory.Seen{} })
	case 7:
		each(func(g *inventory.Guest) { g.Config = inventory.Config{} })
	case 8:
		each(func(g *inventory.Guest) { g.Placement = &guest.Placement{} })
	case 9:
		each(func(g *inventory.Guest) { g.Placement = nil })
	case 10:
		each(func(g *inventory.Guest) { g.Seen.MemoryByNode = byNode{-1: gib, 99: 1 << 63, 1 << 20: 1 << 63} })
	case 11:
		each(func(g *inventory.Guest) { g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{}) })
	case 12:
		each(func(g *inventory.Guest) {
			g.Config.NUMATune = &inventory.NUMATune{Cells: []inventory.CellTune{{}, {Cell: 5}}}
		})
	case 13:
		h.Claims = append(h.Claims, inventory.Claim{Name: "web"},
			inventory.Claim{Placement: guest.Placement{Reservations: []guest.Reservation{{Node: 99, Memory: gib}}}})
	case 14:
		each(func(g *inventory.Guest) { unbind(g) })
	case 15:
		h.Topology.Devices = []topology.Device{{}, {Address: "0000:3b:00.0", Node: 99}}
	case 16: // a file may say anything
		h.Topology.Nodes = append(
			[]topology.Node{{ID: -7, Memory: gib, CPUs: cpus("0-1")}},
			append(h.Topology.Nodes, topology.Node{ID: 1 << 20, Memory: gib})...)
		h.Topology.CPUs = append(h.Topology.CPUs, topology.CPU{ID: -1}, topology.CPU{ID: 1 << 30})
	case 17:
		each(func(g *inventory.Guest) {
			g.State, g.Hypervisor, g.Can = "shutoff", guest.Xen, inventory.CapabilitiesOf(guest.Xen)
		})
	}
}

func TestNilHost(t *testing.T) {
	if found := diagnose.Run(nil); found != nil {
		t.Errorf("found %+v", found)
	}
}

func TestRun_ReportsOverlapOnce(t *testing.T) {
	h := host()
	for _, name := range []string{"foreign", "web"} {
		g := find(h, name)
		g.Placement = nil
		g.Seen.Threads[0].Affinity, g.Seen.Threads[1].Affinity = cpus("4"), cpus("5")
	}
	reports := 0
	for _, f := range diagnose.Run(h) {
		if f.Rule == "exclusive-overlap" {
			reports++
		}
	}
	if reports != 1 {
		t.Errorf("reported %d times", reports)
	}
}
