package place

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestSequencesNeverOverbind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 5)
		p := drawPolicy(t)
		var specs []guest.Spec
		var placements []guest.Placement
		for i := range 8 {
			s := drawSpec(t, h)
			s.Name = fmt.Sprint("g", i)
			placed, _, err := Place(Request{Host: h, Spec: s, Policy: p})
			if err != nil {
				continue
			}
			specs, placements = append(specs, s), append(placements, placed)
			settle(h, placed)
		}
		exclusive := topology.CPUSet{}
		for i, placed := range placements {
			if exclusive.Intersects(placed.Exclusive()) {
				t.Fatalf("CPUs %v were given twice", exclusive.Intersect(placed.Exclusive()))
			}
			exclusive = exclusive.Union(placed.Exclusive())
			for _, v := range check.Placement(h, p, specs[i], placed) {
				switch v.Rule {
				case check.RuleMemory, check.RuleHugePages, check.RuleOvercommit:
					t.Fatalf("after all were placed, %s: %v", placed.Guest, v)
				default: // rules of one placement, which are the same for other placements
				}
			}
		}
	})
}

// More room may make uneven cells worse: if memory in proportion to the vCPUs becomes
// possible, it is preferred. And parts of one vCPU are allowed to avoid overload only
// where the guest needs as many parts anyway.
func TestMoreRoomIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 5)
		r := Request{Host: h, Spec: drawSpec(t, h), Policy: drawPolicy(t)}
		p, before := solved(t, r)
		if before == nil || len(h.Guests) == 0 {
			return
		}
		fewer := *h
		fewer.Guests = h.Guests[:len(h.Guests)-1]
		r.Host = &fewer
		q, after := solved(t, r)
		switch {
		case after == nil:
			t.Fatal("a guest left, and nothing fits")
		case p.aim != q.aim || q.aim == noOverload || before.uneven:
			return
		}
		if headOf(after.key) > headOf(before.key) {
			t.Fatalf("a guest left, and the key rose from %d to %d", before.key, after.key)
		}
	})
}

// solved returns no solution if the guest does not fit.
func solved(t *rapid.T, r Request) (*problem, *solution) {
	p, err := newProblem(r)
	if err != nil {
		t.Fatal(err)
	}
	sol, _ := p.solve()
	return p, sol
}

// No preference for node 0: other ids, same cost.
func TestIdsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t, 5)
		r := Request{Host: h, Spec: drawSpec(t, h), Policy: drawPolicy(t)}
		ids := h.Topology.NodeSet().IDs()
		to := map[topology.NodeID]topology.NodeID{topology.NoNode: topology.NoNode}
		for i, id := range rapid.Permutation(ids).Draw(t, "permutation") {
			to[ids[i]] = id + 3
		}
		renamed := rename(h, to)
		if err := renamed.Topology.Validate(); err != nil {
			t.Fatal(err)
		}
		q := r
		q.Host = renamed
		q.Spec.Limits.Nodes = renameSet(r.Spec.Limits.Nodes, to)
		_, before := solved(t, r)
		_, after := solved(t, q)
		// Mirrored guests number their cells by node id, so the remainder of a division
		// goes to another cell.
		if r.Spec.Topology.Mode == guest.TopologyMirror {
			return
		}
		if (before == nil) != (after == nil) || before != nil && before.key != after.key {
			t.Fatalf("%+v became %+v under other ids", before, after)
		}
	})
}

func renameSet(s topology.NodeSet, to map[topology.NodeID]topology.NodeID) topology.NodeSet {
	var ids []topology.NodeID
	for id := range s.All() {
		ids = append(ids, to[id])
	}
	return topology.SetOf(ids...)
}

// rename gives the nodes of a host other ids.
func rename(h *inventory.Host, to map[topology.NodeID]topology.NodeID) *inventory.Host {
	out := *h
	t := &out.Topology
	t.Nodes = slices.Clone(t.Nodes)
	for i := range t.Nodes {
		n := &t.Nodes[i]
		n.ID = to[n.ID]
		n.Distances = renameKeys(n.Distances, to)
		n.Classes = renameKeys(n.Classes, to)
	}
	slices.SortFunc(t.Nodes, func(a, b topology.Node) int { return int(a.ID - b.ID) })
	t.CPUs = slices.Clone(t.CPUs)
	for i := range t.CPUs {
		t.CPUs[i].Node = to[t.CPUs[i].Node]
	}
	t.Devices = slices.Clone(t.Devices)
	for i := range t.Devices {
		t.Devices[i].Node = to[t.Devices[i].Node]
	}
	if t.Measured != nil {
		m := *t.Measured
		m.Nodes = slices.Clone(m.Nodes)
		for i := range m.Nodes {
			m.Nodes[i] = to[m.Nodes[i]]
		}
		t.Measured = &m
	}
	out.Guests = slices.Clone(h.Guests)
	for i := range out.Guests {
		g := &out.Guests[i]
		g.Seen.MemoryByNode = renameKeys(g.Seen.MemoryByNode, to)
		if g.Config.NUMATune != nil {
			tune := *g.Config.NUMATune
			tune.Nodes = renameSet(tune.Nodes, to)
			g.Config.NUMATune = &tune
		}
		if g.Placement != nil {
			p := *g.Placement
			p.Reservations = slices.Clone(p.Reservations)
			for j := range p.Reservations {
				p.Reservations[j].Node = to[p.Reservations[j].Node]
			}
			g.Placement = &p
		}
	}
	return &out
}

func renameKeys[V any](m map[topology.NodeID]V, to map[topology.NodeID]topology.NodeID) map[topology.NodeID]V {
	out := map[topology.NodeID]V{}
	for k, v := range m {
		out[to[k]] = v
	}
	return out
}

// TestObjectiveAgreesWithTheDocumentation computes the objective in plain floating point from the
// package comments alone, for every choice of nodes that package check finds
// legal, and compares the least with Place's answer.
func TestObjectiveAgreesWithTheDocumentation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &inventory.Host{Name: "plain", Topology: made(shape{
			nodes: rapid.IntRange(1, 4).Draw(t, "nodes"), cpus: 4, threads: rapid.IntRange(1, 2).Draw(t, "threads"),
			memory: 8 * gib, perSocket: 2, near: 16, far: 28,
		})}
		for i := range rapid.IntRange(0, 4).Draw(t, "others") {
			n := rapid.SampledFrom(h.Topology.Nodes).Draw(t, "node")
			settle(h, guest.Placement{Guest: fmt.Sprint("o", i), Reservations: []guest.Reservation{{
				Node: n.ID, VCPUs: rapid.IntRange(0, 3).Draw(t, "load"), Memory: topology.Bytes(rapid.IntRange(0,
					3).Draw(t, "held")) * gib,
			}}})
		}
		spec := guest.Spec{
			Name: "new", VCPUs: rapid.IntRange(1, 9).Draw(t, "vcpus"), Memory: topology.Bytes(rapid.IntRange(1,
				9).Draw(t, "memory")) * gib,
		}
		best := byDocumentation(h, spec)
		placed, why, err := Place(Request{Host: h, Spec: spec})
		if err != nil {
			if best.found {
				t.Fatalf("no room, but %+v is legal", best)
			}
			return
		}
		if len(placed.Cells) > 1 && !evenCells(placed.Cells) || len(placed.Cells) < placed.Nodes.Len() {
			return // the book has equal cells only; the oracle knows uneven ones
		}
		got := objective{found: true, sharing: why.SharingCores, nodes: placed.Nodes.Len(), cost: why.Cost}
		if !best.found || got.sharing != best.sharing || got.nodes != best.nodes ||
			math.Abs(got.cost-best.cost) > 1e-4 {
			t.Fatalf("placed at %+v, by the documentation the best is %+v\n%s", got, best, why.Text())
		}
	})
}

func evenCells(cells []guest.Cell) bool {
	for _, c := range cells {
		if d := c.VCPUs.Len() - cells[0].VCPUs.Len(); d < -1 || d > 0 || c.Memory > cells[0].Memory ||
			c.Memory+topology.MiB < cells[0].Memory {
			return false
		}
	}
	return true
}

type objective struct {
	found          bool
	sharing, nodes int
	cost           float64
	overload       int
	lone           int // parts with less than two vCPUs, of several
}

func (o objective) better(than objective) bool {
	switch {
	case !than.found:
		return true
	case o.sharing != than.sharing:
		return o.sharing < than.sharing
	case o.nodes != than.nodes:
		return o.nodes < than.nodes
	}
	return o.cost < than.cost
}

func byDocumentation(h *inventory.Host, spec guest.Spec) objective {
	var best, within objective
	var all []objective
	for k := 1; k <= min(len(h.Topology.Nodes), spec.VCPUs); k++ {
		choices(len(h.Topology.Nodes), k, func(at []int) {
			placed := documentedPlacement(h, spec, at)
			if len(check.Placement(h, policy.Policy{}, spec, placed)) > 0 {
				return
			}
			o := documentedCost(h, spec, &placed, at)
			all = append(all, o)
			if o.better(best) {
				best = o
			}
		})
	}
	if best.overload == 0 {
		return best
	}
	for _, o := range all {
		if o.overload == 0 && (o.lone == 0 || o.nodes <= best.nodes) && o.better(within) {
			within = o
		}
	}
	if within.found {
		return within
	}
	least := objective{}
	for _, o := range all {
		sharing := o.sharing
		o.sharing += 2*o.overload + o.lone
		if o.better(least) {
			least = o
			least.overload = sharing
		}
	}
	least.sharing = least.overload
	return least
}

// choices calls f with every ordered choice of k out of n.
func choices(n, k int, f func([]int)) {
	at := make([]int, 0, k)
	var try func()
	try = func() {
		if len(at) == k {
			f(at)
			return
		}
		for i := range n {
			if !slices.Contains(at, i) {
				at = append(at, i)
				try()
				at = at[:len(at)-1]
			}
		}
	}
	try()
}

// documentedPlacement divides the guest into equal cells on the given nodes.
func documentedPlacement(h *inventory.Host, spec guest.Spec, at []int) guest.Placement {
	p := guest.Placement{
		Guest:      spec.Name,
		CPUMode:    guest.CPURange,
		MemoryMode: guest.MemoryPreferred,
		Visible:    len(at) > 1,
	}
	k := len(at)
	id := guest.VCPUID(0)
	for i, pos := range at {
		n := h.Topology.Nodes[pos]
		vcpus := spec.VCPUs / k
		if i < spec.VCPUs%k {
			vcpus++
		}
		mebi := int(spec.Memory / topology.MiB)
		memory := topology.Bytes(mebi/k) * topology.MiB
		if i < mebi%k {
			memory += topology.MiB
		}
		cell := guest.Cell{
			ID:     guest.CellID(i),
			VCPUs:  topology.Range(id, id+guest.VCPUID(vcpus)-1),
			Memory: memory,
			Nodes:  topology.SetOf(n.ID),
		}
		for j := range at {
			if p.Visible {
				cell.Distances = append(cell.Distances, n.Distances[h.Topology.Nodes[at[j]].ID])
			}
		}
		p.Cells = append(p.Cells, cell)
		p.Nodes = p.Nodes.With(n.ID)
		for range vcpus {
			p.VCPUs = append(p.VCPUs, guest.VCPU{ID: id, CPUs: n.CPUs})
			p.Emulator = p.Emulator.Union(n.CPUs)
			id++
		}
		p.Reservations = append(p.Reservations, guest.Reservation{Node: n.ID, Memory: memory, VCPUs: vcpus})
	}
	return p
}

func documentedCost(h *inventory.Host, spec guest.Spec, p *guest.Placement, at []int) objective {
	w := policy.DefaultWeights
	o := objective{found: true, nodes: len(at)}
	threads := h.Topology.CPUs[0].Siblings.Len()
	for i, c := range p.Cells {
		n := h.Topology.Nodes[at[i]]
		cpu, memory := float64(c.VCPUs.Len())/float64(spec.VCPUs), float64(c.Memory)/float64(spec.Memory)
		o.sharing += max(0, c.VCPUs.Len()-4/threads)
		if len(at) > 1 && c.VCPUs.Len() < 2 {
			o.lone++
		}
		for j, d := range p.Cells {
			slit := n.Distances[h.Topology.Nodes[at[j]].ID]
			o.cost += w.Latency * cpu * float64(d.Memory) / float64(
				spec.Memory) * (math.Pow(float64(slit)/10, 0.65) - 1)
		}
		room := float64(n.Memory - policy.Policy{}.WithDefaults().KeepFreeOn(&n))
		before := documentedUse(h, at[i])
		after := [2]float64{before[0] + float64(c.VCPUs.Len())/4, before[1] + float64(c.Memory)/room}
		o.overload += max(0, min(c.VCPUs.Len(), int(4*before[0]+0.5)+c.VCPUs.Len()-4))
		wait := after[0]
		if wait > 1 {
			wait *= wait
		}
		o.cost += w.Load * (cpu*wait + memory*after[1]) / 2 // in full, with overcommit 2
		left := func(use [2]float64) float64 { return math.Abs(max(0, 1-use[0]) - max(0, 1-use[1])) }
		o.cost += w.Stranding * (left(after) - left(before)) / float64(len(at))
		o.cost += 0.1 * w.WideRoom * documentedRoom(h, at[i], before, after)
	}
	return o
}

// documentedRoom is the room that typical cells lose if the use of a node changes.
func documentedRoom(h *inventory.Host, at int, before, after [2]float64) float64 {
	lost := 0.1 * (max(0, 2-after[0]) + max(0, 1-after[1]))
	for _, c := range typical {
		count := func(use [2]float64) float64 {
			return math.Floor(min(max(0, 2-use[0])/c.cpus, max(0, 1-use[1])/c.memory) + 1e-6)
		}
		pairs := func(own float64) float64 {
			neighbour := at ^ 1 // two nodes to a socket
			if neighbour >= len(h.Topology.Nodes) {
				return 0
			}
			return min(own, count(documentedUse(h, neighbour)))
		}
		lost += c.cpus / 8 * (count(before) - count(after) + 0.4*(pairs(count(before))-pairs(count(after))))
	}
	return lost
}

// documentedUse is the promised shares of CPUs and memory of a node of 4 CPUs.
func documentedUse(h *inventory.Host, at int) [2]float64 {
	n := &h.Topology.Nodes[at]
	load, held := 0.0, 0.0
	for _, g := range h.Guests {
		for _, r := range g.Placement.Reservations {
			if r.Node == n.ID {
				load, held = load+float64(r.VCPUs), held+float64(r.Memory)
			}
		}
	}
	return [2]float64{load / 4, held / float64(n.Memory-policy.Policy{}.WithDefaults().KeepFreeOn(n))}
}

func TestKeysContainTheirFigures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sharing := rapid.IntRange(0, 4095).Draw(t, "shared cores")
		nodes := rapid.IntRange(1, 1000).Draw(t, "nodes")
		amount := cost.Micro(rapid.Int64Range(-30_000_000_000, 30_000_000_000).Draw(t, "cost"))
		k := key(sharing)<<sharingBit + key(nodes)<<nodesBit + key(amount)
		if shortfallOf(k) != sharing || costOf(k) != amount || k >= impossible {
			t.Fatalf("%d sharing, %d nodes, cost %d became %d, %d", sharing, nodes, amount, shortfallOf(k), costOf(k))
		}
	})
}
