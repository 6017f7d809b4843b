package schedule

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// shape is what counts of a spec for the room that it needs. VMs of the same shape
// are interchangeable for the summaries.
type shape struct {
	vcpus     int
	memory    topology.Bytes
	page      topology.Bytes // 0: small pages
	cells     int            // as many as the spec asks for; 0: as few as possible
	most      int            // the most cells; 0: one for each node
	uneven    bool           // package place may divide it into cells that differ
	exclusive bool
	machine   string // the type of its machine
}

// machineOf returns the type of a machine, with the default.
func machineOf(machine string) string { return cmp.Or(machine, inventory.MachineKVM) }

// shapeOf returns the shape of a normalized spec.
func shapeOf(s *guest.Spec) shape {
	out := shape{vcpus: s.VCPUs, memory: s.Memory, page: s.PageSize, most: s.Limits.MaxNodes,
		exclusive: s.CPU.Binding == guest.CPUExclusive, machine: machineOf("")}
	switch {
	case len(s.Topology.Cells) > 0:
		out.cells, out.uneven = len(s.Topology.Cells), true
	case s.Topology.Mode == guest.TopologyCells:
		out.cells = s.Topology.Count
		out.uneven = s.VCPUs%out.cells != 0 || s.Memory%topology.Bytes(out.cells) != 0
	default:
		out.uneven = true
	}
	return out
}

// shapeOfGuest returns the shape of a VM that runs already.
func shapeOfGuest(g *inventory.Guest) shape {
	out := shape{vcpus: g.Config.VCPUs, memory: g.Config.Memory, page: g.Config.PageSize}
	if g.Spec != nil {
		out = shapeOf(g.Spec)
	}
	out.machine = machineOf(inventory.MachineTypeOf(g.Hypervisor))
	return out
}

// compare orders shapes: any order that is the same each time.
func (s shape) compare(o shape) int {
	one := map[bool]int{true: 1}
	return cmp.Or(cmp.Compare(s.memory, o.memory), cmp.Compare(s.vcpus, o.vcpus), cmp.Compare(s.page, o.page),
		cmp.Compare(s.cells, o.cells), cmp.Compare(s.most, o.most), cmp.Compare(one[s.exclusive], one[o.exclusive]),
		cmp.Compare(one[s.uneven], one[o.uneven]), cmp.Compare(s.machine, o.machine))
}

// part is the demand of one cell of a shape on one node.
type part struct {
	vcpus     int
	memory    topology.Bytes
	page      topology.Bytes
	exclusive bool
	// Reciprocals, since fits divides millions of times.
	perVCPUs, perByte float64
}

// part returns the demand of one of k equal cells; the first cells have the vCPUs
// that do not divide evenly.
func (s shape) part(k int) part {
	n := topology.Bytes(k)
	p := part{vcpus: (s.vcpus + k - 1) / k, memory: (s.memory + n - 1) / n, page: s.page, exclusive: s.exclusive}
	p.perVCPUs, p.perByte = 1/float64(p.vcpus), 1/float64(max(1, p.memory))
	return p
}

// divisions returns the least and the greatest number of equal cells into which a
// VM of the shape may be divided on a host with this number of nodes.
func (s shape) divisions(nodes int) (least, most int) {
	if s.cells > 0 {
		return s.cells, s.cells
	}
	most = min(s.vcpus, nodes)
	if s.most > 0 {
		most = min(most, s.most)
	}
	return 1, most
}

const (
	// mostShapes bounds the shapes whose room is counted. The most frequent ones of the
	// traces that the tests replay cover over 95 % of their requests.
	mostShapes = 24
	// mixMemory is the number of requests after which the mix halves the weight of those before.
	mixMemory = 8192
)

// mix is how often each shape was asked for.
type mix struct {
	count map[shape]float64
	sum   float64
	next  float64 // the sum at which the fleet recomputes its weights
}

func (m *mix) add(s shape) {
	if m.count == nil {
		m.count = map[shape]float64{}
	}
	m.count[s]++
	if m.sum++; m.sum < mixMemory {
		return
	}
	m.sum = 0
	for s, n := range m.count {
		if n /= 2; n < 0.5 {
			delete(m.count, s)
		} else {
			m.count[s] = n
			m.sum += n
		}
	}
	m.next = min(m.next, m.sum)
}

// likely is a shape of requests to come and its share of all requests.
type likely struct {
	shape
	share float64
	parts []part // divided into 1, 2, ... cells, as far as the fleet asked
}

// part returns the demand of one of k cells.
func (l *likely) part(k int) *part {
	for len(l.parts) < k {
		l.parts = append(l.parts, l.shape.part(len(l.parts)+1))
	}
	return &l.parts[k-1]
}

// likely returns the most frequent shapes. Those that were among them before have the same
// places.
func (m *mix) likely(before []likely) []likely {
	shapes := slices.SortedFunc(maps.Keys(m.count), func(a, b shape) int {
		return cmp.Or(cmp.Compare(m.count[b], m.count[a]), a.compare(b))
	})
	shapes = shapes[:min(len(shapes), mostShapes)]
	sum := 0.0
	for _, s := range shapes {
		sum += m.count[s]
	}
	out := make([]likely, len(shapes))
	place := func(i int, s shape) { out[i] = likely{shape: s, share: m.count[s] / sum} }
	var rest []shape
	for _, s := range shapes {
		i := slices.IndexFunc(before, func(l likely) bool { return l.shape == s })
		if i < 0 || i >= len(out) {
			rest = append(rest, s)
			continue
		}
		place(i, s)
	}
	for i := range out {
		if out[i].share == 0 {
			place(i, rest[0])
			rest = rest[1:]
		}
	}
	return out
}
