package control

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// busyHost has guests of two vCPUs with the given demand, each on its node.
func busyHost(t *testing.T, machine string, on map[string]topology.NodeID, demand float64) *inventory.Host {
	t.Helper()
	top, err := topology.Synthetic(machine)
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Name: "h", Topology: top}
	for _, name := range []string{"a", "b", "c"} {
		cpus := top.CPUsOf(topology.SetOf(on[name]))
		g := inventory.Guest{Name: name, State: "running", PID: 1,
			Config: inventory.Config{VCPUs: 2, Memory: topology.GiB}}
		for v := range guest.VCPUID(2) {
			g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &v, Affinity: cpus,
				Mems: top.MemoryNodes()})
		}
		g.Seen.MemoryByNode = topology.MemoryByNode{on[name]: topology.GiB}
		g.Seen.Load = &inventory.GuestLoad{CPU: demand}
		h.Guests = append(h.Guests, g)
	}
	return h
}

// moved is a move of a guest to a node.
func moved(h *inventory.Host, name string, node topology.NodeID, saves float64, bytes topology.Bytes) plan.Move {
	nodes := topology.SetOf(node)
	p := guest.Placement{Guest: name, Nodes: nodes, CPUMode: guest.CPURange, MemoryMode: guest.MemoryPreferred,
		Emulator:     h.Topology.CPUsOf(nodes),
		Cells:        []guest.Cell{{Nodes: nodes, Memory: topology.GiB, VCPUs: topology.SetOf[guest.VCPUID](0, 1)}},
		Reservations: []guest.Reservation{{Node: node, Memory: topology.GiB, VCPUs: 2}}}
	for v := range guest.VCPUID(2) {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: v, CPUs: h.Topology.CPUsOf(nodes)})
	}
	return plan.Move{Guests: []plan.GuestMove{{Guest: name, Placement: p, Bytes: bytes}},
		Benefit: plan.Benefit{AccessCPUs: saves}, Cost: plan.Price{Bytes: bytes}}
}

func orderOf(moves []plan.Move) (text string) {
	for _, m := range moves {
		text += m.Guests[0].Guest
	}
	return text
}

// What copies nothing comes first, then what saves most per byte; but no move
// comes before another that makes room for its vCPUs.
func TestInOrder(t *testing.T) {
	on := map[string]topology.NodeID{"a": 0, "b": 1, "c": 2}
	const gib = topology.GiB
	for _, c := range []struct {
		name       string
		cores      string
		overcommit float64
		demand     float64
		moves      func(h *inventory.Host) []plan.Move
		want       string
	}{
		{"no bytes first", "8", 1, 0.5, func(h *inventory.Host) []plan.Move {
			return []plan.Move{moved(h, "a", 3, 2, gib), moved(h, "b", 0, 0.1, 0)}
		}, "ba"},
		{"most per byte first", "8", 1, 0.5, func(h *inventory.Host) []plan.Move {
			return []plan.Move{moved(h, "a", 3, 1, gib), moved(h, "b", 0, 3, 2*gib), moved(h, "c", 1, 1, 2*gib)}
		}, "bac"},
		{"a has promised CPUs that b needs", "2", 1, 0.5, func(h *inventory.Host) []plan.Move {
			return []plan.Move{moved(h, "a", 3, 1, 4*gib), moved(h, "b", 0, 3, 0), moved(h, "c", 1, 2, gib)}
		}, "abc"},
		{"a uses CPUs that b needs", "2", 2, 1.5, func(h *inventory.Host) []plan.Move {
			return []plan.Move{moved(h, "a", 3, 1, 4*gib), moved(h, "b", 0, 3, 0), moved(h, "c", 1, 2, gib)}
		}, "abc"},
	} {
		h := busyHost(t, "nodes:4 memory:16G cores:"+c.cores, on, c.demand)
		if got := orderOf(inOrder(h, policy.Policy{Overcommit: c.overcommit}, c.moves(h))); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A guest is repinned at once to a node with a CPU for each vCPU that is bound there, although
// the guest that is copied away may still run there, too.
func TestInOrder_ACPUForEachVCPU(t *testing.T) {
	h := busyHost(t, "nodes:4 memory:16G cores:4", map[string]topology.NodeID{"a": 0, "b": 1, "c": 0}, 2)
	for i := range h.Guests[2].Seen.Threads {
		h.Guests[2].Seen.Threads[i].Affinity = h.Topology.CPUsOf(topology.MustParseSet[topology.NodeID]("0-3"))
	}
	moves := []plan.Move{moved(h, "c", 3, 2, topology.GiB), moved(h, "b", 0, 1, 0)}
	if got := orderOf(inOrder(h, policy.Policy{}, moves)); got != "bc" {
		t.Errorf("%q, want b to be repinned before c is copied", got)
	}
}
