package place

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

// fourNodes: two sockets of two nodes, 8 CPUs on 8 cores and 16 GiB each.
func fourNodes() *inventory.Host {
	return &inventory.Host{
		Name:     "four",
		Topology: made(shape{nodes: 4, cpus: 8, threads: 1, memory: 16 * gib, perSocket: 2}),
	}
}

// mustPlace places, checks, and returns the placement.
func mustPlace(t *testing.T, r Request) (guest.Placement, Why) {
	t.Helper()
	placed, why, err := Place(r)
	if err != nil {
		t.Fatal(err)
	}
	if vs := check.Placement(r.Host, r.Policy, r.Spec, placed); len(vs) > 0 {
		t.Fatal(check.Error(r.Spec.Name, vs))
	}
	return placed, why
}

// settle adds a placed guest to the host, with no memory touched yet.
func settle(h *inventory.Host, placed guest.Placement) {
	h.Guests = append(h.Guests,
		inventory.Guest{Name: placed.Guest, Managed: true, State: "running", Placement: &placed})
}

func small(name string) guest.Spec { return guest.Spec{Name: name, VCPUs: 4, Memory: 6 * gib} }

func noFit(t *testing.T, r Request) *NoFitError {
	t.Helper()
	_, _, err := Place(r)
	var none *NoFitError
	if !errors.As(err, &none) {
		t.Fatalf("expected no room, got error %v", err)
	}
	return none
}

// numad and two concurrent xl create commands give both guests the same memory,
// because neither guest has touched any yet.
func TestGuestsStartedTogetherDoNotShareResources(t *testing.T) {
	h := fourNodes()
	var seen topology.NodeSet
	for i := range 4 {
		placed, _ := mustPlace(t, Request{Host: h, Spec: small(fmt.Sprint("g", i))})
		if seen.Intersects(placed.Nodes) {
			t.Fatalf("guest %d got node %v although others are empty", i, placed.Nodes)
		}
		seen = seen.Union(placed.Nodes)
		h.Claims = append(h.Claims, inventory.Claim{Name: placed.Guest, Placement: placed})
	}
}

func TestClaimAndGuestOfOneNameCountOnce(t *testing.T) {
	h := fourNodes()
	placed, _ := mustPlace(
		t,
		Request{
			Host: h,
			Spec: guest.Spec{
				Name:   "a",
				VCPUs:  4,
				Memory: 12 * gib,
				Limits: guest.Limits{Nodes: topology.SetOf[topology.NodeID](0)},
			},
		},
	)
	settle(h, placed)
	h.Claims = []inventory.Claim{{Name: "a", Placement: placed}}
	if got := capacity.Available(h, policy.Policy{}.WithDefaults(), "")[0].Promised; got != 12*gib {
		t.Errorf("promised %v, want 12 GiB", got)
	}
}

// xapi lost 40 to 75 % by restricting guests to the threads of one node.
func TestCapacityComesBeforeLocality(t *testing.T) {
	h := &inventory.Host{
		Name:     "smt",
		Topology: made(shape{nodes: 2, cpus: 16, threads: 2, memory: 64 * gib, perSocket: 1}),
	}
	wide := guest.Spec{Name: "wide", VCPUs: 12, Memory: 8 * gib}
	if placed, _ := mustPlace(t, Request{Host: h, Spec: wide}); placed.Nodes.Len() != 2 {
		t.Errorf("12 vCPUs on nodes %v: 8 cores would carry them", placed.Nodes)
	}
	threads := policy.Policy{Count: policy.CountThreads}
	if placed, _ := mustPlace(t, Request{Host: h, Spec: wide, Policy: threads}); placed.Nodes.Len() != 1 {
		t.Errorf("12 vCPUs on nodes %v: 16 threads of one node suffice where threads count", placed.Nodes)
	}
	wide.VCPUs = 32
	placed, why := mustPlace(t, Request{Host: h, Spec: wide})
	if placed.Nodes.Len() != 2 || why.SharingCores != 16 {
		t.Errorf("32 vCPUs on 16 cores: nodes %v, %d sharing cores", placed.Nodes, why.SharingCores)
	}
}

// Nova uses the first permutation, kubelet the narrowest mask: neither considers distance.
func TestNeighboursAreUsedTogether(t *testing.T) {
	h := fourNodes()
	settle(h, mustPlaceOn(t, h, "old", 0))
	placed, why := mustPlace(t, Request{Host: h, Spec: guest.Spec{Name: "wide", VCPUs: 16, Memory: 16 * gib}})
	if placed.Nodes.String() != "2-3" {
		t.Errorf("placed on %v, the empty neighbours are 2-3", placed.Nodes)
	}
	if want := [][]int{{10, 16}, {16, 10}}; !cmp.Equal(
		want,
		[][]int{placed.Cells[0].Distances, placed.Cells[1].Distances},
	) {
		t.Errorf("distances %v", placed.Cells)
	}
	if !strings.Contains(why.Text(), "nodes 1,3 rejected: cost") ||
		!strings.Contains(why.Text(), "distance 28 instead of 16") {
		t.Errorf("text:\n%s", why.Text())
	}
}

func mustPlaceOn(t *testing.T, h *inventory.Host, name string, node topology.NodeID) guest.Placement {
	t.Helper()
	s := small(name)
	s.Limits.Nodes = topology.SetOf(node)
	placed, _ := mustPlace(t, Request{Host: h, Spec: s})
	return placed
}

// The firmware's distances are wrong by up to 2x: measured figures decide.
func TestMeasuredLatencyTakesPrecedence(t *testing.T) {
	h := fourNodes()
	near := map[[2]int]bool{{0, 3}: true, {3, 0}: true, {1, 2}: true, {2, 1}: true}
	m := &topology.Measured{Nodes: []topology.NodeID{0, 1, 2, 3}}
	for i := range 4 {
		row := []float64{200, 200, 200, 200}
		for j := range row {
			if near[[2]int{i, j}] {
				row[j] = 100
			}
		}
		row[i] = 80
		m.LatencyNanos = append(m.LatencyNanos, row)
	}
	h.Topology.Measured = m
	placed, why := mustPlace(t, Request{Host: h, Spec: guest.Spec{Name: "wide", VCPUs: 16, Memory: 16 * gib}})
	if s := placed.Nodes.String(); s != "0,3" && s != "1-2" {
		t.Errorf("placed on %s, measured neighbours are 0,3 and 1-2", s)
	}
	if placed.Cells[0].Distances[1] != 13 { // 100 ns against 80
		t.Errorf("guest is shown distance %d, want 13", placed.Cells[0].Distances[1])
	}
	if why.Access != "measured latency" {
		t.Errorf("access source %q", why.Access)
	}
}

// AsymSched: the best set has the most bandwidth, not the fewest hops.
func TestBandwidthDecidesAmongEqualLatencies(t *testing.T) {
	h := &inventory.Host{
		Name:     "asym",
		Topology: made(shape{nodes: 4, cpus: 8, threads: 1, memory: 16 * gib, perSocket: 4}),
	}
	m := &topology.Measured{Nodes: []topology.NodeID{0, 1, 2, 3}}
	for i := range 4 {
		latency, bandwidth := []float64{120, 120, 120, 120}, []float64{3000, 3000, 3000, 3000}
		latency[i], bandwidth[i] = 80, 9000
		bandwidth[3-i] = 6000 // 0-3 and 1-2 have the wide links
		m.LatencyNanos, m.BandwidthMBps = append(m.LatencyNanos, latency), append(m.BandwidthMBps, bandwidth)
	}
	h.Topology.Measured = m
	placed, _ := mustPlace(t, Request{Host: h, Spec: guest.Spec{Name: "wide", VCPUs: 16, Memory: 16 * gib}})
	if s := placed.Nodes.String(); s != "0,3" && s != "1-2" {
		t.Errorf("placed on %s, the wide links join 0,3 and 1-2", s)
	}
}

func TestPackAndSpread(t *testing.T) {
	h := fourNodes()
	settle(h, mustPlaceOn(t, h, "old", 1))
	if placed, _ := mustPlace(t, Request{Host: h, Spec: small("new")}); placed.Nodes.Contains(1) {
		t.Error("spread took the used node")
	}
	pack := policy.Policy{Prefer: policy.PreferPack}
	if placed, _ := mustPlace(t, Request{Host: h, Spec: small("new"), Policy: pack}); !placed.Nodes.Contains(1) {
		t.Errorf("pack took node %v, not the used one", placed.Nodes)
	}
}

func TestHugePagePoolsCount(t *testing.T) {
	h := fourNodes()
	h.Topology.Nodes[2].HugePages = []topology.HugePagePool{{Size: gib, Total: 4, Free: 4}}
	spec := guest.Spec{Name: "huge", VCPUs: 2, Memory: 3 * gib, PageSize: gib}
	placed, _ := mustPlace(t, Request{Host: h, Spec: spec})
	if !placed.Nodes.Contains(2) {
		t.Fatalf("placed on %v, the 1 GiB pool is on 2", placed.Nodes)
	}
	settle(h, placed)
	spec.Name = "huge2"
	none := noFit(t, Request{Host: h, Spec: spec})
	if n := none.Nodes[0]; n.Node != 2 || n.Constraint != TooFewPages || n.There != 1 {
		t.Errorf("tightest is %+v, want 1 page left on node 2", n)
	}
	var texts []string
	for _, c := range none.Changes {
		texts = append(texts, c.Text)
	}
	for _, want := range []string{"allow pools of 1 GiB pages to grow", "small pages",
		"1 GiB of memory instead of 3 GiB"} {
		if !strings.Contains(strings.Join(texts, "\n"), want) {
			t.Errorf("no change %q among %q", want, texts)
		}
	}
}

func TestPoolsGrowFromFreeMemoryAndAreReported(t *testing.T) {
	h := fourNodes()
	spec := guest.Spec{Name: "g", VCPUs: 2, Memory: 2 * gib, PageSize: 2 * topology.MiB}
	placed, why := mustPlace(t, Request{Host: h, Spec: spec})
	if len(why.Grow) != 1 || why.Grow[0].Pages != 1024 || !placed.Nodes.Contains(why.Grow[0].Node) {
		t.Fatalf("grow %+v", why.Grow)
	}
	settle(h, placed)
	node := why.Grow[0].Node
	for _, r := range capacity.Available(h, policy.Policy{}.WithDefaults(), "") {
		if r.Node == node && r.Left > 14*gib {
			t.Errorf("%v left on node %d although 2 GiB will be turned into huge pages", r.Left, node)
		}
	}
}

func TestPlacementIsNearDevices(t *testing.T) {
	h := fourNodes()
	h.Topology.Devices = []topology.Device{{Address: "0000:41:00.0", Kind: topology.DeviceGPU, Node: 3}}
	spec := small("gpu")
	spec.Devices = []guest.DeviceSpec{{Address: "0000:41:00.0"}}
	if placed, _ := mustPlace(t, Request{Host: h, Spec: spec}); !placed.Nodes.Contains(3) {
		t.Errorf("placed on %v, the device is on 3", placed.Nodes)
	}
	settle(h, guest.Placement{Guest: "full", Reservations: []guest.Reservation{{Node: 3, Memory: 15 * gib}}})
	if placed, _ := mustPlace(t, Request{Host: h, Spec: spec}); !placed.Nodes.Contains(2) {
		t.Errorf("placed on %v, 2 is next to the device", placed.Nodes)
	}
	spec.Devices[0].Required = true
	if none := noFit(t, Request{Host: h, Spec: spec}); !strings.Contains(none.Error(), "node") ||
		len(none.Changes) == 0 {
		t.Errorf("no reason or no change: %v", none)
	}
	spec.Devices[0].Address = "0000:99:00.0"
	if _, _, err := Place(Request{Host: h, Spec: spec}); err == nil || !strings.Contains(err.Error(), "0000:99:00.0") {
		t.Errorf("unknown device: %v", err)
	}
}

func TestSMTPolicies(t *testing.T) {
	for _, c := range []struct {
		smt  guest.SMTPolicy
		want string // CPUs of the vCPUs
		all  string // reserved
	}{
		{guest.SMTAny, "0,2,4", "0,2,4"},
		{guest.SMTPrefer, "0-2", "0-2"},
		{guest.SMTRequire, "0-2", "0-3"},
		{guest.SMTIsolate, "0,2,4", "0-5"},
	} {
		h := &inventory.Host{
			Name:     "smt",
			Topology: made(shape{nodes: 1, cpus: 8, threads: 2, memory: 16 * gib, perSocket: 1}),
		}
		placed, _ := mustPlace(t, Request{Host: h, Spec: guest.Spec{
			Name: "g", VCPUs: 3, Memory: gib, CPU: guest.CPUSpec{Binding: guest.CPUExclusive, SMT: c.smt},
		}})
		var got topology.CPUSet
		for _, v := range placed.VCPUs {
			got = got.Union(v.CPUs)
		}
		if got.String() != c.want || placed.Exclusive().String() != c.all {
			t.Errorf("%s: vCPUs on %v, reserved %v; want %s and %s", c.smt, got, placed.Exclusive(), c.want, c.all)
		}
		if placed.Emulator.Intersects(placed.Exclusive()) {
			t.Errorf("%s: emulator on %v", c.smt, placed.Emulator)
		}
	}
}

func TestExclusiveVCPUsStayInOneCache(t *testing.T) {
	h := &inventory.Host{
		Name:     "ccx",
		Topology: made(shape{nodes: 1, cpus: 16, threads: 1, memory: 16 * gib, perSocket: 1, caches: 4}),
	}
	settle(
		h,
		guest.Placement{
			Guest:        "old",
			CPUMode:      guest.CPUExclusive,
			Reservations: []guest.Reservation{{Node: 0, Exclusive: topology.SetOf[topology.CPUID](0, 1)}},
		},
	)
	for _, c := range []struct {
		vcpus int
		want  string
	}{{2, "2-3"}, {4, "4-7"}, {6, "2-7"}} {
		placed, _ := mustPlace(t, Request{Host: h, Spec: guest.Spec{
			Name: "g", VCPUs: c.vcpus, Memory: gib, CPU: guest.CPUSpec{Binding: guest.CPUExclusive},
		}})
		if got := placed.Exclusive().String(); got != c.want {
			t.Errorf("%d vCPUs on CPUs %s, want %s", c.vcpus, got, c.want)
		}
	}
}

func TestExclusiveNamesGuestsToRebind(t *testing.T) {
	h := &inventory.Host{
		Name:     "one",
		Topology: made(shape{nodes: 1, cpus: 8, threads: 1, memory: 16 * gib, perSocket: 1}),
	}
	first, _ := mustPlace(t, Request{Host: h, Spec: small("shared")})
	settle(h, first)
	_, why := mustPlace(
		t,
		Request{
			Host: h,
			Spec: guest.Spec{Name: "rt", VCPUs: 2, Memory: gib, CPU: guest.CPUSpec{Binding: guest.CPUExclusive}},
		},
	)
	if len(why.Overlaps) != 1 || why.Overlaps[0].Guest != "shared" || why.Overlaps[0].CPUs.Len() != 2 {
		t.Errorf("overlaps %+v", why.Overlaps)
	}
}

func TestNodesWithoutCPUsOrMemory(t *testing.T) {
	h := fourNodes()
	// node 1 becomes CXL memory, node 2 has CPUs only.
	h.Topology.CPUs = append(h.Topology.CPUs[:8:8], h.Topology.CPUs[16:]...)
	h.Topology.Nodes[1].CPUs = topology.CPUSet{}
	h.Topology.Nodes[2].Memory, h.Topology.Nodes[2].Free = 0, 0
	if err := h.Topology.Validate(); err != nil {
		t.Fatal(err)
	}
	placed, _ := mustPlace(t, Request{Host: h, Spec: small("plain")})
	if s := placed.Nodes.String(); s != "0" && s != "3" {
		t.Errorf("plain guest on %s", s)
	}
	cxl := small("cxl")
	cxl.Limits.Nodes = topology.SetOf[topology.NodeID](0, 1)
	cxl.Memory = 15 * gib
	settle(h, mustPlaceOn(t, h, "old", 0))
	placed, _ = mustPlace(t, Request{Host: h, Spec: cxl})
	if placed.Nodes.String() != "1" || !placed.VCPUs[0].CPUs.SubsetOf(h.Topology.Nodes[0].CPUs) {
		t.Errorf("memory on %v, CPUs %v", placed.Nodes, placed.VCPUs[0].CPUs)
	}
	lend := small("lend")
	lend.Limits.Nodes = topology.SetOf[topology.NodeID](2, 3)
	lend.Limits.CPUs = h.Topology.Nodes[2].CPUs
	placed, why := mustPlace(t, Request{Host: h, Spec: lend})
	if placed.Nodes.String() != "3" || !placed.VCPUs[0].CPUs.SubsetOf(h.Topology.Nodes[2].CPUs) ||
		why.Nodes.Len() != 2 {
		t.Errorf("memory on %v, CPUs %v", placed.Nodes, placed.VCPUs[0].CPUs)
	}
}

func TestMirrorFollowsTheHost(t *testing.T) {
	h := fourNodes()
	spec := guest.Spec{Name: "m", VCPUs: 32, Memory: 32 * gib, Topology: guest.TopologySpec{Mode: guest.TopologyMirror}}
	placed, _ := mustPlace(t, Request{Host: h, Spec: spec})
	if len(placed.Cells) != 4 || !placed.Visible {
		t.Fatalf("%d cells, visible %v", len(placed.Cells), placed.Visible)
	}
	for i, c := range placed.Cells {
		if c.VCPUs.Len() != 8 || c.Memory != 8*gib || !c.Nodes.Contains(topology.NodeID(i)) {
			t.Errorf("cell %d: %+v", i, c)
		}
		for j, d := range c.Distances {
			if want, _ := h.Topology.Distance(topology.NodeID(i), topology.NodeID(j)); d != want {
				t.Errorf("cell %d is shown %d to %d, the host has %d", i, d, j, want)
			}
		}
	}
}

func TestWideGuestWithoutNUMA(t *testing.T) {
	h := fourNodes()
	placed, _ := mustPlace(
		t,
		Request{
			Host: h,
			Spec: guest.Spec{
				Name:     "flat",
				VCPUs:    12,
				Memory:   20 * gib,
				Topology: guest.TopologySpec{Mode: guest.TopologyOff},
			},
		},
	)
	if len(placed.Cells) != 1 || placed.Visible || placed.Nodes.Len() != 2 || placed.Reservations[0].Memory != 10*gib {
		t.Errorf("%+v", placed)
	}
}

// A guest that is placed again may stay on its nodes: its own memory does not count against it.
func TestIgnoreFreesTheGuestsOwnResources(t *testing.T) {
	h := fourNodes()
	for i := range h.Topology.Nodes {
		h.Topology.Nodes[i].Free = 2 * gib
	}
	placed := guest.Placement{
		Guest:        "g",
		CPUMode:      guest.CPURange,
		Reservations: []guest.Reservation{{Node: 2, Memory: 12 * gib, VCPUs: 4}},
	}
	h.Guests = []inventory.Guest{
		{
			Name:      "g",
			Managed:   true,
			Placement: &placed,
			Seen:      inventory.Seen{MemoryByNode: topology.MemoryByNode{2: 12 * gib}},
		},
	}
	spec := guest.Spec{Name: "g", VCPUs: 4, Memory: 12 * gib}
	got, _ := mustPlace(t, Request{Host: h, Spec: spec, Ignore: "g"})
	if got.Nodes.String() != "2" {
		t.Errorf("placed on %v, has room on 2 only", got.Nodes)
	}
	spec.Name = "other"
	_ = noFit(t, Request{Host: h, Spec: spec})
}

func TestNoFitNamesTheHolders(t *testing.T) {
	h := fourNodes()
	for n := range 4 {
		settle(
			h,
			guest.Placement{
				Guest:        fmt.Sprint("db", n),
				Reservations: []guest.Reservation{{Node: topology.NodeID(n), Memory: topology.Bytes(12+n) * gib}},
			},
		)
	}
	spec := guest.Spec{Name: "web", VCPUs: 4, Memory: 8 * gib, Limits: guest.Limits{MaxNodes: 1}}
	none := noFit(t, Request{Host: h, Spec: spec})
	if len(none.Nodes) != 4 || none.Nodes[0].Node != 0 || none.Nodes[0].Constraint != TooLittle ||
		none.Nodes[0].Holders[0] != "db0 (12 GiB)" {
		t.Errorf("%s", none.Text())
	}
	if !strings.Contains(none.Error(), "would fit with: allow 3 nodes (limits.max_nodes)") ||
		!strings.Contains(none.Text(), "  3.7 GiB of memory instead of 8 GiB\n") {
		t.Errorf("%v", none)
	}
}

func TestNoFit_WithoutAdvice(t *testing.T) {
	r := Request{Host: fourNodes(), Spec: guest.Spec{Name: "vast", VCPUs: 4, Memory: topology.TiB}}
	advised := noFit(t, r)
	if len(advised.Changes) == 0 {
		t.Fatalf("no advice to leave out: %v", advised)
	}
	r.WithoutAdvice = true
	plain := noFit(t, r)
	advised.Changes = nil
	if diff := cmp.Diff(advised, plain); diff != "" {
		t.Errorf("more than the advice differs (-with +without):\n%s", diff)
	}
}

// A guest whose memory is in a huge page pool holds no small pages: the pool holds them.
func TestNoFit_HoldersByPageSize(t *testing.T) {
	h := fourNodes()
	for n := range h.Topology.Nodes {
		h.Topology.Nodes[n].HugePages = []topology.HugePagePool{{Size: topology.GiB, Total: 10, Free: 2}}
		h.Topology.Nodes[n].Free -= 10 * gib
		settle(h, guest.Placement{Guest: fmt.Sprint("db", n), PageSize: gib, Reservations: []guest.Reservation{
			{Node: topology.NodeID(n), Memory: 8 * gib, PageSize: gib}}})
	}
	spec := guest.Spec{Name: "web", VCPUs: 4, Memory: 8 * gib, Limits: guest.Limits{MaxNodes: 1}}
	none := noFit(t, Request{Host: h, Spec: spec})
	if diff := cmp.Diff([]string{"huge page pools (10 GiB)"}, none.Nodes[0].Holders); diff != "" {
		t.Errorf("holders of small pages:\n%s\n%s", diff, none.Text())
	}
	spec.PageSize = gib
	none = noFit(t, Request{Host: h, Spec: spec})
	if diff := cmp.Diff([]string{"db0 (8 GiB)"}, none.Nodes[0].Holders); diff != "" {
		t.Errorf("holders of pages of 1 GiB:\n%s\n%s", diff, none.Text())
	}
}

// The host does not have the node: the error names the field, the value and the allowed nodes.
func TestNoFit_NodesThatAreNotOnTheHost(t *testing.T) {
	spec := guest.Spec{Name: "web", VCPUs: 1, Memory: gib,
		Limits: guest.Limits{Nodes: topology.SetOf[topology.NodeID](7)}}
	none := noFit(t, Request{Host: fourNodes(), Spec: spec})
	want := "limits.nodes is 7; allowed: nodes of the host, 0-3"
	if !strings.Contains(none.Error(), want) || strings.Contains(none.Text(), "divided") {
		t.Errorf("want %q, and no division:\n%s", want, none.Text())
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	h := fourNodes()
	for want, r := range map[string]Request{
		"no inventory": {Spec: small("g")},
		"vcpus":        {Host: h, Spec: guest.Spec{Name: "g", Memory: gib}},
		"memory":       {Host: h, Spec: guest.Spec{Name: "g", VCPUs: 1}},
		"whole pages": {Host: h, Spec: guest.Spec{Name: "g", VCPUs: 1, Memory: 3 * topology.MiB,
			PageSize: 2 * topology.MiB}},
		"topology.count": {Host: h, Spec: guest.Spec{Name: "g", VCPUs: 1, Memory: gib,
			Topology: guest.TopologySpec{Mode: guest.TopologyCells}}},
		"topology.cells": {Host: h, Spec: guest.Spec{Name: "g", VCPUs: 3, Memory: gib,
			Topology: guest.TopologySpec{Mode: guest.TopologyCells, Cells: []guest.CellSpec{{VCPUs: 2, Memory: gib}}}}},
		"overcommit": {Host: h, Spec: small("g"), Policy: policy.Policy{Overcommit: 0.5}},
		"housekeeping CPU": {Host: h, Spec: guest.Spec{Name: "g", VCPUs: 1, Memory: gib,
			CPU: guest.CPUSpec{Emulator: guest.HelperHousekeeping}}},
	} {
		if _, _, err := Place(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error naming %q, got %v", want, err)
		}
	}
}
