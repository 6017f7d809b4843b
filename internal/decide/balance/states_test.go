package balance

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// drawState draws a host in any state: guests of all sorts anywhere, nodes
// overbound, memory strayed.
func drawState(t *rapid.T) (*inventory.Host, policy.Policy) {
	nodes := rapid.IntRange(2, 5).Draw(t, "nodes")
	dry := rapid.IntRange(0, 1).Draw(t, "without CPUs")
	layout := rapid.SampledFrom([]string{"square", "flat"}).Draw(t, "layout")
	h := machine(fmt.Sprintf("nodes:%d cores:4 threads:%d memory:16G memory-only:%d huge:2M=1024 distances:10,16,28 %s",
		nodes+dry, rapid.IntRange(1, 2).Draw(t, "threads"), dry, layout))
	node := func(label string, from int) topology.NodeID {
		return topology.NodeID(rapid.IntRange(0, from-1).Draw(t, label))
	}
	p := policy.Policy{
		Balance: policy.Balance{
			Guests:         map[string]policy.Mode{},
			GuestsPerRound: rapid.IntRange(0, 6).Draw(t, "budget"),
		},
	}
	for i := range rapid.IntRange(1, 9).Draw(t, "guests") {
		v := vm{
			name:   fmt.Sprintf("g%d", i),
			vcpus:  rapid.IntRange(1, 8).Draw(t, "vcpus"),
			memory: topology.Bytes(rapid.IntRange(1, 6).Draw(t, "memory")) * gib,
		}
		v.cpus = on(node("runs", nodes))
		wide := rapid.IntRange(0, 4).Draw(t, "wide") == 4
		if second := node("second", nodes); wide && second != v.cpus[0] {
			v.cpus = append(v.cpus, second)
			v.vcpus += v.vcpus % 2
			if v.memory%(2*gib) != 0 {
				v.memory += gib
			}
		}
		v.memOn = topology.MemoryByNode{}
		for left := v.memory; left > 0; {
			part := min(left, topology.Bytes(rapid.IntRange(1, 6).Draw(t, "part"))*gib)
			v.memOn[node("lies", nodes+dry)] += part
			left -= part
		}
		v.used = float64(v.vcpus) * rapid.Float64Range(0, 1).Draw(t, "used")
		v.wait = (float64(v.vcpus) - v.used) * rapid.Float64Range(0, 1).Draw(t, "wait")
		v.unmeasured = rapid.Bool().Draw(t, "unmeasured")
		cells := rapid.Bool().Draw(t, "cells")
		v.spec = func(s *guest.Spec) {
			s.PageSize = rapid.SampledFrom([]topology.Bytes{0, 0, 2 * topology.MiB}).Draw(t, "pages")
			s.Limits.Nodes = rapid.SampledFrom([]topology.NodeSet{{}, {}, {}, topology.SetOf[topology.NodeID](0, 1)}).
				Draw(t, "limits")
			if cells && len(v.cpus) == 2 {
				s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2}
			}
		}
		vfio := rapid.IntRange(0, 5).Draw(t, "vfio") == 5
		v.change = func(g *inventory.Guest) {
			if vfio {
				g.Config.Devices = []string{"0000:01:00.0"}
			}
		}
		if mode := rapid.SampledFrom([]policy.Mode{"", "", policy.ModeOff, policy.ModeAdvise}).Draw(t,
			"mode"); mode != "" {
			p.Balance.Guests[v.name] = mode
		}
		add(h, v)
	}
	return h, p
}

func TestPlan_IntermediateStatesAreLegal(t *testing.T) {
	moves := 0
	rapid.Check(t, func(t *rapid.T) {
		h, p := drawState(t)
		round, err := Plan(Request{Host: h, Policy: p, Now: noon, Lasting: true})
		if err != nil {
			t.Fatal(err)
		}
		moves += len(round.Moves)
		after := legal(t, h, p, round) // also: never worse
		after.Guests = slices.Clone(after.Guests)
		for i := range after.Guests { // a wait that was measured on other nodes says nothing now
			if l := after.Guests[i].Seen.Load; l != nil {
				now := *l
				now.CPU, now.Wait = l.Demand(), 0
				after.Guests[i].Seen.Load = &now
			}
		}
		seen := newModel(Request{Host: &after, Policy: p, Now: noon}).total()
		if len(round.Moves) > 0 && seen > round.Before+1e-6 {
			t.Fatalf("observed again, the host costs %v, want %v\n%s", seen, round.Before, round.Text())
		}
		for _, m := range round.Moves {
			for _, g := range m.Guests {
				mode := p.Balance.ModeOf(g.Guest, true)
				if mode == policy.ModeOff || mode == policy.ModeAdvise && !m.Advised {
					t.Fatalf("%s is in mode %s: %s", g.Guest, mode, m)
				}
			}
		}
		again, _ := Plan(Request{Host: h, Policy: p, Now: noon, Lasting: true})
		if again.Text() != round.Text() {
			t.Fatalf("the same request gave another plan:\n%s\n%s", round.Text(), again.Text())
		}
	})
	if moves == 0 {
		t.Error("no state had anything to move: the test proves nothing")
	}
}

// A plan does not revert the plan before it: even without the history of moves,
// repeated planning ends with no move.
func TestRoundsSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, p := drawState(t)
		p.Balance.Guests = nil
		now := *h
		cost := 0.0
		for i := range 30 {
			round, err := Plan(Request{Host: &now, Policy: p, Now: noon, Lasting: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(round.Moves) == 0 {
				return
			}
			if i > 0 && round.Before > cost+1e-6 {
				t.Fatalf("round %d begins at %v, the last was to end at %v", i, round.Before, cost)
			}
			now = legal(t, &now, p, round)
			for k := range now.Guests { // it waits no more than its node makes it
				now.Guests[k].Seen.Load = nil
			}
			cost = newModel(Request{Host: &now, Policy: p, Now: noon}).total()
		}
		t.Fatal("30 rounds have not settled it")
	})
}

// The states that the search returns respect the limits: no node's CPUs are
// filled beyond the limit, and no memory is promised twice. This includes searches
// in which guests leave a node and return.
func TestSearch_RespectsLimits(t *testing.T) {
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		h, p := drawState(t)
		m := newModel(Request{Host: h, Policy: p, Now: noon, Lasting: true})
		m.markDegraded(Request{Host: h, Policy: p, Now: noon, Lasting: true})
		var movable []int
		for i := range m.guests {
			if !m.guests[i].fixed() {
				movable = append(movable, i)
			}
		}
		for wanted := range m.targets(movable, 16) {
			found += len(wanted)
			if _, ok := m.try(wanted...); !ok {
				t.Fatalf("%swanted is what cannot be: %v", described(h), wanted)
			}
		}
	})
	if found == 0 {
		t.Error("nothing was found anywhere: the test proves nothing")
	}
}

// A VM that goes by way of the most crowded node may not fill its target more than one
// that goes there directly.
func TestSearch_DetoursAvoidNoLimit(t *testing.T) {
	h := machine("nodes:4 cores:4 threads:2 memory:16G huge:2M=1024 distances:10,16,28 square")
	lies := func(gibs ...topology.Bytes) topology.MemoryByNode {
		by := topology.MemoryByNode{}
		for n, b := range gibs {
			if b > 0 {
				by[topology.NodeID(n)] = b * gib
			}
		}
		return by
	}
	huge := func(s *guest.Spec) { s.PageSize = 2 * topology.MiB }
	near := func(s *guest.Spec) { s.Limits.Nodes = topology.SetOf[topology.NodeID](0, 1) }
	hugeNear := func(s *guest.Spec) { huge(s); near(s) }
	stays := func(g *inventory.Guest) { g.Config.Devices = []string{"0000:01:00.0"} }
	add(h, vm{name: "g0", vcpus: 8, memory: 4 * gib, cpus: on(0, 2), memOn: lies(0, 1, 3), unmeasured: true, spec: huge})
	add(h, vm{name: "g1", vcpus: 4, memory: 4 * gib, cpus: on(3), memOn: lies(4), used: 1, wait: 3})
	add(h, vm{name: "g2", vcpus: 4, memory: gib, cpus: on(1), memOn: lies(0, 0, 0, 1), unmeasured: true, spec: near, change: stays})
	add(h, vm{name: "g3", vcpus: 8, memory: 2 * gib, cpus: on(0, 2), memOn: lies(0, 2), wait: 8 * 0.00010976776134715219})
	add(h, vm{name: "g4", vcpus: 5, memory: 4 * gib, cpus: on(3), memOn: lies(3, 1), unmeasured: true, change: stays})
	add(h, vm{name: "g5", vcpus: 5, memory: 2 * gib, cpus: on(0), memOn: lies(0, 2), unmeasured: true, spec: hugeNear})
	add(h, vm{name: "g6", vcpus: 5, memory: 2 * gib, cpus: on(2), memOn: lies(2), unmeasured: true})
	add(h, vm{name: "g7", vcpus: 1, memory: 3 * gib, cpus: on(3), memOn: lies(0, 0, 3), used: 0.004425338353030384, spec: huge})
	add(h, vm{name: "g8", vcpus: 6, memory: gib, cpus: on(1), memOn: lies(0, 1), unmeasured: true})
	r := Request{Host: h, Now: noon, Lasting: true,
		Policy: policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"g0": "off", "g6": "off"}}}}
	m := newModel(r)
	m.markDegraded(r)
	for wanted := range m.targets([]int{1, 2, 3, 4, 5, 7, 8}, 16) {
		if _, ok := m.try(wanted...); !ok {
			t.Errorf("%swanted is what cannot be: %v", described(h), wanted)
		}
	}
}
