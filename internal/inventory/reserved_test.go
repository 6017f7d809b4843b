package inventory

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

// threeNodes: nodes 0 and 4 with 4 CPUs and 8 GiB each, node 7 memory only.
func threeNodes() *Host {
	t := topology.Topology{}
	for i, id := range []topology.NodeID{0, 4} {
		first := topology.CPUID(4 * i)
		n := topology.Node{ID: id, Memory: 8 * gib, CPUs: topology.Range(first, first+3)}
		for c := range n.CPUs.All() {
			t.CPUs = append(t.CPUs, topology.CPU{ID: c, Node: id, Siblings: topology.SetOf(c)})
		}
		t.Nodes = append(t.Nodes, n)
	}
	t.Nodes = append(t.Nodes, topology.Node{ID: 7, Memory: 8 * gib})
	return &Host{Topology: t}
}

type row struct {
	Name     string
	Node     topology.NodeID
	Reserved topology.Bytes
	Seen     topology.Bytes
	VCPUs    float64
}

func rows(hs []Holding) []row {
	var out []row
	for _, h := range hs {
		out = append(out, row{h.Name, h.Node, h.Reserved, h.Seen, math.Round(h.VCPUs*1000) / 1000})
	}
	return out
}

func byNode(pairs ...any) topology.MemoryByNode {
	m := topology.MemoryByNode{}
	for i := 0; i < len(pairs); i += 2 {
		m[topology.NodeID(pairs[i].(int))] = topology.Bytes(pairs[i+1].(int)) * gib
	}
	return m
}

func TestHoldings(t *testing.T) {
	pin := func(s string) topology.CPUSet { return topology.MustParseSet[topology.CPUID](s) }
	nodes := func(s string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](s) }
	placement := func(name string, rs ...guest.Reservation) *guest.Placement {
		return &guest.Placement{Guest: name, CPUMode: guest.CPURange, Reservations: rs}
	}
	for name, c := range map[string]struct {
		guests []Guest
		claims []Claim
		ignore string
		want   []row
	}{
		"a placement counts untouched memory": {
			guests: []Guest{{Name: "a", Managed: true, Placement: placement("a", guest.Reservation{Node: 4,
				Memory: 4 * gib, VCPUs: 2}), Seen: Seen{MemoryByNode: byNode(4, 1)}}},
			want: []row{{"a", 4, 4 * gib, gib, 2}},
		},
		"memory on other nodes counts there": {
			guests: []Guest{{Name: "a", Managed: true, Placement: placement("a", guest.Reservation{Node: 4,
				Memory: 4 * gib, VCPUs: 2}), Seen: Seen{MemoryByNode: byNode(0, 2)}}},
			want: []row{{"a", 0, 0, 2 * gib, 0}, {"a", 4, 4 * gib, 0, 2}},
		},
		"shut off with a placement": {
			guests: []Guest{{Name: "a", State: "shutoff", Placement: placement("a", guest.Reservation{Node: 0,
				Memory: gib, VCPUs: 1})}},
			want: []row{{"a", 0, gib, 0, 1}},
		},
		"shut off without a placement": {
			guests: []Guest{{Name: "a", State: "shutoff", Config: Config{VCPUs: 2, Memory: gib}}},
		},
		"ignored": {
			guests: []Guest{{Name: "a", Placement: placement("a", guest.Reservation{Node: 0, Memory: gib, VCPUs: 1})}},
			claims: []Claim{{Name: "a", Placement: *placement("a", guest.Reservation{Node: 0, Memory: gib, VCPUs: 1})}},
			ignore: "a",
		},
		"being moved: the greater of claim and placement": {
			guests: []Guest{{Name: "a", Placement: placement("a", guest.Reservation{Node: 0, Memory: gib, VCPUs: 1})}},
			claims: []Claim{{Name: "a", Placement: *placement("a", guest.Reservation{Node: 0, Memory: 2 * gib,
				VCPUs: 1}, guest.Reservation{Node: 4, Memory: gib, VCPUs: 1})}},
			want: []row{{"a", 0, 2 * gib, 0, 1}, {"a", 4, gib, 0, 1}},
		},
		"unmanaged, numatune": {
			guests: []Guest{{Name: "a", Config: Config{VCPUs: 2, Memory: 4 * gib,
				NUMATune: &NUMATune{Nodes: nodes("4")}}, Seen: Seen{MemoryByNode: byNode(0, 1)}}},
			want: []row{{"a", 0, 0, gib, 0}, {"a", 4, 4 * gib, 0, 2}},
		},
		"unmanaged, memnodes": {
			guests: []Guest{{Name: "a", Config: Config{VCPUs: 2, Memory: 4 * gib,
				NUMATune: &NUMATune{Nodes: nodes("0,4"), Cells: []CellTune{{Cell: 0, Nodes: nodes("0")},
					{Cell: 1, Nodes: nodes("4")}}},
				Cells: []ConfigCell{{ID: 0, Memory: gib}, {ID: 1, Memory: 3 * gib}}}}},
			want: []row{{"a", 0, gib, 0, 1}, {"a", 4, 3 * gib, 0, 1}},
		},
		"unmanaged, pins": {
			guests: []Guest{{Name: "a", Config: Config{VCPUs: 2, Memory: 4 * gib,
				Pins: map[guest.VCPUID]topology.CPUSet{0: pin("4-7"), 1: pin("3-4")}}}},
			want: []row{{"a", 0, gib, 0, 0.5}, {"a", 4, 3 * gib, 0, 1.5}},
		},
		"unmanaged, by resident memory, scaled to the configured": {
			guests: []Guest{{Name: "a", Config: Config{VCPUs: 4, Memory: 8 * gib},
				Seen: Seen{MemoryByNode: byNode(0, 1, 4, 3)}}},
			want: []row{{"a", 0, 2 * gib, gib, 1}, {"a", 4, 6 * gib, 3 * gib, 3}},
		},
		"unmanaged, nothing known: all nodes with CPUs and memory": {
			guests: []Guest{{Name: "a", Config: Config{VCPUs: 3, Memory: 2 * gib}}},
			want:   []row{{"a", 0, gib, 0, 1.5}, {"a", 4, gib, 0, 1.5}},
		},
	} {
		h := threeNodes()
		h.Guests, h.Claims = c.guests, c.claims
		if diff := cmp.Diff(c.want, rows(h.Holdings(c.ignore))); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestHoldingsOfCPUs(t *testing.T) {
	h := threeNodes()
	h.Guests = []Guest{
		{
			Name: "alone",
			Placement: &guest.Placement{
				CPUMode: guest.CPUExclusive,
				Reservations: []guest.Reservation{
					{Node: 0, VCPUs: 2, Memory: gib, Exclusive: topology.Range[topology.CPUID](0, 1)}},
			},
		},
		{
			Name: "pinned",
			Config: Config{
				VCPUs:  1,
				Memory: gib,
				Pins:   map[guest.VCPUID]topology.CPUSet{0: topology.SetOf[topology.CPUID](3)},
			},
		},
	}
	hs := h.Holdings("")
	if hs[0].VCPUs != 0 || hs[0].Exclusive.String() != "0-1" {
		t.Errorf("exclusive vCPUs share nothing: %+v", hs[0])
	}
	if hs[1].VCPUs != 1 || hs[1].Pinned.String() != "3" {
		t.Errorf("a vCPU bound to one CPU is pinned: %+v", hs[1])
	}
	if hs[0].Untouched() != gib || hs[0].Memory() != gib {
		t.Errorf("untouched %v of %v", hs[0].Untouched(), hs[0].Memory())
	}
}
