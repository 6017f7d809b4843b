package cost

import (
	"math"

	"github.com/numavisor/numavisor/internal/policy"
)

// Term is one kind of cost.
type Term int

// The terms, in the order of policy.Weights.
const (
	Latency Term = iota
	Bandwidth
	Load
	Stranding
	WideRoom
	Devices
	Cache
	Growth
	NumTerms
)

var termNames = [NumTerms]string{
	"latency", "bandwidth", "load", "stranding", "wide_room", "devices", "cache", "growth",
}

var termUnits = [NumTerms]string{
	"ratio to the best - 1", "best ratio - 1", "share in use", "share of a node", "share of a node",
	"ratio to the best - 1", "caches - 1", "share of the pages",
}

// String returns the term's name as in policy.Weights.
func (t Term) String() string { return termNames[t] }

// Unit describes the unit of the term's value.
func (t Term) Unit() string { return termUnits[t] }

// Terms holds an amount for each term.
type Terms [NumTerms]Micro

// Add returns the sum, term by term.
func (t Terms) Add(u Terms) Terms {
	for i := range t {
		t[i] += u[i]
	}
	return t
}

// Sum returns the total.
func (t Terms) Sum() Micro {
	var sum Micro
	for _, v := range t {
		sum += v
	}
	return sum
}

// List is the price list of one policy.
type List struct {
	weight [NumTerms]float64
	pack   bool
}

// NewList makes the price list of a policy.
func NewList(p policy.Policy) List {
	p = p.WithDefaults()
	w := p.Weights
	return List{
		weight: [NumTerms]float64{w.Latency, w.Bandwidth, w.Load, w.Stranding, w.WideRoom, w.Devices, w.Cache,
			w.Growth},
		pack: p.Prefer == policy.PreferPack,
	}
}

// Weight returns a term's weight.
func (l List) Weight(t Term) float64 { return l.weight[t] }

// Price multiplies the value of a term by its weight.
func (l List) Price(t Term, value float64) Micro { return Of(l.weight[t] * value) }

// Use is the used shares of a node: of its CPUs (vCPUs that share CPUs and
// exclusive CPUs alike; above 1 is overcommitted) and of its memory.
type Use struct{ CPU, Memory float64 }

// CPULoad is the value of CPU use: above 1, waiting grows with the square of the
// ratio of requested to available CPUs.
func (l List) CPULoad(use float64) float64 {
	switch {
	case use > 1:
		return use * use
	case l.pack:
		return 1 - use
	}
	return use
}

// MemoryLoad is the value of memory use.
func (l List) MemoryLoad(use float64) float64 {
	if l.pack {
		return max(0, 1-use)
	}
	return use
}

// StrandingGrowth returns the growth of the share of a node that is free of one
// resource while the other is used up: |free CPUs - free memory| after, less
// before. It is negative if the guest restores the balance.
func StrandingGrowth(before, after Use) float64 { return stranded(after) - stranded(before) }

func stranded(u Use) float64 {
	return math.Abs(max(0, 1-u.CPU) - max(0, 1-u.Memory))
}
