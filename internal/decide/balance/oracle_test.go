package balance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// oracle is a second opinion on hosts of 2 and 3 nodes with 2 to 4 guests of
// one node each. It tries every assignment of the guests to nodes, and knows
// only the conditions of docs/daemon.md ("When a VM is moved"), not the price
// list: it judges distances and shares of CPUs in use as they are. It is therefore
// sure only of clear cases. The rest is a band in which any plan passes.
type oracle struct {
	host   *inventory.Host
	policy policy.Policy // with defaults
	guests []occupant
}

// occupant is where one guest is, and what it asks for.
type occupant struct {
	run, mem topology.NodeID
	vcpus    int
	memory   topology.Bytes
	demand   float64 // CPUs used and waited for
	wait     float64 // share of the demand
}

// mildShare is the share of the threshold from which a lasting wait counts as well.
const mildShare = 0.5

// stay is a guest's target if it is not moved.
const stay topology.NodeID = -1

// figures are what a guest notices of an assignment.
type figures struct {
	far float64 // SLIT distance of its memory over the local distance, less 1
	cpu float64 // demand for the CPUs of its node over these CPUs
}

func (f figures) sum() float64 { return f.far + f.cpu }

// state is the host after an assignment.
type state struct {
	guests []figures
	cpu    []float64 // demand over CPUs, by node
	gains  []bool    // a guest is moved to the node
	roomy  []bool    // a CPU for each vCPU, by node
	fits   bool      // memory and vCPUs, on every node that a guest is moved to
}

// after computes the host's state. reserved counts memory on the node where a
// guest runs as well as where it is; without it, only where it is, and a node that has too
// many vCPUs already may have as many.
func (o *oracle) after(to []topology.NodeID, reserved bool) state {
	nodes := o.host.Topology.Nodes
	s := state{cpu: make([]float64, len(nodes)), gains: make([]bool, len(nodes)),
		roomy: make([]bool, len(nodes)), fits: true}
	held, vcpus, had := make([]topology.Bytes, len(nodes)), make([]int, len(nodes)), make([]int, len(nodes))
	for i := range o.guests {
		g := o.at(i, to[i])
		had[o.guests[i].run] += g.vcpus
		s.cpu[g.run] += g.demand / float64(nodes[g.run].CPUs.Len())
		vcpus[g.run] += g.vcpus
		held[g.mem] += g.memory
		if reserved && g.run != g.mem {
			held[g.run] += g.memory
		}
		if to[i] != stay {
			s.gains[to[i]] = true
		}
	}
	for i := range o.guests {
		g := o.at(i, to[i])
		s.guests = append(s.guests, figures{
			far: float64(nodes[g.run].Distances[g.mem])/10 - 1,
			cpu: s.cpu[g.run],
		})
	}
	for k := range nodes {
		s.roomy[k] = vcpus[k] <= nodes[k].CPUs.Len()
		room := nodes[k].Memory - o.policy.KeepFreeOn(&nodes[k])
		crowded := float64(vcpus[k]) > o.policy.Overcommit*float64(nodes[k].CPUs.Len())
		if s.gains[k] && (held[k] > room || crowded && (reserved || vcpus[k] > had[k])) {
			s.fits = false
		}
	}
	return s
}

// at returns guest i after its move.
func (o *oracle) at(i int, to topology.NodeID) occupant {
	g := o.guests[i]
	if to != stay {
		g.run, g.mem = to, to
	}
	return g
}

// assignments yields every assignment that moves at most the given number of guests.
func (o *oracle) assignments(moves int, yield func(to []topology.NodeID)) {
	to := make([]topology.NodeID, len(o.guests))
	var try func(i, left int)
	try = func(i, left int) {
		if i == len(to) {
			yield(to)
			return
		}
		to[i] = stay
		try(i+1, left)
		for n := range o.host.Topology.Nodes {
			if k := topology.NodeID(n); left > 0 && (k != o.guests[i].run || k != o.guests[i].mem) {
				to[i] = k
				try(i+1, left-1)
			}
		}
		to[i] = stay
	}
	try(0, moves)
}

// better returns an assignment that is clearly worth making: one move, or one
// swap, after which
//
//   - a guest that is clearly degraded has half of its former figures;
//   - no node that gains a guest has more than 80 % of its CPUs in use;
//   - memory fits, also where it is reserved but not used;
//   - the figures of all guests, weighted by demand, fall by 1.5 for each CPU
//     that the moved guests ask for. Copying is worth less than that: it costs
//     a guest about as much as a node that is used to a half.
func (o *oracle) better() (found []topology.NodeID) {
	before := o.after(slices.Repeat([]topology.NodeID{stay}, len(o.guests)), true)
	o.assignments(2, func(to []topology.NodeID) {
		if found != nil {
			return
		}
		after := o.after(to, true)
		if !after.fits {
			return
		}
		for k := range after.cpu {
			if after.gains[k] && after.cpu[k] > 0.8 {
				return
			}
		}
		fall, moved, relieved := 0.0, 0.0, false
		for i, g := range o.guests {
			fall += g.demand * (before.guests[i].sum() - after.guests[i].sum())
			if to[i] != stay {
				moved += g.demand
				degraded := g.wait >= 0.15 || before.guests[i].far >= 0.4
				relieved = relieved || degraded && after.guests[i].sum() <= before.guests[i].sum()/2
			}
		}
		if relieved && fall >= 1.5*moved {
			found = append(found, to...)
		}
	})
	return found
}

// mayGain reports whether an assignment might lower a degraded guest's cost by
// min_gain, whatever each figure costs: if none of the figures falls by that
// share, no weighted sum of them does. CPU use beyond 1 may count squared, and a guest
// that comes to a CPU for each vCPU waits no longer. A
// node may become as full as the fullest one was, which is more than
// max_node_cpu where the host is overloaded, and a node with a CPU for each vCPU is not full.
func (o *oracle) mayGain() (may bool) {
	before := o.after(slices.Repeat([]topology.NodeID{stay}, len(o.guests)), false)
	crowded := 0.0
	for _, use := range before.cpu {
		crowded = max(crowded, use)
	}
	o.assignments(len(o.guests), func(to []topology.NodeID) {
		after := o.after(to, false)
		if may || !after.fits {
			return
		}
		for k, use := range after.cpu {
			if after.gains[k] && !after.roomy[k] && use > max(o.policy.Balance.MaxNodeCPU, crowded)+1e-9 {
				return
			}
		}
		left := 1 - o.policy.Balance.MinGain + 1e-9
		for i, g := range o.guests {
			was, is := before.guests[i], after.guests[i]
			if g.wait < mildShare*o.policy.Balance.Wait && was.far <= o.policy.Balance.Access {
				continue // not degraded: its gain justifies nothing
			}
			// Where each vCPU has a CPU none waits, however busy the CPUs are.
			calmer := after.roomy[o.at(i, to[i]).run] && !before.roomy[g.run]
			if is.far < was.far || is.cpu*is.cpu < left*was.cpu*was.cpu || calmer {
				may = true
			}
		}
	})
	return may
}

func TestPlan_AgreesWithTheConditionsOfTheDocumentation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { agree(t, drawOracle(t)) })
}

// The same hosts in each run; they show that the oracle is often sure.
func TestPlan_AgreesOnFixedHosts(t *testing.T) {
	const hosts = 1000
	drawn := rapid.Custom(drawOracle)
	sure := map[verdict]int{}
	for seed := range hosts {
		sure[agree(t, drawn.Example(seed))]++
	}
	t.Logf("of %d hosts a VM must move on %d, none may on %d", hosts, sure[mustMove], sure[mustNotMove])
	if sure[mustMove] < hosts/5 || sure[mustNotMove] < hosts/5 {
		t.Errorf("of %d hosts a VM must move on %d only, none may on %d only", hosts, sure[mustMove], sure[mustNotMove])
	}
}

// verdict is what the oracle expects of a plan.
type verdict int

const (
	unsure verdict = iota
	mustMove
	mustNotMove
)

// agree compares the planner's decision whether to move anything with the oracle's.
func agree(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, o *oracle) verdict {
	t.Helper()
	round, err := balance.Plan(balance.Request{Host: o.host, Now: o.host.Taken, Lasting: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if better := o.better(); better != nil {
		if len(round.Moves) == 0 {
			t.Fatalf("nothing moves, but the nodes %v (%d: stays) are clearly better for its VMs\n%s%s", better, stay, o,
				round.Text())
		}
		return mustMove
	}
	if !o.mayGain() {
		if len(round.Moves) > 0 {
			t.Fatalf("VMs move, but no degraded VM can gain\n%s%s", o, round.Text())
		}
		return mustNotMove
	}
	return unsure
}

// drawOracle draws a host with its guests; a guest without room is left out.
func drawOracle(t *rapid.T) *oracle {
	nodes := rapid.IntRange(2, 3).Draw(t, "nodes")
	topo, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:4 memory:16G", nodes))
	if err != nil {
		t.Fatal(err)
	}
	for i := range topo.Nodes {
		for j := range i {
			d := rapid.SampledFrom([]int{12, 16, 21, 31}).Draw(t, "distance")
			topo.Nodes[i].Distances[topology.NodeID(j)] = d
			topo.Nodes[j].Distances[topology.NodeID(i)] = d
		}
	}
	o := &oracle{policy: policy.Policy{}.WithDefaults(), host: &inventory.Host{
		Version: inventory.Version, Name: "host", Taken: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Topology: topo,
	}}
	// Calm guests are where they should be; on tight hosts hardly any fits elsewhere.
	calm, tight := rapid.IntRange(0, 3).Draw(t, "calm") == 0, rapid.IntRange(0, 2).Draw(t, "tight") == 0
	node := rapid.IntRange(0, nodes-1)
	for range rapid.IntRange(2, 4).Draw(t, "guests") {
		g := occupant{run: topology.NodeID(node.Draw(t, "run")), mem: topology.NodeID(node.Draw(t, "memory on"))}
		g.vcpus = rapid.IntRange(1, 4).Draw(t, "vcpus")
		g.memory = topology.Bytes(rapid.IntRange(1, 4).Draw(t, "memory")) * topology.GiB
		if tight {
			g.memory *= 3
		}
		g.demand = float64(g.vcpus) * rapid.Float64Range(0.3, 1).Draw(t, "demand")
		g.wait = rapid.SampledFrom([]float64{0, 0.04, 0.2, 0.4}).Draw(t, "wait")
		if calm {
			g.mem, g.wait = g.run, min(g.wait, 0.04)
		}
		if at := &o.host.Topology.Nodes[g.mem]; at.Free >= g.memory {
			at.Free -= g.memory
			o.add(t, g)
		}
	}
	return o
}

// add puts a guest on the host as Numavisor would have placed it on the node
// where it runs. Its memory is on another node if the host had no room then.
func (o *oracle) add(t *rapid.T, g occupant) {
	name := fmt.Sprintf("g%d", len(o.guests))
	spec, err := guest.Spec{
		Name: name, VCPUs: g.vcpus, Memory: g.memory,
		Topology: guest.TopologySpec{Mode: guest.TopologyCells, Count: 1},
	}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	home := topology.SetOf(g.run)
	cpus := o.host.Topology.CPUsOf(home)
	placed := guest.Placement{
		Guest: name, CPUMode: guest.CPURange, MemoryMode: spec.Binding.Mode, PageSize: spec.PageSize, Movable: true,
		Nodes: home, Visible: true,
		Cells: []guest.Cell{{Memory: g.memory, Nodes: home,
			VCPUs: topology.Range(0, guest.VCPUID(g.vcpus-1))}},
		Reservations: []guest.Reservation{{Node: g.run, Memory: g.memory, PageSize: spec.PageSize, VCPUs: g.vcpus}},
	}
	seen := inventory.Guest{
		Name: name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU), State: "running",
		Managed: true, Spec: &spec, Placement: &placed,
		Config: inventory.Config{VCPUs: g.vcpus, Memory: g.memory, PageSize: spec.PageSize, Source: "memfd"},
	}
	for i := range g.vcpus {
		id := guest.VCPUID(i)
		placed.VCPUs = append(placed.VCPUs, guest.VCPU{ID: id, CPUs: cpus})
		seen.Seen.Threads = append(seen.Seen.Threads,
			inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id, Affinity: cpus})
	}
	seen.Seen.MemoryByNode = topology.MemoryByNode{g.mem: g.memory}
	seen.Seen.Load = &inventory.GuestLoad{Window: time.Minute, CPU: g.demand * (1 - g.wait), Wait: g.demand * g.wait}
	o.host.Guests = append(o.host.Guests, seen)
	o.guests = append(o.guests, g)
}

// String describes the host for a failed test.
func (o *oracle) String() string {
	text := ""
	for _, n := range o.host.Topology.Nodes {
		text += fmt.Sprintf("node %d: distances %v, free %v\n", n.ID, n.Distances, n.Free)
	}
	for i, g := range o.guests {
		text += fmt.Sprintf("g%d: %d vCPUs on node %d ask for %.2f CPUs and wait for %.0f %%, %v on node %d\n",
			i, g.vcpus, g.run, g.demand, 100*g.wait, g.memory, g.mem)
	}
	return text
}

// lost returns how many CPUs the guests lose in an assignment: to memory that is
// far, and to demand beyond the given share of the CPUs of a node.
func (o *oracle) lost(to []topology.NodeID, busy float64) float64 {
	s, lost := o.after(to, false), 0.0
	for i, g := range o.guests {
		lost += g.demand * (1 - 1/(1+s.guests[i].far)) // at least as much as with damped distances
	}
	for k := range s.cpu {
		cpus := float64(o.host.Topology.Nodes[k].CPUs.Len())
		lost += cpus * max(0, s.cpu[k]-busy)
	}
	return lost
}

// No move of a plan is one without which nothing would be lost: neither accesses nor
// CPUs. Moves whose guests waited for reasons that the oracle does not know are left out.
func TestPlan_EachMoveSaves(t *testing.T) {
	const hosts = 2000
	drawn := rapid.Custom(drawOracle)
	moves := 0
	for seed := range hosts {
		o := drawn.Example(seed)
		o.consistentWaits()
		round, err := balance.Plan(balance.Request{Host: o.host, Now: o.host.Taken, Lasting: true})
		if err != nil {
			t.Fatal(err)
		}
		to := slices.Repeat([]topology.NodeID{stay}, len(o.guests))
		index := map[string]int{}
		for i := range o.host.Guests {
			index[o.host.Guests[i].Name] = i
		}
		for _, m := range round.Moves {
			for _, g := range m.Guests {
				to[index[g.Guest]], _ = g.Placement.Nodes.First()
			}
		}
		for _, m := range round.Moves {
			moves++
			without := slices.Clone(to)
			for _, name := range m.Names() {
				without[index[name]] = stay
			}
			saves := func(busy float64) bool { return o.lost(without, busy) > o.lost(to, busy)+1e-9 }
			if o.after(without, false).fits && !saves(1) && !saves(0.9) && !saves(0.6) {
				t.Fatalf("seed %d: without %s as little is lost\n%s%s", seed, m, o, round.Text())
			}
		}
	}
	if moves < hosts/4 {
		t.Errorf("%d moves on %d hosts prove little", moves, hosts)
	}
}

// consistentWaits makes every guest wait as much as the demand for the CPUs of its
// node makes it.
func (o *oracle) consistentWaits() {
	now := o.after(slices.Repeat([]topology.NodeID{stay}, len(o.guests)), false)
	for i := range o.guests {
		g := &o.guests[i]
		g.wait = max(0, 1-1/now.guests[i].cpu)
		o.host.Guests[i].Seen.Load = &inventory.GuestLoad{
			Window: time.Minute, CPU: g.demand * (1 - g.wait), Wait: g.demand * g.wait,
		}
	}
}
