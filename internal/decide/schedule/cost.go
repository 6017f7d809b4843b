package schedule

import (
	"math"
	"slices"
)

// rank compares hosts for a VM: see the package comment. The smaller one is better.
type rank struct {
	cost float64
	// Small numbers, since a decision compares as many ranks as there are hosts.
	sharing    int16 // vCPUs
	overloaded int16 // nodes
	cells      int16 // 0: the VM does not fit, divided equally
	room       int16 // the cheapest room for a VM of one cell
}

// Figure is one of the figures by which hosts are compared.
type Figure string

// The figures, in the order in which they decide.
const (
	SharedCores     Figure = "shared cores"
	OverloadedNodes Figure = "overloaded nodes"
	Nodes           Figure = "nodes"
	Cost            Figure = "cost"
)

// decides returns the first figure in which two ranks differ.
func (r *rank) decides(o *rank) Figure {
	switch {
	case r.sharing != o.sharing:
		return SharedCores
	case r.overloaded != o.overloaded:
		return OverloadedNodes
	case r.cells != o.cells:
		return Nodes
	}
	return Cost
}

func (r *rank) less(o *rank) bool {
	if r.sharing != o.sharing {
		return r.sharing < o.sharing
	}
	if r.overloaded != o.overloaded {
		return r.overloaded < o.overloaded
	}
	if r.cells != o.cells {
		return r.cells < o.cells
	}
	return r.cost < o.cost
}

// scarcity returns the weights of the likely shapes: (share / number that fit)^2,
// scaled to a sum of 1. A shape that no longer fits counts as half a fit.
func (f *Fleet) scarcity() []float64 {
	w := make([]float64, len(f.likely))
	sum := 0.0
	for s := range f.likely {
		if f.left[s] > 0 {
			rate := f.likely[s].share / f.left[s]
			w[s] = rate * rate
			sum += w[s]
		}
	}
	for s := range w {
		w[s] /= max(sum, math.SmallestNonzeroFloat64)
	}
	return w
}

// price computes the rank of a host for a shape. The nodes that package place will
// choose are not known yet: the cheapest ones count. It leaves the parts of the cost in lost and
// rest.
func (f *Fleet) price(h *host, asked *likely, weights []float64) rank {
	best := rank{}
	if h.closed() != "" || !slices.Contains(h.makes, asked.machine) {
		return best
	}
	least, most := asked.divisions(len(h.rooms))
	for k := least; k <= most; k++ {
		p := asked.part(k)
		at := f.cheapest(h, p, k, weights)
		if len(at) < k {
			continue
		}
		r := rank{cells: int16(k), room: int16(at[0].index)}
		load := 0.0
		for _, c := range at {
			r.sharing += c.sharing
			r.overloaded += c.overloaded
			load = max(load, h.rooms[c.index].use(p))
		}
		rest := f.weights.Load*load + f.weights.Fill*f.free(h, p, k) + h.Preference
		taken := f.taken(h, at, weights)
		r.cost = f.weights.Scarcity*taken + rest
		if best.cells == 0 || r.less(&best) {
			best, f.rest = r, rest
			f.lost, f.counted = f.counted, f.lost
		}
		if r.sharing == 0 && r.overloaded == 0 {
			break // more cells are not better
		}
	}
	return best
}

// taken returns how many fits of the likely shapes a host loses by parts on some of
// its rooms, weighted. It leaves the numbers in counted.
func (f *Fleet) taken(h *host, at []choice, weights []float64) float64 {
	sum := 0.0
	for s := range f.likely {
		fit := &h.fits[s]
		f.counted[s] = 0
		if fit.cells == 0 {
			continue
		}
		lost := 0.0
		for _, c := range at {
			lost += f.roomLost[c.index*len(f.likely)+s]
		}
		if fit.cells > 1 && lost > 0 {
			f.counts = append(f.counts[:0], fit.on...)
			for _, c := range at {
				f.counts[c.index] -= f.roomLost[c.index*len(f.likely)+s]
			}
			lost = fit.vms - several(f.counts, fit.cells)
		}
		f.counted[s] = uint16(min(lost, math.MaxUint16))
		sum += weights[s] * float64(f.counted[s])
	}
	return sum
}

// free returns the vCPUs and the memory that remain free on a host with k more
// parts, each as a share of what the fleet's largest host has.
func (f *Fleet) free(h *host, p *part, k int) float64 {
	vcpus, memory := -float64(k*p.vcpus), -float64(k)*float64(p.memory)
	for i := range h.rooms {
		vcpus += max(0, h.rooms[i].vcpus)
		memory += float64(h.rooms[i].left)
	}
	return (vcpus/f.largest.vcpus + memory/f.largest.memory) / 2
}

// choice is a room for a part.
type choice struct {
	index int
	rank
}

// cheapest returns k rooms of a host that a part fits on, cheapest first: those
// without overload and with the fewest fits of the likely shapes taken away. The result is
// valid until the next call.
func (f *Fleet) cheapest(h *host, p *part, k int, weights []float64) []choice {
	f.choices = f.choices[:0]
	n := len(f.likely)
	if len(f.roomLost) < n*len(h.rooms) {
		f.roomLost = make([]float64, n*len(h.rooms))
	}
	for i := range h.rooms {
		room := &h.rooms[i]
		if room.fits(p) < 1 {
			continue
		}
		c := choice{index: i}
		c.sharing = int16(max(0, p.vcpus-room.cores))
		if room.use(p) > 1 {
			c.overloaded = 1
		}
		if twin := slices.IndexFunc(f.choices, func(o choice) bool { return h.rooms[o.index].equal(room) }); twin >= 0 {
			c.cost = f.choices[twin].cost
			t := f.choices[twin].index
			copy(f.roomLost[i*n:(i+1)*n], f.roomLost[t*n:(t+1)*n])
		} else {
			c.cost = f.takenOn(h, i, p, weights)
		}
		f.choices = append(f.choices, c)
	}
	if len(f.choices) < k {
		return nil
	}
	for i := range k { // k is small, and the best rooms suffice
		best := i
		for j := i + 1; j < len(f.choices); j++ {
			if f.choices[j].less(&f.choices[best].rank) {
				best = j
			}
		}
		f.choices[i], f.choices[best] = f.choices[best], f.choices[i]
	}
	return f.choices[:k]
}

// takenOn returns how many fits a part takes from a room. A fit in several cells counts in parts.
// It leaves the numbers in roomLost.
func (f *Fleet) takenOn(h *host, i int, p *part, weights []float64) float64 {
	after := h.rooms[i].without(p)
	out := f.roomLost[i*len(f.likely):]
	sum := 0.0
	for s := range f.likely {
		fit := &h.fits[s]
		if fit.cells == 0 {
			continue
		}
		out[s] = fit.on[i] - after.fits(f.likely[s].part(fit.cells))
		sum += weights[s] * out[s] / float64(fit.cells)
	}
	return sum
}
