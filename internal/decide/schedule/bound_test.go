package schedule

import (
	"slices"
	"sort"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"
)

// bound returns an upper bound of the VMs that any rule places before its first refusal: with
// hindsight, VMs in fractions, and, if VMs leave, free to move at any time.
func (tr trace) bound(tb testing.TB) int {
	tb.Helper()
	if tr.leave != nil {
		return tr.boundOfSums()
	}
	return sort.Search(len(tr.requests), func(n int) bool { return !tr.fitsInFractions(tb, n+1) })
}

// boundOfSums returns the first request at which the VMs that are there need more CPUs or memory
// than all hosts together have. On hosts that are equal, fractions need no more than that.
func (tr trace) boundOfSums() int {
	cpus, memory := 0, 0.0 // free
	for _, h := range tr.hosts {
		for _, n := range h {
			cpus, memory = cpus+n.cpus, memory+n.gib
		}
	}
	for i, r := range tr.requests {
		for _, gone := range tr.leaving(i) {
			cpus, memory = cpus+tr.requests[gone].vcpus, memory+tr.requests[gone].gib
		}
		cpus, memory = cpus-r.vcpus, memory-r.gib
		if cpus < 0 || memory < -1e-6 {
			return i
		}
	}
	return len(tr.requests)
}

// fitsInFractions reports whether a linear program can place all of the first n requests. Hosts with
// the same free room are one host with as much more of it.
func (tr trace) fitsInFractions(tb testing.TB, n int) bool {
	tb.Helper()
	wanted := map[demandedVM]float64{}
	for _, r := range tr.requests[:n] {
		wanted[r]++
	}
	var shapes []demandedVM
	for s := range wanted {
		shapes = append(shapes, s)
	}
	slices.SortFunc(shapes, func(a, b demandedVM) int {
		return slices.Compare([]float64{float64(a.vcpus), a.gib, float64(a.cells)},
			[]float64{float64(b.vcpus), b.gib, float64(b.cells)})
	})
	hosts := map[[2]freeNode]float64{}
	for _, h := range tr.hosts {
		hosts[h]++
	}

	// Rows: CPUs and memory of both nodes of each kind of host, then the VMs of each shape. Each row has
	// a slack variable, so that the empty placement is where the simplex method begins.
	rows := 4*len(hosts) + len(shapes)
	var columns [][]float64
	var limits []float64
	row := 0
	for h, count := range hosts {
		for _, node := range h {
			limits = append(limits, count*float64(node.cpus), count*node.gib)
		}
		for s, v := range shapes {
			for _, after := range placements(h, v) {
				column := make([]float64, rows)
				for i := range h {
					column[row+2*i] = float64(h[i].cpus - after[i].cpus)
					column[row+2*i+1] = h[i].gib - after[i].gib
				}
				column[4*len(hosts)+s] = 1
				columns = append(columns, column)
			}
		}
		row += 4
	}
	for _, v := range shapes {
		limits = append(limits, wanted[v])
	}
	variables := len(columns)
	a := mat.NewDense(rows, variables+rows, nil)
	cost := make([]float64, variables+rows)
	basis := make([]int, rows)
	for j, column := range columns {
		a.SetCol(j, column)
		cost[j] = -1
	}
	for i := range rows {
		a.Set(i, variables+i, 1)
		basis[i] = variables + i
	}
	least, _, err := lp.Simplex(cost, a, limits, 1e-9, basis)
	if err != nil {
		tb.Fatalf("linear program of %d requests on %d kinds of hosts: %v", n, len(hosts), err)
	}
	return -least > float64(n)-1e-6
}

// No rule places more VMs than the bound, with and without VMs that leave.
func TestBound(t *testing.T) {
	for seed := range uint64(4) {
		tr := drawTrace(seed, 6, 150)
		bound := tr.bound(t)
		equal := drawTrace(seed, 6, 400)
		equal.leave = make([][]int, len(equal.requests))
		for i := range equal.hosts {
			equal.hosts[i] = [2]freeNode{{32, 64}, {32, 64}}
		}
		for i := range equal.requests {
			if i >= 20 && i%3 > 0 {
				equal.leave[i] = []int{i - 20}
			}
		}
		boundOfEqual := equal.bound(t)
		for _, rule := range append(packingRules, packingRule{name: "schedule"}) {
			if first := tr.place(t, rule).first; first > bound {
				t.Errorf("seed %d: %s places %d VMs, the bound is %d", seed, rule.name, first, bound)
			}
			if first := equal.place(t, rule).first; first > boundOfEqual {
				t.Errorf("seed %d, VMs leave: %s places %d VMs, the bound is %d", seed, rule.name, first, boundOfEqual)
			}
		}
		t.Logf("seed %d: bounds %d and %d", seed, bound, boundOfEqual)
	}
}
