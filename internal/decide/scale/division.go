package scale

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Division is the node of each vCPU that is bound to one. The others run on any node of their cell.
type Division map[guest.VCPUID]topology.NodeID

// Dividing is the state of a guest's division from one sample to the next. Its zero value divides nothing.
type Dividing struct {
	// Now is the division to carry out.
	Now Division
	// proposed is what the last sample asked for instead.
	proposed Division
	// unmeasured is since when no sample has had accesses of the guest's vCPUs; zero: the last one had.
	unmeasured time.Time
}

const (
	// worthwhile is the share of a cell's accesses that a division must make local, compared with vCPUs that run on all
	// nodes of the cell in turn: bound vCPUs cannot use idle CPUs of another node.
	worthwhile = 0.1
	// retained is the same share for a division that is carried out already.
	retained = 0.05
	// negligible is the share of the accesses of the busiest vCPU below which a vCPU is not bound: it is idle, or out
	// of use.
	negligible = 0.01
	// forget is how long a division stays without measured accesses.
	forget = time.Minute
)

// Next returns the state after a sample, with the accesses of the divisible vCPUs that were measured. Nodes have room
// for a number of the guest's vCPUs. A division is carried out, changed or ended when two samples in a row ask for it,
// and ended if no sample measures accesses for a minute.
func (d Dividing) Next(
	p *guest.Placement, t *topology.Topology, accesses []inventory.VCPUAccess, room map[topology.NodeID]int,
	now time.Time,
) Dividing {
	counted := slices.ContainsFunc(accesses, func(a inventory.VCPUAccess) bool { return a.Total() > 0 })
	if !counted {
		return d.without(now)
	}
	d.unmeasured = time.Time{}
	wanted, left := Division{}, maps.Clone(room)
	for i := range p.Cells {
		if c := &p.Cells[i]; c.Nodes.Len() > 1 {
			maps.Copy(wanted, d.cell(p, c, t, accesses, left))
		}
	}
	switch {
	case maps.Equal(wanted, d.Now):
		d.proposed = nil
	case d.proposed != nil && maps.Equal(wanted, d.proposed):
		d.Now, d.proposed = wanted, nil
	default:
		d.proposed = wanted
	}
	return d
}

// without returns the state after a sample without accesses.
func (d Dividing) without(now time.Time) Dividing {
	d.proposed = nil
	if d.unmeasured.IsZero() {
		d.unmeasured = now
	}
	if now.Sub(d.unmeasured) >= forget {
		return Dividing{}
	}
	return d
}

// cell divides the vCPUs of one cell, and takes their nodes from the room that is left. There is no division if the
// room does not suffice, or if it would make too few accesses local.
func (d Dividing) cell(
	p *guest.Placement, c *guest.Cell, t *topology.Topology, accesses []inventory.VCPUAccess,
	left map[topology.NodeID]int,
) Division {
	cpus := cpusOfCell(p, c, t)
	own := d.busy(c, accesses)
	room := map[topology.NodeID]int{}
	for n := range cpus {
		room[n] = max(0, min(left[n], cpus[n].Len()))
	}
	at, err := Divide(own, room)
	if err != nil || len(own) == 0 {
		return nil
	}
	least := worthwhile
	if slices.ContainsFunc(own, func(a inventory.VCPUAccess) bool { _, bound := d.Now[a.VCPU]; return bound }) {
		least = retained
	}
	if gain(own, at, cpus) < least {
		return nil
	}
	division := make(Division, len(own))
	for v, n := range d.Now { // one that is idle for a moment stays bound, and takes no room
		if _, allowed := cpus[n]; allowed && c.VCPUs.Contains(v) {
			division[v] = n
		}
	}
	for i := range own {
		division[own[i].VCPU] = at[i]
		left[at[i]]--
	}
	return division
}

// busy returns the accesses of a cell's vCPUs that are not negligible. A vCPU that is bound, or was proposed to be,
// counts as on that node.
func (d Dividing) busy(c *guest.Cell, accesses []inventory.VCPUAccess) (own []inventory.VCPUAccess) {
	most := 0.0
	for i := range accesses {
		if c.VCPUs.Contains(accesses[i].VCPU) {
			most = max(most, accesses[i].Total())
		}
	}
	for _, a := range accesses {
		if total := a.Total(); !c.VCPUs.Contains(a.VCPU) || total == 0 || total < negligible*most {
			continue
		}
		if n, bound := d.Now[a.VCPU]; bound {
			a.On = n
		} else if n, proposed := d.proposed[a.VCPU]; proposed {
			a.On = n
		}
		own = append(own, a)
	}
	slices.SortFunc(own, func(a, b inventory.VCPUAccess) int { return cmp.Compare(a.VCPU, b.VCPU) })
	return own
}

// gain is the share of accesses that a division makes local, less the share that is local if each vCPU runs on all CPUs
// of the cell equally long.
func gain(own []inventory.VCPUAccess, at []topology.NodeID, cpus map[topology.NodeID]topology.CPUSet) float64 {
	all, whole, local, roaming := 0, 0.0, 0.0, 0.0
	for _, s := range cpus {
		all += s.Len()
	}
	for i := range own {
		whole += own[i].Total()
		local += own[i].ByNode[at[i]]
		for n, s := range cpus {
			roaming += own[i].ByNode[n] * float64(s.Len()) / float64(all)
		}
	}
	return (local - roaming) / whole
}

// cpusOfCell returns the online CPUs on which vCPUs of a cell may run, by node.
func cpusOfCell(p *guest.Placement, c *guest.Cell, t *topology.Topology) map[topology.NodeID]topology.CPUSet {
	var all topology.CPUSet
	for _, v := range p.VCPUs {
		if c.VCPUs.Contains(v.ID) {
			all = all.Union(v.CPUs)
		}
	}
	cpus := map[topology.NodeID]topology.CPUSet{}
	for i := range t.Nodes {
		if own := t.Nodes[i].CPUs.Intersect(all); !own.IsEmpty() {
			cpus[t.Nodes[i].ID] = own
		}
	}
	return cpus
}

// CPUs returns where each divisible vCPU may run: on the CPUs of its node, or on all those of its placement.
func (d Division) CPUs(p *guest.Placement, t *topology.Topology) map[guest.VCPUID]topology.CPUSet {
	cpus, divisible := map[guest.VCPUID]topology.CPUSet{}, p.Divisible()
	for _, v := range p.VCPUs {
		if !divisible.Contains(v.ID) || v.CPUs.IsEmpty() {
			continue
		}
		cpus[v.ID] = v.CPUs
		if n, bound := d[v.ID]; bound {
			if node, ok := t.Node(n); ok && node.CPUs.Intersects(v.CPUs) {
				cpus[v.ID] = node.CPUs.Intersect(v.CPUs)
			}
		}
	}
	return cpus
}

// DivisionOf returns the division that the affinities of a guest's threads show: a vCPU is bound to a node if it may
// run on all its CPUs there and on no others. Another binding is an operator's.
func DivisionOf(p *guest.Placement, t *topology.Topology, threads []inventory.Thread) Division {
	d, divisible := Division{}, p.Divisible()
	for i := range threads {
		v := threads[i].VCPU
		if v == nil || !divisible.Contains(*v) {
			continue
		}
		for n := range t.NodeSet().All() {
			bound := Division{*v: n}.CPUs(p, t)[*v]
			if whole := (Division{}).CPUs(p, t)[*v]; threads[i].Affinity.Equal(bound) && !bound.Equal(whole) {
				d[*v] = n
			}
		}
	}
	return d
}

// ByNode returns the vCPUs of each node, ascending by node.
func (d Division) ByNode() (all []inventory.VCPUsOfNode) {
	vcpus := map[topology.NodeID]guest.VCPUSet{}
	for v, n := range d {
		vcpus[n] = vcpus[n].With(v)
	}
	for _, n := range slices.Sorted(maps.Keys(vcpus)) {
		all = append(all, inventory.VCPUsOfNode{Node: n, VCPUs: vcpus[n]})
	}
	return all
}
