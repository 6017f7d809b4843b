package place_test

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// bestDivision tries every number of cells, equal and uneven, on every set of homes
// in every order.
func (o *oracle) bestDivision() (best verdict, ok bool) {
	o.divides = true
	return choose(o.divisions)
}

// divisions returns a verdict on each of them; how uneven cells are sized depends on
// the aim of the search.
func (o *oracle) divisions(aim aim) (all []verdict) {
	offer := func(homes []home, uneven bool) {
		placed := o.placement(homes)
		if slices.ContainsFunc(o.cells, func(c guest.CellSpec) bool { return c.VCPUs == 0 }) {
			o.merge(&placed)
		}
		if len(check.Placement(o.host, o.policy, o.spec, placed)) > 0 {
			return
		}
		v := o.price(homes)
		v.uneven = uneven
		all = append(all, v)
	}
	for k := 1; k <= len(o.host.Topology.Nodes); k++ {
		o.eachHomes(k, nil, func(homes []home) {
			if o.cells = o.equal(k); o.cells != nil {
				offer(homes, false)
			}
			if !ascending(homes) || k == 1 {
				return
			}
			if o.cells = o.uneven(homes, aim); o.cells != nil {
				permuted(homes, 0, func(order []home) { offer(order, true) })
			}
		})
	}
	return all
}

func (o *oracle) eachHomes(k int, homes []home, do func([]home)) {
	if len(homes) == k {
		do(homes)
		return
	}
	for run := range o.host.Topology.Nodes {
		for mem := range o.host.Topology.Nodes {
			if h := (home{run, mem}); o.isHome(h) && o.apart(h, homes) {
				o.eachHomes(k, append(slices.Clone(homes), h), do)
			}
		}
	}
}

func ascending(homes []home) bool {
	return slices.IsSortedFunc(homes, func(a, b home) int { return a.run - b.run })
}

func permuted(homes []home, from int, do func([]home)) {
	if from == len(homes) {
		do(slices.Clone(homes))
		return
	}
	for i := from; i < len(homes); i++ {
		homes[from], homes[i] = homes[i], homes[from]
		permuted(homes, from+1, do)
		homes[from], homes[i] = homes[i], homes[from]
	}
}

// merge makes one cell of all: a guest with memory that has no vCPUs near sees no NUMA.
func (o *oracle) merge(p *guest.Placement) {
	all := guest.Cell{Nodes: p.Nodes, Memory: o.spec.Memory}
	for _, c := range p.Cells {
		all.VCPUs = all.VCPUs.Union(c.VCPUs)
	}
	p.Cells = []guest.Cell{all}
}

func (o *oracle) equal(k int) (cells []guest.CellSpec) {
	mebi := int(o.spec.Memory / topology.MiB)
	if k > o.spec.VCPUs {
		return nil
	}
	for i := range k {
		cells = append(cells, guest.CellSpec{
			VCPUs: (o.spec.VCPUs + k - 1 - i) / k, Memory: topology.Bytes((mebi+k-1-i)/k) * topology.MiB,
		})
	}
	return cells
}

// uneven deals vCPUs one by one, each to the home that has fewest, first as long as
// cores and memory in proportion last. If that does not place all vCPUs, each goes to
// the home with the most memory that is not used in proportion. Cells do not overload
// homes if the search aims at no overload, and as a last resort if at the least.
func (o *oracle) uneven(homes []home, aim aim) []guest.CellSpec {
	k, total, mebi := len(homes), o.spec.VCPUs, int(o.spec.Memory/topology.MiB)
	cpus, cores, memory := make([]int, k), make([]int, k), make([]int, k)
	for i, h := range homes {
		cpus[i] = o.roomCPUs(h.run)
		cores[i] = o.cores(&o.host.Topology.Nodes[h.run])
		memory[i] = min(mebi, o.roomMebi(h.mem))
		if aim == noOverload {
			cpus[i] = o.ample(h.run, cpus[i])
		}
		if o.policy.Count == "threads" {
			cores[i] = cpus[i]
		}
		if aim == leastOverload {
			cores[i] = o.ample(h.run, cores[i])
		}
	}
	vcpus, dealt := make([]int, k), 0
	deal := func(may func(i int) bool, before func(i, j int) bool) {
		for dealt < total {
			next := -1
			for i := range homes {
				if may(i) && (next < 0 || before(i, next)) {
					next = i
				}
			}
			if next < 0 {
				return
			}
			vcpus[next]++
			dealt++
		}
	}
	fewest := func(i, j int) bool { return vcpus[i] < vcpus[j] }
	backed := func(i int) bool { return vcpus[i] < cpus[i] && (vcpus[i]+1)*mebi <= memory[i]*total }
	deal(func(i int) bool { return backed(i) && vcpus[i] < cores[i] }, fewest)
	if o.policy.Count != "threads" || aim == leastOverload {
		// with cores exhausted the rest is dealt evenly on its own
		first := slices.Clone(vcpus)
		most := func(i int) int { return min(cpus[i], memory[i]*total/mebi) - first[i] }
		deal(backed, func(i, j int) bool {
			return cmp.Or(cmp.Compare(vcpus[i]-first[i], vcpus[j]-first[j]), cmp.Compare(most(j), most(i)),
				cmp.Compare(first[i], first[j])) < 0
		})
	} else {
		clear(vcpus)
		dealt = 0
		deal(backed, fewest)
	}
	size := make([]int, k)
	left := mebi
	fill := func(may func(i int) bool) {
		for i, amount := range evenly(left, k, func(i int) int {
			if may(i) {
				return memory[i] - size[i]
			}
			return 0
		}) {
			size[i] += amount
			left -= amount
		}
	}
	if dealt == total {
		for i := range size {
			size[i] = vcpus[i] * mebi / total
			left -= size[i]
		}
		for ; left > 0; left-- { // to the largest fractions
			at, most := 0, -1
			for i := range size {
				part := vcpus[i]*mebi - size[i]*total
				if part > most || part == most && vcpus[i] > vcpus[at] {
					at, most = i, part
				}
			}
			size[at]++
		}
	} else {
		clear(vcpus)
		dealt = 0
		unused := func(i int) int { return memory[i]*total - vcpus[i]*mebi }
		deal(func(i int) bool { return vcpus[i] < cpus[i] }, func(i, j int) bool {
			if unused(i) != unused(j) {
				return unused(i) > unused(j)
			}
			return vcpus[i] < vcpus[j] || vcpus[i] == vcpus[j] && cpus[i] > cpus[j]
		})
		if dealt < total {
			return nil
		}
		for i := range size {
			size[i] = min(memory[i], vcpus[i]*mebi/total)
			left -= size[i]
		}
		fill(func(i int) bool { return vcpus[i] > 0 })
		fill(func(i int) bool { return vcpus[i] == 0 })
	}
	if left > 0 || slices.Contains(size, 0) {
		return nil
	}
	var cells []guest.CellSpec
	for i := range homes {
		cells = append(cells, guest.CellSpec{VCPUs: vcpus[i], Memory: topology.Bytes(size[i]) * topology.MiB})
	}
	return cells
}

// evenly raises a common level until the amount is used up or all room is full.
func evenly(amount, k int, room func(i int) int) []int {
	parts := make([]int, k)
	for amount > 0 {
		var open []int
		for i := range parts {
			if parts[i] < room(i) {
				open = append(open, i)
			}
		}
		if len(open) == 0 {
			break
		}
		step := max(1, amount/len(open))
		for _, i := range open {
			step = min(step, room(i)-parts[i])
		}
		for n := len(open) - 1; n >= 0; n-- {
			take := min(step, amount)
			parts[open[n]] += take
			amount -= take
		}
	}
	return parts
}

// aMebi is more than the cost changes if a MiB belongs to another cell: which of two
// cells gets the remainder of a division is not part of the objective.
func (o *oracle) aMebi() float64 {
	return rounding + policy.DefaultWeights.Latency*float64(topology.MiB)/float64(o.spec.Memory)
}

func (o *oracle) roomCPUs(at int) int {
	n := &o.host.Topology.Nodes[at]
	shared, load := n.CPUs.Minus(o.host.Topology.Housekeeping), 0.0
	for _, h := range o.held {
		if h.Node == n.ID {
			shared, load = shared.Minus(h.Exclusive), load+h.VCPUs
		}
	}
	ratio := o.policy.Overcommit
	if ratio == 0 {
		ratio = 2
	}
	return max(0, min(shared.Len(), int(ratio*float64(shared.Len())-load+1e-9)))
}

func (o *oracle) roomMebi(at int) int {
	n := &o.host.Topology.Nodes[at]
	keep := int64(n.Memory / 100 * 2)
	never, now := int64(n.Memory)-keep, int64(n.Free)-keep
	for _, h := range o.held {
		if h.Node == n.ID {
			never -= int64(max(h.Reserved, h.Seen))
			now -= int64(max(h.Reserved, h.Seen) - h.Seen)
		}
	}
	return int(max(0, min(never, now)) / int64(topology.MiB))
}

func TestPlace_SizesCellsAsTheOracleDoes(t *testing.T) {
	placed, uneven := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		o := drawn(t)
		o.spec.Topology = guest.TopologySpec{
			Mode: rapid.SampledFrom([]guest.TopologyMode{guest.TopologyAuto, guest.TopologyOff}).Draw(t, "mode"),
		}
		o.spec.Memory += topology.Bytes(rapid.IntRange(0, 60).Draw(t, "more memory")) * 100 * topology.MiB
		want, fits := o.bestDivision()
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
		got := verdict{sharing: why.SharingCores, nodes: why.Nodes.Len(), cost: why.Cost, overload: why.Overload}
		if got.overload != want.overload || got.sharing != want.sharing || got.nodes != want.nodes ||
			math.Abs(got.cost-want.cost) > o.aMebi() {
			t.Fatalf("%+v, the best is %+v:\n%s", got, want, why.Text())
		}
		placed++
		if want.uneven {
			uneven++
		}
	})
	if uneven < placed/50 {
		t.Errorf("%d of %d placements were uneven: the test misses its point", uneven, placed)
	}
}
