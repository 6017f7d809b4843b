package cost

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

const (
	slitLocal       = 10  // ACPI: a node's distance to itself
	slitUnreachable = 255 // ACPI: no path
	slitUnknown     = 20  // used where the firmware gives no distance for any pair
	// slitDamping is the exponent that makes SLIT resemble latency: the median
	// of log(latency ratio) / log(SLIT ratio) over seven machines for which
	// both are known (Haswell, Broadwell, Cascade Lake with and without SNC,
	// Genoa, Granite Rapids, Kunpeng 920) is 0.64; they range from 0.28 to 1.54.
	slitDamping = 0.65
	// noise is the ratio up to which two measured figures count as equal.
	// Repeated runs of latency benchmarks differ by 2 to 4 %.
	noise = 1.05
	// the largest ratio that counts: the range of SLIT.
	maxRatio = 25.4
)

// guest distances that libvirt and QEMU accept between different cells.
const (
	minGuestDistance = 11
	maxGuestDistance = 254
)

// Access holds the host's figures for memory access, for every pair of nodes, by
// position in Topology.Nodes. Latency is the measured one if all pairs of CPUs and
// memory have a measurement, else SLIT to the power slitDamping. Bandwidth counts
// only if it is measured for all pairs.
type Access struct {
	topology  *topology.Topology
	measured  bool
	size      int
	latency   []float64 // relative to the best of the host; 0: no path
	bandwidth []float64 // the host's best over this; all 1 if not measured
	slit      []int     // as the host reports it; 0: not given
}

// NewAccess reads the figures of a host.
func NewAccess(t *topology.Topology) *Access {
	n := len(t.Nodes)
	a := &Access{topology: t, size: n, slit: make([]int, n*n)}
	for i := range t.Nodes {
		for j := range t.Nodes {
			a.slit[i*n+j] = t.Nodes[i].Distances[t.Nodes[j].ID]
		}
	}
	var whole bool
	if a.latency, a.measured = a.table(t.Latency); a.measured {
		a.relative(a.latency, func(v, best float64) float64 { return v / best }, slices.Min[[]float64])
	} else {
		a.latency = a.dampedSLIT()
	}
	if a.bandwidth, whole = a.table(t.Bandwidth); whole {
		a.relative(a.bandwidth, func(v, best float64) float64 { return best / v }, slices.Max[[]float64])
	} else {
		a.bandwidth = slices.Repeat([]float64{1}, n*n)
	}
	return a
}

// table reads a measured matrix; whole reports whether it has a figure from every
// node with CPUs to every node with memory. For a node without CPUs it uses the
// figure of the opposite direction: only device terms need it.
func (a *Access) table(figure func(from, to topology.NodeID) (float64, bool)) (cells []float64, whole bool) {
	if a.topology.Measured == nil {
		return nil, false
	}
	nodes := a.topology.Nodes
	cells = make([]float64, a.size*a.size)
	for i := range nodes {
		for j := range nodes {
			v, ok := figure(nodes[i].ID, nodes[j].ID)
			if !ok {
				v, _ = figure(nodes[j].ID, nodes[i].ID)
			}
			if !ok && !nodes[i].CPUs.IsEmpty() && nodes[j].Memory > 0 {
				return nil, false
			}
			cells[i*a.size+j] = v
		}
	}
	return cells, true
}

// relative merges figures that differ only by noise, and divides by the best.
// Unknown figures (0) count as the worst known.
func (a *Access) relative(cells []float64, ratio func(v, best float64) float64, best func([]float64) float64) {
	known := make([]float64, 0, len(cells))
	for _, v := range cells {
		if v > 0 {
			known = append(known, v)
		}
	}
	if len(known) == 0 {
		for i := range cells {
			cells[i] = 1
		}
		return
	}
	slices.Sort(known)
	levels := []float64{known[0]}
	for _, v := range known {
		if v > levels[len(levels)-1]*noise {
			levels = append(levels, v)
		}
	}
	top := best(levels)
	worst := 1.0
	for _, v := range levels {
		worst = max(worst, ratio(v, top))
	}
	for i, v := range cells {
		cells[i] = min(worst, maxRatio)
		if v > 0 {
			at, exact := slices.BinarySearch(levels, v)
			if !exact {
				at-- // the level that v exceeds only by noise
			}
			cells[i] = min(ratio(levels[at], top), maxRatio)
		}
	}
}

func (a *Access) dampedSLIT() []float64 {
	farthest := 0
	for _, d := range a.slit {
		if d < slitUnreachable {
			farthest = max(farthest, d)
		}
	}
	if farthest <= slitLocal {
		farthest = slitUnknown
	}
	cells := make([]float64, a.size*a.size)
	damped := map[int]float64{} // a host has few distances, and a power takes long
	for i := range a.size {
		for j := range a.size {
			d := a.slit[i*a.size+j]
			switch {
			case d >= slitUnreachable && a.hasCPU(i):
				continue
			case d >= slitUnreachable: // a node without CPUs reaches nothing; use the opposite direction
				d = a.slit[j*a.size+i]
			}
			if d <= 0 || d >= slitUnreachable {
				d = farthest
				if i == j {
					d = slitLocal
				}
			}
			ratio, ok := damped[d]
			if !ok {
				ratio = min(math.Pow(max(1, float64(d)/slitLocal), slitDamping), maxRatio)
				damped[d] = ratio
			}
			cells[i*a.size+j] = ratio
		}
	}
	return cells
}

func (a *Access) hasCPU(i int) bool { return !a.topology.Nodes[i].CPUs.IsEmpty() }

// Measured reports whether latency is measured; otherwise it is derived from SLIT.
func (a *Access) Measured() bool { return a.measured }

// Reachable reports whether CPUs of the node at position i can access memory of the node at j.
func (a *Access) Reachable(i, j int) bool { return a.latency[i*a.size+j] > 0 }

// Latency returns the latency from CPUs of the node at position i to memory of the
// node at j, relative to the best of the host: at least 1. 0 means no path.
func (a *Access) Latency(i, j int) float64 { return a.latency[i*a.size+j] }

// Bandwidth returns the host's best bandwidth divided by the bandwidth from CPUs of
// the node at position i to memory of the node at j: at least 1.
func (a *Access) Bandwidth(i, j int) float64 { return a.bandwidth[i*a.size+j] }

// SLIT returns the host's own distance from position i to j; 0 if the host gives none.
func (a *Access) SLIT(i, j int) int { return a.slit[i*a.size+j] }

// GuestDistance returns the distance that a guest sees from a cell with CPUs on node
// pi and memory on node qi to a cell with its memory on qj, where 10 is the distance
// to its own memory. It follows measured latency, else SLIT, and is never below 11,
// the minimum that libvirt accepts.
func (a *Access) GuestDistance(pi, qi, qj int) int {
	nodes := a.topology.Nodes
	own, far := float64(a.SLIT(pi, qi)), float64(a.SLIT(pi, qj))
	if a.measured {
		own, _ = a.topology.Latency(nodes[pi].ID, nodes[qi].ID)
		far, _ = a.topology.Latency(nodes[pi].ID, nodes[qj].ID)
	}
	ratio := float64(slitUnknown) / slitLocal
	if own > 0 && far > 0 {
		ratio = far / own
	}
	return max(minGuestDistance, min(maxGuestDistance, int(math.Round(ratio*slitLocal))))
}
