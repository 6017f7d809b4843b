package scale

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// intensive is the share of the accesses of the busiest vCPU from which a vCPU counts as using much memory: those
// below it would make even the worst division little worse.
const intensive = 0.25

// stay is the share of its accesses that must become local for a vCPU to change its node: less is noise.
const stay = 0.1

// resolution is the least difference of accesses that counts, as a share of those of the busiest vCPU.
const resolution = 1e-4

// Divide returns the node of each vCPU of a guest, in the order of the accesses. Nodes have room for a number of its
// vCPUs.
//
// vCPUs that use much memory are spread: no node has more of them than their number divided by that of
// the nodes, rounded up, or as few more as the room of other nodes demands. Of all such divisions, the one with
// the most local accesses is taken, where a change of node counts as the loss of a tenth of the vCPU's accesses. The
// error says that there is not enough room, or that a count is impossible.
func Divide(accesses []inventory.VCPUAccess, room map[topology.NodeID]int) ([]topology.NodeID, error) {
	nodes := make([]topology.NodeID, 0, len(room))
	all := 0
	var errs []error
	for n, vcpus := range room {
		nodes = append(nodes, n)
		if all += vcpus; vcpus < 0 {
			errs = append(errs, fmt.Errorf("node %d has room for %d vCPUs", n, vcpus))
		}
	}
	slices.Sort(nodes)
	most := 0.0
	for i := range accesses {
		a := &accesses[i]
		for n, count := range a.ByNode {
			if count < 0 || math.IsNaN(count) || math.IsInf(count, 0) {
				errs = append(errs, fmt.Errorf("vCPU %d accesses node %d %v times", a.VCPU, n, count))
			}
		}
		most = max(most, a.Total())
	}
	if len(accesses) > all {
		errs = append(errs, fmt.Errorf("%d vCPUs do not fit into room for %d", len(accesses), all))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	d := division{accesses: accesses, nodes: nodes, room: room, most: most}
	return d.divide(), nil
}

type division struct {
	accesses []inventory.VCPUAccess
	nodes    []topology.NodeID // ascending
	room     map[topology.NodeID]int
	most     float64 // accesses of the busiest vCPU
}

func (d *division) isIntensive(i int) bool {
	return d.most > 0 && d.accesses[i].Total() >= intensive*d.most
}

// quota returns how many intensive vCPUs each node may have: the least number that suffices.
func (d *division) quota() int {
	count := 0
	for i := range d.accesses {
		if d.isIntensive(i) {
			count++
		}
	}
	for quota := 0; ; quota++ {
		fits := 0
		for _, n := range d.nodes {
			fits += min(quota, d.room[n])
		}
		if fits >= count {
			return quota
		}
	}
}

// divide finds the flow of least cost: vCPUs, the places of intensive vCPUs on each node, all places on it.
func (d *division) divide() []topology.NodeID {
	vcpus, count := len(d.accesses), len(d.nodes)
	places, all := 2+vcpus, 2+vcpus+count // first vertices
	g := newGraph(all + count)
	quota := d.quota()
	to := make([][]int, vcpus) // edges to the nodes
	for i := range d.accesses {
		g.add(source, 2+i, 1, 0)
		first := all
		if d.isIntensive(i) {
			first = places
		}
		for k, n := range d.nodes {
			to[i] = append(to[i], g.add(2+i, first+k, 1, d.cost(i, n)))
		}
	}
	for k, n := range d.nodes {
		g.add(places+k, all+k, quota, 0)
		g.add(all+k, sink, d.room[n], 0)
	}
	for range d.accesses {
		g.augment() // Divide has checked that there is room
	}
	at := make([]topology.NodeID, vcpus)
	for i := range to {
		at[i] = d.nodes[max(0, slices.IndexFunc(to[i], func(e int) bool { return g.flow(e) > 0 }))]
	}
	return at
}

// cost is the number of accesses of a vCPU on a node that are not local there, in units of resolution, and the
// price of a change.
func (d *division) cost(i int, n topology.NodeID) int {
	a := &d.accesses[i]
	lost := a.Total() - a.ByNode[n]
	if n != a.On {
		lost += stay * a.Total()
	}
	units := lost / max(d.most, math.SmallestNonzeroFloat64) / resolution
	change := 0
	if n != a.On { // of two equal nodes, the present one
		change = 1
	}
	return 2*int(math.Round(units)) + change
}
