package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const gib = topology.GiB

// machine is an idle host made from one line.
func machine(description string) *inventory.Host {
	t, err := topology.Synthetic(description)
	if err != nil {
		panic(err)
	}
	return &inventory.Host{Version: inventory.Version, Name: "host", Taken: noon, Topology: t}
}

// vm describes a guest of a test.
type vm struct {
	name       string
	vcpus      int
	memory     topology.Bytes
	cpus       []topology.NodeID // nodes that its vCPUs may run on
	memOn      topology.MemoryByNode
	used, wait float64 // CPUs
	mbps       float64
	change     func(*inventory.Guest) // what else is special
	spec       func(*guest.Spec)
	unmeasured bool
	notOurs    bool
}

func on(n ...topology.NodeID) []topology.NodeID { return n }

// add puts a guest on the host: as Numavisor would have placed it on its
// vCPUs' nodes, its memory wherever it is.
func add(h *inventory.Host, v vm) {
	if v.memOn == nil {
		v.memOn = topology.MemoryByNode{v.cpus[0]: v.memory}
	}
	s := guest.Spec{
		Name:     v.name,
		VCPUs:    v.vcpus,
		Memory:   v.memory,
		Topology: guest.TopologySpec{Mode: guest.TopologyOff},
	}
	if v.spec != nil {
		v.spec(&s)
	}
	s, err := s.Normalize()
	if err != nil {
		panic(err)
	}
	g := inventory.Guest{
		Name: v.name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU), State: "running",
		Managed: !v.notOurs,
		Config:  inventory.Config{VCPUs: v.vcpus, Memory: v.memory, PageSize: s.PageSize, Source: "memfd"},
	}
	nodes := topology.SetOf(v.cpus...)
	cpus := h.Topology.CPUsOf(nodes)
	for i := range v.vcpus {
		id := guest.VCPUID(i)
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id, Affinity: cpus})
	}
	g.Seen.MemoryByNode = v.memOn
	for n, b := range v.memOn {
		node, _ := h.Topology.Node(n)
		allocate(node, s.PageSize, b)
	}
	if !v.notOurs {
		g.Spec = &s
		p := handmade(h, s, v.cpus)
		g.Placement = &p
	}
	if !v.unmeasured {
		g.Seen.Load = &inventory.GuestLoad{Window: time.Minute, CPU: v.used, Wait: v.wait, MemoryMBps: v.mbps}
	}
	if v.change != nil {
		v.change(&g)
	}
	h.Guests = append(h.Guests, g)
}

// handmade is the placement of a range-bound guest on nodes, in equal parts,
// whether there is room or not.
func handmade(h *inventory.Host, s guest.Spec, nodes []topology.NodeID) guest.Placement {
	p := guest.Placement{
		Guest:      s.Name,
		CPUMode:    guest.CPURange,
		MemoryMode: s.Binding.Mode,
		PageSize:   s.PageSize,
		Movable:    true,
		Nodes:      topology.SetOf(nodes...),
	}
	cells := len(nodes)
	visible := s.Topology.Mode == guest.TopologyCells
	p.Visible = visible
	for i := range s.VCPUs {
		home := topology.SetOf(nodes...)
		if visible {
			home = topology.SetOf(nodes[i*cells/s.VCPUs])
		}
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: h.Topology.CPUsOf(home)})
	}
	each := s.VCPUs / cells
	for i, n := range nodes {
		p.Reservations = append(p.Reservations,
			guest.Reservation{Node: n, Memory: s.Memory / topology.Bytes(cells), PageSize: s.PageSize, VCPUs: each})
		if visible {
			p.Cells = append(p.Cells, guest.Cell{
				ID: guest.CellID(i), Memory: s.Memory / topology.Bytes(cells), Nodes: topology.SetOf(n),
				VCPUs: topology.Range(guest.VCPUID(i*each), guest.VCPUID((i+1)*each-1)),
			})
		}
	}
	if !visible {
		p.Cells = []guest.Cell{{Memory: s.Memory, Nodes: p.Nodes, VCPUs: topology.Range(0, guest.VCPUID(s.VCPUs-1))}}
	}
	return p
}

// planned plans what has lasted long enough, and checks that every state on the way is legal.
func planned(t testing.TB, h *inventory.Host, p policy.Policy) plan.Plan {
	t.Helper()
	round, err := Plan(Request{Host: h, Policy: p, Now: noon, Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	legal(t, h, p, round)
	return round
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// legal carries a round out move by move and checks each guest that moved by
// the rules of placing, with all others where they are then.
func legal(t fataler, h *inventory.Host, p policy.Policy, round plan.Plan) inventory.Host {
	t.Helper()
	now := *h
	for i, m := range round.Moves {
		before, eased := now, withCredit(&now, now.Holdings(""), p)
		now, eased = carriedOut(now, m), carriedOut(eased, m)
		if crowded := crowdedMore(&before, &now, p); crowded != "" {
			t.Fatalf("after move %d (%s): %s\n%s", i+1, m, crowded, round.Text())
		}
		for _, g := range m.Guests {
			for _, have := range now.Guests {
				if have.Name == g.Guest {
					broken := slices.DeleteFunc(check.Placement(&eased, p, *have.Spec, g.Placement),
						func(v check.Violation) bool { return v.Rule == check.RuleOvercommit })
					if len(broken) > 0 {
						t.Fatalf("after move %d (%s): %v\n%s", i+1, m, check.Error(g.Guest, broken), round.Text())
					}
				}
			}
		}
	}
	if round.After > round.Before+1e-6 {
		t.Fatalf("the plan makes it worse: cost %v, was %v\n%s", round.After, round.Before, round.Text())
	}
	return now
}

// crowdedMore names a node that has more vCPUs beyond the policy's limit than before.
func crowdedMore(before, after *inventory.Host, p policy.Policy) string {
	beyond := func(h *inventory.Host, n *topology.Node) (sum float64) {
		shared := n.CPUs.Minus(h.Topology.Housekeeping.Union(p.Housekeeping))
		for _, held := range h.Holdings("") {
			shared = shared.Minus(held.Exclusive)
			if held.Node == n.ID {
				sum += held.VCPUs
			}
		}
		return sum - p.WithDefaults().Overcommit*float64(shared.Len())
	}
	for i := range before.Topology.Nodes {
		n := &before.Topology.Nodes[i]
		if was, is := beyond(before, n), beyond(after, n); is > max(0, was)+1e-6 {
			return fmt.Sprintf("node %d has %.4g vCPUs too many, and had %.4g", n.ID, is, was)
		}
	}
	return ""
}

// carriedOut is the host after a move.
func carriedOut(h inventory.Host, m plan.Move) inventory.Host {
	type removed struct {
		guest inventory.Guest
		spec  guest.Spec
	}
	var all []removed
	for _, g := range m.Guests {
		var one inventory.Guest
		h, one = without(h, g.Guest)
		s := specOf(&one)
		all = append(all, removed{one, s})
	}
	for i, g := range m.Guests {
		h = with(h, all[i].guest, all[i].spec, g.Placement)
	}
	return h
}

// goesTo returns the nodes that a round gives a guest; empty if it stays.
func goesTo(r plan.Plan, name string) topology.NodeSet {
	for _, m := range r.Moves {
		for _, g := range m.Guests {
			if g.Guest == name {
				return g.Placement.Nodes
			}
		}
	}
	return topology.NodeSet{}
}
