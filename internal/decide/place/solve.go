package place

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
)

// solution is a slot for every cell.
type solution struct {
	cells []cellSize
	kinds []demand
	slots []slot // by cell
	key   key
	// uneven says that the cells were sized for the slots.
	uneven bool
	// For Why: the lowest key that is not excluded, and how the divisions were searched.
	open       key
	considered int
	pruned     int
	// divisions into fewer cells that do not fit
	smaller []refusal
}

// proven reports whether no better solution can exist.
func (sol *solution) proven() bool { return sol.open >= sol.key }

// refusal is a division into cells that does not fit.
type refusal struct {
	cells    int
	kinds    []demand
	fitting  int // homes on which some cell fits
	unproven bool
}

// search finds the best placement over all divisions for the problem's aim, or collects
// the divisions that do not fit. The answer must be better than a known one, if any.
//
// It tries divisions with the fewest cells first, equal cells before uneven ones. It
// defers those with a shortfall of CPUs or cores until all others have been tried, and
// then tries the most promising first.
func (r *run) search(known *solution) {
	r.best, r.refused, r.open = known, nil, impossible
	r.p.rooms, r.p.priced = nil, nil
	var later []division
	for _, cells := range r.p.shapes() {
		if r.best != nil && key(len(cells))<<nodesBit-1<<(nodesBit-1) > r.best.key {
			break // more nodes, even with no shortfall and at no cost
		}
		d := r.p.divide(cells)
		if d.least < impossible && shortfallOf(d.least) > 0 {
			later = append(later, d)
			continue
		}
		r.try(&d)
		r.tryUneven(len(cells))
	}
	for k := r.p.equalParts() + 1; k <= r.p.mostParts(); k++ {
		r.tryUneven(k)
	}
	slices.SortStableFunc(later, func(a, b division) int { return cmp.Compare(a.least, b.least) })
	for i := range later {
		r.try(&later[i])
		r.tryUneven(len(later[i].cells))
	}
}

// result returns the best placement with the figures for Why, or the divisions that do not fit.
func (r *run) result() (*solution, []refusal) {
	if r.best == nil {
		return nil, r.refused
	}
	r.best.open, r.best.considered, r.best.pruned = r.open, r.considered, r.pruned
	for _, f := range r.refused {
		if f.cells < len(r.best.cells) {
			r.best.smaller = append(r.best.smaller, f)
		}
	}
	return r.best, r.refused
}

// division is the guest divided into cells, with the costs of each cell.
type division struct {
	cells  []cellSize
	kinds  []demand
	slots  []slot  // where some kind fits
	single [][]key // by kind and slot
	least  key     // nothing in this division is cheaper
}

func (p *problem) divide(cells []cellSize) division {
	d := division{cells: cells, kinds: p.kindsOf(cells)}
	d.slots, d.single = p.price(d.kinds, len(cells))
	d.least = impossible
	limit := p.spec.Limits.MaxNodes
	if len(d.slots) >= len(cells) && (limit == 0 || len(cells) <= limit) {
		d.least = leastOf(d.kinds, d.single)
	}
	return d
}

// run is the state while divisions are tried.
type run struct {
	p          *problem
	best       *solution
	refused    []refusal
	steps      int // left for all searches together
	considered int
	pruned     int
	open       key // lower bound of the placements that were not evaluated
}

// try searches one division for a solution better than the best so far.
func (r *run) try(d *division) {
	k := len(d.cells)
	if r.p.tears(d.cells[k-1].vcpus, k) {
		return
	}
	beat := r.beat(false)
	refused := refusal{cells: len(d.cells), kinds: d.kinds, fitting: len(d.slots)}
	r.considered += len(d.slots)
	var found *solution
	switch {
	case d.least >= beat:
	case k == 1:
		found = r.p.solveOne(d)
	default:
		s := newSearch(r.p, d.kinds, d.slots, d.single, max(1, r.steps))
		s.best = beat
		s.run()
		refused.unproven = s.open < impossible
		r.steps, r.considered = r.steps-s.used, r.considered+s.used
		r.pruned += choicesLess(len(d.slots), len(d.cells), s.used)
		r.open = min(r.open, s.open)
		found = d.solution(s)
	}
	switch {
	case found != nil && found.key < beat:
		r.best = found
	case r.best == nil:
		r.refused = append(r.refused, refused)
	}
}

// beat returns the key that the next answer must be below. Uneven cells do not replace
// equal ones, and equal cells replace uneven ones, if only the cost differs.
func (r *run) beat(uneven bool) key {
	switch {
	case r.best == nil:
		return impossible
	case uneven == r.best.uneven:
		return r.best.key
	case uneven:
		return headOf(r.best.key)<<nodesBit - 1<<(nodesBit-1)
	}
	return headOf(r.best.key)<<nodesBit + 1<<(nodesBit-1)
}

// tryUneven searches for k uneven cells if no equal ones do as well: uneven cells
// must have fewer vCPUs that share cores, or use fewer nodes.
func (r *run) tryUneven(k int) {
	if k < 2 || !r.p.choosesCells() {
		return
	}
	beat := r.beat(true)
	if leastKey(r.p, k) >= beat {
		return
	}
	u := newUneven(r.p, k, beat, max(1, r.steps))
	least := leastKey(r.p, k) + key(u.leastShortfall())<<sharingBit
	if least >= beat {
		return
	}
	before := u.steps
	u.run()
	r.steps, r.considered = r.steps-(before-u.steps), r.considered+before-u.steps
	if u.found != nil {
		r.best = u.found
		r.best.uneven = true
	}
	if !u.cut {
		return
	}
	r.open = min(r.open, least)
	if n := len(r.refused); n > 0 {
		r.refused[n-1].unproven = true
	}
}

// leastKey is a lower bound of the key of any placement in k cells: only the term for
// stranding can be negative.
func leastKey(p *problem, k int) key {
	return key(k)<<nodesBit - key(p.list.Price(cost.Stranding, 1)) - key(k) // each cell's price is rounded
}

// choosesCells reports whether the spec leaves the sizes of cells to placing.
func (p *problem) choosesCells() bool {
	return p.spec.Topology.Mode == guest.TopologyAuto || p.spec.Topology.Mode == guest.TopologyOff
}

// solution reads the slots of the cells from a search; nil if the search found none.
func (d *division) solution(s *search) *solution {
	if s.found == nil {
		return nil
	}
	sol := &solution{cells: d.cells, kinds: d.kinds, key: s.best, slots: make([]slot, len(d.cells))}
	at := 0
	for k := range d.kinds {
		var chosen []int
		for _, column := range s.found[at : at+len(d.kinds[k].cells)] {
			chosen = append(chosen, s.slot[column])
		}
		slices.Sort(chosen)
		for i, cell := range d.kinds[k].cells {
			sol.slots[cell] = d.slots[chosen[i]]
		}
		at += len(chosen)
	}
	return sol
}

// shapes lists the divisions to try, fewest cells first.
func (p *problem) shapes() [][]cellSize {
	var out [][]cellSize
	add := func(cells []cellSize, ok bool) {
		if ok {
			out = append(out, cells)
		}
	}
	switch t := &p.spec.Topology; {
	case t.Mode == guest.TopologyMirror:
		add(p.mirrorShape())
	case t.Mode == guest.TopologyCells:
		add(p.shape(max(t.Count, len(t.Cells))))
	default:
		for k := 1; k <= p.equalParts(); k++ {
			add(p.shape(k))
		}
	}
	return out
}

// mostParts is the largest number of parts into which placing divides a guest if its
// spec leaves that open; 0 if it does not.
func (p *problem) mostParts() int {
	if !p.choosesCells() {
		return 0
	}
	most := min(p.homes(), int(min(p.spec.Memory/max(p.spec.PageSize, smallUnit), math.MaxInt32)))
	if limit := p.spec.Limits.MaxNodes; limit > 0 {
		most = min(most, limit)
	}
	return max(1, most)
}

// equalParts is the same for equal parts, each of which has a vCPU.
func (p *problem) equalParts() int { return min(p.mostParts(), p.spec.VCPUs) }

// homes returns the largest number of cells that the host could take at once.
func (p *problem) homes() int {
	seen := make([]bool, len(p.nodes))
	count := 0
	for _, s := range p.slots {
		if !seen[s.cpu] {
			seen[s.cpu] = true
			count++
		}
	}
	return count
}

// leastOf returns a lower bound of the cost of the cells: each kind in its cheapest
// slots, without access between cells.
func leastOf(kinds []demand, single [][]key) key {
	total := key(0)
	for k := range kinds {
		sorted := slices.Sorted(slices.Values(single[k]))
		for _, v := range sorted[:len(kinds[k].cells)] {
			if v >= impossible {
				return impossible
			}
			total += v
		}
	}
	return total
}

// solveOne finds the cheapest slot for a single cell; among equals the first.
func (p *problem) solveOne(d *division) *solution {
	best, single := -1, d.single[0]
	for i, s := range d.slots {
		if limit := p.spec.Limits.MaxNodes; limit > 0 && s.nodeCount() > limit {
			continue
		}
		if p.coversRequired(s) && (best < 0 || single[i] < single[best]) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return &solution{cells: d.cells, kinds: d.kinds, key: single[best], slots: []slot{d.slots[best]}}
}

func (p *problem) coversRequired(s slot) bool {
	for n := range p.required.All() {
		if p.nodes[s.cpu].node.ID != n && p.nodes[s.mem].node.ID != n {
			return false
		}
	}
	return true
}

// kindsOf groups cells with the same requirements, the most demanding kind first.
func (p *problem) kindsOf(cells []cellSize) []demand {
	var kinds []demand
	for i, c := range cells {
		k := slices.IndexFunc(kinds, func(d demand) bool { return d.cellSize == c })
		if k < 0 {
			k = len(kinds)
			kinds = append(kinds, demand{
				cellSize:    c,
				cpuShare:    float64(c.vcpus) / float64(p.spec.VCPUs),
				memoryShare: float64(c.take) / float64(p.spec.Memory),
			})
		}
		kinds[k].cells = append(kinds[k].cells, i)
	}
	sort.SliceStable(kinds, func(a, b int) bool {
		return kinds[a].cpuShare+kinds[a].memoryShare > kinds[b].cpuShare+kinds[b].memoryShare
	})
	return kinds
}

// price computes the key of every kind of cell in every slot, and omits slots where
// none fits.
func (p *problem) price(kinds []demand, cells int) ([]slot, [][]key) {
	flat := make([]key, len(kinds)*len(p.slots))
	single := make([][]key, len(kinds))
	for k := range kinds {
		single[k] = flat[k*len(p.slots) : k*len(p.slots) : (k+1)*len(p.slots)]
	}
	slots := make([]slot, 0, len(p.slots))
	keys := make([]key, len(kinds))
	for _, s := range p.slots {
		low := impossible
		for k := range kinds {
			keys[k] = p.single(s, &kinds[k], cells)
			low = min(low, keys[k])
		}
		if low >= impossible {
			continue
		}
		slots = append(slots, s)
		for k := range kinds {
			single[k] = append(single[k], keys[k])
		}
	}
	return slots, single
}

// choicesLess returns how many node sets bounds excluded without evaluation.
func choicesLess(slots, cells, used int) int {
	const most = 1 << 52
	total := 1.0
	for i := range cells {
		total *= float64(slots-i) / float64(i+1)
	}
	return max(0, int(min(total, most))-used)
}
