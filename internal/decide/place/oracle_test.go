package place_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// oracle is a second opinion on small hosts. It tries every home for every cell,
// asks package check whether that is legal, and prices it by the formulas of the
// package comments of place and cost. It uses neither the solver nor its price
// list, and knows range-bound guests with given cells and small pages.
type oracle struct {
	host   *inventory.Host
	spec   guest.Spec
	policy policy.Policy
	cells  []guest.CellSpec
	held   []inventory.Holding
	// divides says that placing divides the guest, not its spec.
	divides bool
}

// home is the node where a cell runs and the node of its memory, as positions in Topology.Nodes.
type home struct{ run, mem int }

// verdict is the objective: the first figure that differs decides.
type verdict struct {
	sharing, nodes int
	cost           float64
	overload       int // demand beyond the CPUs of nodes, in whole CPUs
	parts          int
	lone, single   int // parts of less than two vCPUs, and of one; counted if placing divides the guest
	// uneven says that placing sized the cells for their nodes: they come after equal
	// ones with the same first figures.
	uneven bool
}

const rounding = 1e-4 // the price list rounds each price to millionths

func (v verdict) better(w verdict) bool {
	switch {
	case v.sharing != w.sharing:
		return v.sharing < w.sharing
	case v.nodes != w.nodes:
		return v.nodes < w.nodes
	case v.uneven != w.uneven:
		return w.uneven
	}
	return v.cost < w.cost
}

// aim is what a search looks for, see choose.
type aim int

const (
	best aim = iota
	noOverload
	leastOverload
)

// choose picks from all legal placements: the best one if it overloads no node, then
// the best one that overloads none and leaves no vCPU alone to do so, then
// the one with the least shortfall.
func choose(all func(aim) []verdict) (verdict, bool) {
	pick := func(aim aim, may func(v verdict) bool, as func(v verdict) verdict) (top verdict, ok bool) {
		for _, v := range all(aim) {
			if may(v) && (!ok || as(v).better(as(top))) {
				top, ok = v, true
			}
		}
		return top, ok
	}
	same := func(v verdict) verdict { return v }
	every := func(verdict) bool { return true }
	first, ok := pick(best, every, same)
	if !ok || first.overload == 0 {
		return first, ok
	}
	within, ok := pick(noOverload, func(v verdict) bool {
		return v.overload == 0 && (v.lone == 0 || v.parts <= first.parts)
	}, same)
	if ok {
		return within, true
	}
	also := all
	all = func(aim aim) []verdict { return append(also(aim), first) } // cells may have other sizes there
	return pick(leastOverload, every, func(v verdict) verdict {
		v.sharing += 2*v.overload + v.single
		return v
	})
}

// best returns the best legal placement's figures; ok is false where none is legal.
func (o *oracle) best() (verdict, bool) {
	homes := make([]home, 0, len(o.cells))
	var all []verdict
	var try func()
	try = func() {
		if len(homes) == len(o.cells) {
			if placed := o.placement(homes); len(check.Placement(o.host, o.policy, o.spec, placed)) == 0 {
				all = append(all, o.price(homes))
			}
			return
		}
		for run := range o.host.Topology.Nodes {
			for mem := range o.host.Topology.Nodes {
				if h := (home{run, mem}); o.isHome(h) && o.apart(h, homes) {
					homes = append(homes, h)
					try()
					homes = homes[:len(homes)-1]
				}
			}
		}
	}
	try()
	return choose(func(aim) []verdict { return all })
}

// isHome: a cell uses CPUs and memory of one node, or two nodes that each lack one of them.
func (o *oracle) isHome(h home) bool {
	run, mem := &o.host.Topology.Nodes[h.run], &o.host.Topology.Nodes[h.mem]
	if run.CPUs.IsEmpty() || mem.Memory == 0 {
		return false
	}
	return h.run == h.mem || run.Memory == 0 || mem.CPUs.IsEmpty()
}

// apart: two cells never share a node.
func (o *oracle) apart(h home, others []home) bool {
	for _, other := range others {
		if h.run == other.run || h.run == other.mem || h.mem == other.run || h.mem == other.mem {
			return false
		}
	}
	return true
}

func (o *oracle) placement(homes []home) guest.Placement {
	t := &o.host.Topology
	p := guest.Placement{Guest: o.spec.Name, CPUMode: guest.CPURange, MemoryMode: guest.MemoryStrict}
	for i, h := range homes {
		run, mem, c := &t.Nodes[h.run], &t.Nodes[h.mem], o.cells[i]
		first := guest.VCPUID(len(p.VCPUs))
		for range c.VCPUs {
			p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(len(p.VCPUs)), CPUs: o.usable(run)})
		}
		p.Cells = append(p.Cells, guest.Cell{
			ID: guest.CellID(
				i,
			), VCPUs: topology.Range(first,
				first+guest.VCPUID(c.VCPUs)-1), Memory: c.Memory, Nodes: topology.SetOf(mem.ID),
		})
		p.Nodes = p.Nodes.With(mem.ID)
		r := guest.Reservation{Node: run.ID, VCPUs: c.VCPUs}
		if h.run == h.mem {
			r.Memory = c.Memory
		} else {
			p.Reservations = append(p.Reservations, guest.Reservation{Node: mem.ID, Memory: c.Memory})
		}
		p.Reservations = append(p.Reservations, r)
	}
	return p
}

// usable are the CPUs of a node that the guest may share with others.
func (o *oracle) usable(n *topology.Node) topology.CPUSet {
	cpus := n.CPUs.Minus(o.host.Topology.Housekeeping)
	for _, h := range o.held {
		cpus = cpus.Minus(h.Exclusive)
	}
	return cpus
}

func (o *oracle) price(homes []home) verdict {
	w, cells := policy.DefaultWeights, float64(len(homes))
	var v verdict
	for i, h := range homes {
		c := o.cells[i]
		vcpus, memory := o.shares(i)
		for j, other := range homes { // accesses go to the memory, in proportion to its size
			_, share := o.shares(j)
			v.cost += vcpus * share * w.Latency * (o.latency(h.run, other.mem) - 1)
			v.cost += vcpus * share * w.Bandwidth * (o.bandwidth(h.run, other.mem) - 1)
		}
		v.cost += memory * w.Bandwidth * math.Pow(o.traffic(h.mem)/localMBps, 2)
		cpu, mem := o.cpuUse(h.run, c.VCPUs), o.memoryUse(h.mem, c.Memory)
		demand := o.cpuDemand(h.run, c.VCPUs)
		load := w.Load * (vcpus*o.cpuLoad(demand) + memory*o.memoryLoad(mem)) / 2
		if demand <= 1 && o.policy.Prefer != policy.PreferPack {
			load *= max(0.02, min(1, o.overcommit()-1))
		}
		v.cost += load
		v.parts = len(homes)
		if o.divides && len(homes) > 1 && c.VCPUs < 2 {
			v.lone++
			v.single += c.VCPUs
		}
		v.overload += o.overload(h.run, c.VCPUs)
		v.nodes++
		if h.run != h.mem {
			v.nodes++
		} else {
			cpuBefore, memBefore := o.cpuUse(h.run, 0), o.memoryUse(h.mem, 0)
			v.cost += w.Stranding / cells * (stranded(cpu, mem) - stranded(cpuBefore, memBefore))
			before, after := o.room(h.run, cpuBefore, memBefore), o.room(h.run, cpu, mem)
			rest := max(0, o.overcommit()-cpu) + max(0, 1-mem)
			v.cost += w.WideRoom * max(0.1, 2-o.overcommit()) * (before - after + 0.1*rest)
		}
		if o.policy.Count != policy.CountThreads {
			v.sharing += max(0, c.VCPUs-o.cores(&o.host.Topology.Nodes[h.run]))
		}
	}
	return v
}

// room is how much of the room for typical cells depends on a node with the given use:
// cells of 1, 1/2, 1/4 and 1/8 of its CPUs with as large a part of its memory, or half of
// that, and pairs of them on it and its neighbours, matched one by one.
func (o *oracle) room(at int, cpu, memory float64) (room float64) {
	t := &o.host.Topology
	for _, size := range []float64{1, 0.5, 0.25, 0.125} {
		for _, rich := range []float64{0.98, 0.49} {
			count := func(cpu, memory float64) int {
				return int(min(max(0, o.overcommit()-cpu)/size, max(0, 1-memory)/(size*rich)) + 1e-6)
			}
			own := count(cpu, memory)
			cells := []int{own}
			for i := range t.Nodes {
				n := &t.Nodes[i]
				whole := n.Memory > 0 && !n.CPUs.Minus(t.Housekeeping).IsEmpty()
				if whole && i != at && t.Nodes[at].Classes[t.Nodes[i].ID] == topology.Neighbour {
					cells = append(cells, count(o.cpuUse(i, 0), o.memoryUse(i, 0)))
				}
			}
			pairs := 0
			for slices.Sort(cells); len(cells) > 1 && cells[len(cells)-2] > 0; slices.Sort(cells) {
				cells[len(cells)-1]-- // one on each of the two roomiest nodes
				cells[len(cells)-2]--
				pairs++
			}
			room += size * (float64(own) + 0.4*float64(pairs)) / 8
		}
	}
	return room
}

func (o *oracle) overcommit() float64 {
	if o.policy.Overcommit == 0 {
		return policy.DefaultOvercommit
	}
	return o.policy.Overcommit
}

// shares are a cell's parts of the guest's vCPUs and memory.
func (o *oracle) shares(i int) (vcpus, memory float64) {
	return float64(o.cells[i].VCPUs) / float64(o.spec.VCPUs), float64(o.cells[i].Memory) / float64(o.spec.Memory)
}

// latency is measured, over the best of the host, or SLIT damped by the exponent 0.65.
func (o *oracle) latency(from, to int) float64 {
	t := &o.host.Topology
	if t.Measured != nil {
		return t.Measured.LatencyNanos[from][to] / localNanos
	}
	return math.Pow(float64(t.Nodes[from].Distances[t.Nodes[to].ID])/10, 0.65)
}

func (o *oracle) bandwidth(from, to int) float64 {
	if m := o.host.Topology.Measured; m != nil {
		return localMBps / m.BandwidthMBps[from][to]
	}
	return 1
}

func (o *oracle) cpuUse(at, vcpus int) float64 {
	n := &o.host.Topology.Nodes[at]
	guests := n.CPUs.Minus(o.host.Topology.Housekeeping)
	load, exclusive := float64(vcpus), topology.CPUSet{}
	for _, h := range o.held {
		if h.Node == n.ID {
			load, exclusive = load+h.VCPUs, exclusive.Union(h.Exclusive)
		}
	}
	return (load + float64(exclusive.Intersect(guests).Len())) / float64(guests.Len())
}

// cpuDemand is as cpuUse, with what others want as it was measured.
func (o *oracle) cpuDemand(at, vcpus int) float64 {
	n := &o.host.Topology.Nodes[at]
	guests := n.CPUs.Minus(o.host.Topology.Housekeeping)
	shared, exclusive := float64(vcpus)+o.hostWork(n.ID), topology.CPUSet{}
	for i := range o.host.Guests {
		if node, wants, own := o.guestDemand(i); node == n.ID {
			exclusive = exclusive.Union(own)
			if own.IsEmpty() {
				shared += wants
			}
		}
	}
	return (shared + float64(exclusive.Intersect(guests).Len())) / float64(guests.Len())
}

// traffic is what guests read and write on a node, in MB a second; 0 where no bandwidth was measured.
func (o *oracle) traffic(at int) (mbps float64) {
	for i := range o.host.Guests {
		g := &o.host.Guests[i]
		there := g.Seen.MemoryByNode[o.host.Topology.Nodes[at].ID] > 0
		if l := g.Seen.Load; l != nil && o.host.Topology.Measured != nil && there {
			mbps += l.MemoryMBps
		}
	}
	return mbps
}

// guestDemand is how many CPUs a guest wants, and on which node: each guest of the oracle's is on one.
func (o *oracle) guestDemand(i int) (node topology.NodeID, wants float64, exclusive topology.CPUSet) {
	g := &o.host.Guests[i]
	r := g.Placement.Reservations[0]
	wants = float64(r.VCPUs)
	if l := g.Seen.Load; l != nil {
		wants = min(wants, l.CPU+l.Wait)
	}
	return r.Node, wants, r.Exclusive
}

// hostWork is how many CPUs the host itself uses on a node: what guests do not want of its load. On all nodes together
// it uses no more than guests do not want of all loads. Housekeeping CPUs are for it.
func (o *oracle) hostWork(node topology.NodeID) float64 {
	n := &o.host.Topology.Nodes[slices.IndexFunc(o.host.Topology.Nodes, func(n topology.Node) bool { return n.ID == node })]
	return max(0, o.allHostWork(node)-float64(n.CPUs.Intersect(o.host.Topology.Housekeeping).Len()))
}

func (o *oracle) allHostWork(node topology.NodeID) float64 {
	own, sum, positive := 0.0, 0.0, 0.0
	for _, l := range o.host.Load {
		rest := l.CPU + l.Wait
		for i := range o.host.Guests {
			if at, wants, _ := o.guestDemand(i); at == l.Node {
				rest -= wants
			}
		}
		sum += rest
		if rest > 0 {
			positive += rest
		}
		if l.Node == node {
			own = max(0, rest)
		}
	}
	switch {
	case sum <= 0:
		return 0
	case sum < positive:
		return own * sum / positive
	}
	return own
}

// overload is how many of the vCPUs exceed the CPUs of the node, after the demand of others.
func (o *oracle) overload(at, vcpus int) int {
	cpus := o.host.Topology.Nodes[at].CPUs.Minus(o.host.Topology.Housekeeping).Len()
	return max(0, min(vcpus, int(math.Floor((o.cpuDemand(at, vcpus)-1)*float64(cpus)+1e-6))))
}

// ample is how many vCPUs the node takes without overload.
func (o *oracle) ample(at, most int) int {
	for v := most; v > 0; v-- {
		if o.overload(at, v) == 0 {
			return v
		}
	}
	return 0
}

// drawLoads measures some guests, and on some hosts the nodes.
func (o *oracle) drawLoads(t *rapid.T) {
	figure := func(what string, most float64) float64 { return rapid.Float64Range(0, most).Draw(t, what) }
	for i := range o.host.Guests {
		if rapid.Bool().Draw(t, "measured guest") {
			g := &o.host.Guests[i]
			g.Seen.Load = &inventory.GuestLoad{CPU: figure("CPU", 4), Wait: figure("wait", 1), MemoryMBps: figure("MB/s", localMBps)}
			g.Seen.MemoryByNode = topology.MemoryByNode{g.Placement.Reservations[0].Node: 1 << 20}
		}
	}
	if rapid.Bool().Draw(t, "measured nodes") {
		for _, n := range o.host.Topology.Nodes {
			o.host.Load = append(o.host.Load,
				inventory.NodeLoad{Node: n.ID, CPU: figure("node CPU", 5), Wait: figure("node wait", 2)})
		}
	}
}

func (o *oracle) memoryUse(at int, bytes topology.Bytes) float64 {
	n := &o.host.Topology.Nodes[at]
	for _, h := range o.held {
		if h.Node == n.ID {
			bytes += max(h.Reserved, h.Seen)
		}
	}
	return float64(bytes) / float64(n.Memory-n.Memory/100*2)
}

func (o *oracle) cpuLoad(use float64) float64 {
	switch {
	case use > 1:
		return use * use
	case o.policy.Prefer == policy.PreferPack:
		return 1 - use
	}
	return use
}

func (o *oracle) memoryLoad(use float64) float64 {
	if o.policy.Prefer == policy.PreferPack {
		return max(0, 1-use)
	}
	return use
}

func stranded(cpu, memory float64) float64 { return math.Abs(max(0, 1-cpu) - max(0, 1-memory)) }

// cores counts the cores of a node that have a usable CPU.
func (o *oracle) cores(n *topology.Node) int {
	firsts := topology.CPUSet{}
	for c := range o.usable(n).All() {
		cpu, _ := o.host.Topology.CPU(c)
		first, _ := cpu.Siblings.First()
		firsts = firsts.With(first)
	}
	return firsts.Len()
}

const (
	localNanos = 80.0
	localMBps  = 100_000.0
)

// drawn is a host of 2 to 4 nodes and a guest of 1 to 3 cells.
func drawn(t *rapid.T) *oracle {
	o := &oracle{host: &inventory.Host{Name: "host"}}
	topo := &o.host.Topology
	count, threads := rapid.IntRange(2, 4).Draw(t, "nodes"), rapid.IntRange(1, 2).Draw(t, "threads")
	for i := range count {
		n := topology.Node{ID: topology.NodeID(3 * i), Distances: map[topology.NodeID]int{}}
		n.Memory = topology.Bytes(rapid.SampledFrom([]int{4, 6, 8, 12}).Draw(t, "memory GiB")) * topology.GiB
		cores := rapid.IntRange(1, 4).Draw(t, "cores")
		switch rapid.SampledFrom([]string{"", "", "", "memory only", "CPUs only"}).Draw(t, "kind") {
		case "memory only":
			cores = 0
		case "CPUs only":
			n.Memory = 0
		}
		n.Free = n.Memory / 100 * topology.Bytes(rapid.IntRange(60, 100).Draw(t, "free %"))
		for range cores {
			first := topology.CPUID(len(topo.CPUs))
			for range threads {
				id := topology.CPUID(len(topo.CPUs))
				siblings := topology.Range(first, first+topology.CPUID(threads)-1)
				topo.CPUs = append(topo.CPUs, topology.CPU{ID: id, Node: n.ID, Siblings: siblings})
				n.CPUs = n.CPUs.With(id)
			}
		}
		topo.Nodes = append(topo.Nodes, n)
	}
	o.drawWays(t)
	if len(topo.CPUs) > 2 && rapid.Bool().Draw(t, "housekeeping") && topo.Nodes[0].CPUs.Len() > 1 {
		topo.Housekeeping = topology.SetOf[topology.CPUID](0)
	}
	o.drawOthers(t)
	o.drawLoads(t)
	o.drawRequest(t)
	o.held = o.host.Holdings("")
	return o
}

func (o *oracle) drawWays(t *rapid.T) {
	topo := &o.host.Topology
	m := &topology.Measured{}
	for i := range topo.Nodes {
		m.Nodes = append(m.Nodes, topo.Nodes[i].ID)
		var nanos, mbps []float64
		for j := range topo.Nodes {
			d, far := 10, 0
			if i != j {
				d = rapid.SampledFrom([]int{12, 16, 21, 28, 40}).Draw(t, "distance")
				far = rapid.IntRange(1, 4).Draw(t, "far")
			}
			topo.Nodes[i].Distances[topo.Nodes[j].ID] = d
			nanos = append(nanos, localNanos*(1+0.3*float64(far)))
			mbps = append(mbps, localMBps/(1+0.2*float64(far)))
		}
		m.LatencyNanos, m.BandwidthMBps = append(m.LatencyNanos, nanos), append(m.BandwidthMBps, mbps)
	}
	// Without one node that has both, the host's best figure is not a local one.
	whole := false
	for _, n := range topo.Nodes {
		whole = whole || !n.CPUs.IsEmpty() && n.Memory > 0
	}
	if whole && rapid.Bool().Draw(t, "measured") {
		topo.Measured = m
	}
	topo.Classify()
}

func (o *oracle) drawOthers(t *rapid.T) {
	for i := range rapid.IntRange(0, 3).Draw(t, "others") {
		n := rapid.SampledFrom(o.host.Topology.Nodes).Draw(t, "of node")
		r := guest.Reservation{Node: n.ID}
		if !n.CPUs.IsEmpty() {
			r.VCPUs = rapid.IntRange(0, 4).Draw(t, "vcpus")
		}
		if n.Memory > 0 {
			r.Memory = topology.Bytes(rapid.IntRange(0, 3000).Draw(t, "MiB")) * topology.MiB
		}
		name := fmt.Sprintf("other%d", i)
		p := guest.Placement{Guest: name, CPUMode: guest.CPURange, Reservations: []guest.Reservation{r}}
		if last := n.CPUs.IDs(); len(last) > 1 && rapid.Bool().Draw(t, "exclusive") {
			p.CPUMode = guest.CPUExclusive
			p.Reservations[0].VCPUs, p.Reservations[0].Exclusive = 1, topology.SetOf(last[len(last)-1])
		}
		g := inventory.Guest{Name: name, State: "running", Managed: true, Placement: &p}
		g.Seen.MemoryByNode = topology.MemoryByNode{n.ID: r.Memory / 2}
		o.host.Guests = append(o.host.Guests, g)
	}
}

func (o *oracle) drawRequest(t *rapid.T) {
	o.spec = guest.Spec{
		Name:    "new",
		CPU:     guest.CPUSpec{Emulator: guest.HelperNone},
		Binding: guest.MemorySpec{Mode: guest.MemoryStrict},
	}
	for range rapid.IntRange(1, 3).Draw(t, "cells") {
		o.cells = append(o.cells, guest.CellSpec{
			VCPUs:  rapid.IntRange(1, 5).Draw(t, "cell vcpus"),
			Memory: topology.Bytes(rapid.IntRange(1, 40).Draw(t, "cell memory")) * 128 * topology.MiB,
		})
		last := o.cells[len(o.cells)-1]
		o.spec.VCPUs, o.spec.Memory = o.spec.VCPUs+last.VCPUs, o.spec.Memory+last.Memory
	}
	o.spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Cells: o.cells}
	o.spec.Limits.MaxDistance = rapid.SampledFrom([]int{0, 0, 0, 21, 28}).Draw(t, "max distance")
	if rapid.Bool().Draw(t, "all nodes named") { // allows memory-only nodes
		o.spec.Limits.Nodes = o.host.Topology.NodeSet()
	}
	spec, err := o.spec.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	o.spec = spec
	o.policy = policy.Policy{
		Overcommit: rapid.SampledFrom([]float64{0, 1, 1.5}).Draw(t, "overcommit"),
		Count:      rapid.SampledFrom([]policy.Capacity{"", policy.CountThreads}).Draw(t, "count"),
		Prefer:     rapid.SampledFrom([]policy.Preference{"", policy.PreferPack}).Draw(t, "prefer"),
	}
}

func TestPlace_AgreesWithTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawn(t)
		want, fits := o.best()
		_, why, err := place.Place(place.Request{Host: o.host, Spec: o.spec, Policy: o.policy})
		noFit := (*place.NoFitError)(nil)
		switch {
		case err != nil && !errors.As(err, &noFit):
			t.Fatal(err)
		case err != nil && fits:
			t.Fatalf("refused, although a placement with %+v is legal:\n%s", want, noFit.Text())
		case err != nil:
			return
		case !fits:
			t.Fatalf("placed, although no placement is legal:\n%s", why.Text())
		}
		if why.SharingCores != want.sharing {
			t.Fatalf("%d sharing cores, the best is %d:\n%s", why.SharingCores, want.sharing, why.Text())
		}
		if why.Overload != want.overload {
			t.Fatalf("overload of %d, the best has %d:\n%s", why.Overload, want.overload, why.Text())
		}
		if got := why.Nodes.Len(); got != want.nodes {
			t.Fatalf("%d nodes, the best takes %d:\n%s", got, want.nodes, why.Text())
		}
		if math.Abs(why.Cost-want.cost) > rounding {
			t.Fatalf("cost %v, the best has %v:\n%s", why.Cost, want.cost, why.Text())
		}
	})
}
