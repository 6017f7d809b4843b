package migrate

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// free is what is left on a node: vCPUs and GiB.
type free struct{ vcpus, gib int }

// fitsElsewhere is the oracle: it tries each node of each other host for each VM of a host.
func (w *world) fitsElsewhere(host int) bool {
	var nodes []free
	for i, h := range w.hosts {
		for _, n := range h.Topology.Nodes {
			left := free{n.CPUs.Len(), int(n.Memory / gib)}
			for _, v := range w.vms {
				if v.host == i && v.placement.Nodes.Contains(n.ID) {
					left.vcpus -= v.spec.VCPUs
					left.gib -= int(v.spec.Memory / gib)
				}
			}
			if i != host {
				nodes = append(nodes, left)
			}
		}
	}
	var move []*vm
	for _, v := range w.vms {
		if v.host == host {
			move = append(move, v)
		}
	}
	var try func(k int) bool
	try = func(k int) bool {
		if k == len(move) {
			return true
		}
		need := free{move[k].spec.VCPUs, int(move[k].spec.Memory / gib)}
		for n := range nodes {
			if nodes[n].vcpus < need.vcpus || nodes[n].gib < need.gib {
				continue
			}
			nodes[n] = free{nodes[n].vcpus - need.vcpus, nodes[n].gib - need.gib}
			ok := try(k + 1)
			nodes[n] = free{nodes[n].vcpus + need.vcpus, nodes[n].gib + need.gib}
			if ok {
				return true
			}
		}
		return false
	}
	return try(0)
}

// A drain empties the host if that is possible, and every step is legal.
func TestDrain_EqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, whole, 10)
		d, err := Drain(w.request(), "h0")
		if err != nil {
			t.Fatal(err)
		}
		possible := w.fitsElsewhere(0)
		if empties := len(d.Blocked) == 0; empties != possible && (empties || d.Proven) {
			t.Fatalf("possible: %v; blocked %+v, proven %v", possible, d.Blocked, d.Proven)
		}
		f := w.fleet()
		begun := 0
		for _, m := range d.Migrations {
			legal(t, f, w.policy, m)
			if !m.Waits {
				begun++
			}
		}
		if begun != min(1, len(d.Migrations)) {
			t.Fatalf("%d migrations begin at once", begun)
		}
	})
}

func TestHeadroom_EqualsBruteForce(t *testing.T) {
	proven, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, whole, 12)
		for i, h := range Headroom(w.fleet(), nil) {
			fits := len(h.Missing) == 0
			all++
			if fits || h.Proven {
				proven++
			}
			if possible := w.fitsElsewhere(i); fits != possible && (fits || h.Proven) {
				t.Fatalf("%s: possible: %v; missing %+v, proven %v", h.Host, possible, h.Missing, h.Proven)
			}
		}
	})
	if all >= 100 && proven*10 < all*8 {
		t.Errorf("only %d of %d answers are proven", proven, all)
	}
}

func TestDrain_NamesWhatStays(t *testing.T) {
	w := crowded(t)
	w.vms[0].devices = []string{"0000:01:00.0"}
	w.run(0, oneNode("large", 2, 8), 1, 1)
	for i := range 2 {
		w.run(1, oneNode([]string{"x", "y"}[i], 1, 9), 0, topology.NodeID(i))
	}
	d, err := Drain(w.request(), "h0")
	if err != nil || len(d.Blocked) != 2 || d.Blocked[0].Kind != Devices || d.Blocked[1].Kind != NoHost ||
		d.Blocked[1].VM != "large" || !d.Proven || len(d.Migrations) != 5 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := Drain(w.request(), "h9"); err == nil {
		t.Error("an unknown host is no error")
	}
}

// A mirrored VM stays on a host that is drained, with the reason.
func TestDrain_AMirroredVMStays(t *testing.T) {
	w := crowded(t)
	w.vms[0].placement.Handoff = &guest.Handoff{Min: 1, Weight: 1}
	d, err := Drain(w.request(), "h0")
	if err != nil || len(d.Blocked) != 1 || d.Blocked[0].Kind != Mirrored || d.Blocked[0].VM != w.vms[0].spec.Name ||
		!strings.Contains(d.Blocked[0].Why, "mirrors the CPUs of its host") {
		t.Errorf("%+v, %v", d.Blocked, err)
	}
}

// A VM with a device of its host has no headroom.
func TestHeadroom_Devices(t *testing.T) {
	w := newWorld(t, whole, "nodes:1 cores:4 memory:8G", "nodes:1 cores:4 memory:8G")
	v, _ := w.run(0, oneNode("vm", 1, 1), 1, 0)
	v.devices = []string{"0000:01:00.0"}
	h := Headroom(w.fleet(), nil)
	if len(h) != 2 || len(h[0].Missing) != 1 || h[0].VMs != 1 || !h[0].Proven || len(h[1].Missing) != 0 {
		t.Errorf("%+v", h)
	}
}
