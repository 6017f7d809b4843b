package place

import (
	"math"

	"github.com/numavisor/numavisor/internal/guest"
)

// aim is how a search values overload: demand for CPUs beyond the CPUs of a node.
type aim int

const (
	ignoreOverload aim = iota // it counts only in the cost
	noOverload                // a cell does not fit on a node that it would overload
	leastOverload             // it counts before the number of nodes
)

// solve finds the best placement over all divisions, or returns nil and the
// divisions that do not fit.
//
// The best placement regardless of overload is the answer if it overloads no node. If
// it does, the best one without overload is the answer, even with more nodes; but more
// nodes must not leave a vCPU alone on its node. If every placement overloads a node,
// the answer is the one with the least shortfall.
func (p *problem) solve() (*solution, []refusal) {
	r := run{p: p, steps: p.policy.SearchSteps}
	r.search(nil)
	if r.best == nil || p.anyFit || p.overload(r.best.slots, r.best) == 0 {
		return r.result()
	}
	first, refused := r.best, r.refused
	p.aim, p.unavoidable = noOverload, len(first.cells)
	r.search(nil)
	if r.best != nil {
		return r.result()
	}
	unproven := r.open < impossible
	p.aim = leastOverload
	first.key = p.keyOf(first)
	r.search(first)
	r.refused = refused // the same rules apply, and the search found these already
	if unproven {
		r.open = min(r.open, leastKey(p, 1)) // a placement without overload may exist
	}
	return r.result()
}

// keyOf computes the key of a solution for the current aim.
func (p *problem) keyOf(sol *solution) (sum key) {
	for cell, s := range sol.slots {
		d := sol.demandOf(cell)
		sum += p.single(s, d, len(sol.slots))
		for other, t := range sol.slots[:cell] {
			sum += key(p.between(s, d, t, sol.demandOf(other)))
		}
	}
	return sum
}

// overload returns how many CPUs of demand the cells add beyond the CPUs of their nodes.
func (p *problem) overload(slots []slot, sol *solution) (sum int) {
	for cell, s := range slots {
		sum += p.overloadOf(&p.nodes[s.cpu], sol.demandOf(cell))
	}
	return sum
}

func (p *problem) overloadOf(n *nodeState, d *demand) int {
	cpus := d.vcpus + d.helpers
	if p.spec.CPU.Binding == guest.CPUExclusive || d.helpers > 0 {
		k, _ := p.pickFor(n, d)
		cpus = k.count()
		if p.spec.CPU.Binding != guest.CPUExclusive {
			cpus += d.vcpus
		}
	}
	return n.overload(cpus)
}

// shortfall is the first figure of the objective for one cell: vCPUs that share a core
// with another one of the guest. A search for the least overload also counts each vCPU
// beyond the node's CPUs twice, since it has no CPU at all, and once a part with a single
// vCPU: it waits for the other parts' memory.
func (p *problem) shortfall(n *nodeState, d *demand, cells int) int {
	short := p.sharing(n, d)
	if p.aim == leastOverload {
		short += 2 * p.overloadOf(n, d)
		if cells > 1 && d.vcpus == 1 && p.choosesCells() {
			short++
		}
	}
	return short
}

// tears reports whether a cell of that many vCPUs is too small to divide the guest into k
// cells only to avoid overload.
func (p *problem) tears(vcpus, k int) bool {
	return p.aim == noOverload && k > p.unavoidable && vcpus < 2 && p.choosesCells()
}

// ample returns how many vCPUs a cell may have before the search counts overload.
func (p *problem) ample(n *nodeState) int {
	if p.aim == ignoreOverload {
		return math.MaxInt
	}
	return n.withoutOverload()
}
