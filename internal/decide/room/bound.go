package room

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// kind is one of the figures in which a node can be short.
type kind int

const (
	smallPages kind = iota // memory in small pages
	wantedMemory
	sharedCPUs
	kinds
)

func (a *amount) of(k kind) float64 { return [kinds]float64{a.small, a.wanted, a.vcpus}[k] }

// left is what remains on a node, in the units of amount; negative: it is short.
type left [kinds]float64

// relief is how much a candidate's move frees, and at least how much it copies.
type relief struct {
	candidate int
	frees     float64
	bytes     topology.Bytes
}

// cheapestFirst sorts by the bytes copied for each unit that is freed.
func cheapestFirst(all []relief) {
	slices.SortStableFunc(all, func(a, b relief) int {
		x, y := float64(a.bytes)*b.frees, float64(b.bytes)*a.frees
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

// measure computes what is left on each node, and what each candidate could free there.
func (s *search) measure(nodes []capacity.Node) {
	s.left = make([]left, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		wanted := float64(n.Left)
		if size := s.spec.PageSize; size > 0 {
			wanted = float64(n.Pool(size)) * float64(size)
			if s.policy.MayGrow(size) {
				wanted += float64(n.Left)
			}
		}
		s.left[i] = left{float64(n.Left), wanted, s.policy.Overcommit*float64(n.Shared.Len()) - n.Load}
	}
	s.needs = left{0, float64(s.spec.Memory), float64(s.spec.VCPUs)}
	switch s.spec.CPU.Binding {
	case guest.CPUExclusive:
		s.needs[sharedCPUs] *= s.policy.Overcommit
	case guest.CPUNone:
		s.needs[sharedCPUs] = 0
	default:
	}
	s.weigh()
}

// weigh sorts the candidates by the price of what they free.
func (s *search) weigh() {
	s.reliefs = make([][kinds][]relief, len(s.left))
	s.anywhere = nil
	for i := range s.all {
		c := &s.all[i]
		sum := 0.0
		for _, a := range c.leaves {
			sum += a.wanted
			for k := range kinds {
				if f := a.of(k); f > 0 {
					s.reliefs[a.node][k] = append(s.reliefs[a.node][k], relief{i, f, c.least})
				}
			}
		}
		if sum > 0 {
			s.anywhere = append(s.anywhere, relief{i, sum, c.least})
		}
	}
	for n := range s.reliefs {
		for k := range kinds {
			cheapestFirst(s.reliefs[n][k])
		}
	}
	cheapestFirst(s.anywhere)
}

// slack is the tolerance for rounding errors in sums: of vCPUs, and of bytes.
const slack = 1e-6

// atLeast returns how many bytes must be copied at least to free an amount, if only
// candidates after the last one move; infinite: they hold less than that.
func atLeast(short float64, from []relief, last int) float64 {
	sum := 0.0
	for _, r := range from {
		if short <= slack {
			break
		}
		if r.candidate > last {
			part := min(1, short/r.frees)
			sum += part * float64(r.bytes)
			short -= part * r.frees
		}
	}
	if short > slack {
		return math.Inf(1)
	}
	return sum
}

// missing returns how many bytes must be copied at least in addition to a set of moves
// before all its targets have what they promise, and the new guest fits. Only
// candidates after the last one of the set are added to it. now is what is left on
// each node after the moves of the set.
func (s *search) missing(now []left, targets []int, last int) float64 {
	most := 0.0
	s.work += len(s.homes) + len(targets)
	for _, n := range targets {
		for _, k := range [...]kind{smallPages, sharedCPUs} {
			most = max(most, atLeast(-now[n][k], s.reliefs[n][k], last))
		}
	}
	if s.single {
		best := math.Inf(1)
		for _, n := range s.homes {
			here := 0.0
			for _, k := range [...]kind{wantedMemory, sharedCPUs} {
				here = max(here, atLeast(s.needs[k]-now[n][k], s.reliefs[n][k], last))
			}
			best = min(best, here)
		}
		return max(most, best)
	}
	roomiest := make([]float64, 0, len(s.homes))
	for _, n := range s.homes {
		roomiest = append(roomiest, max(0, now[n][wantedMemory]))
	}
	slices.Sort(roomiest)
	sum := 0.0
	for _, m := range roomiest[max(0, len(roomiest)-s.widest):] {
		sum += m
	}
	return max(most, atLeast(s.needs[wantedMemory]-sum, s.anywhere, last))
}
