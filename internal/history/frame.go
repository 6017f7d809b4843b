package history

import (
	"cmp"
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Columns of a guest and of a node, in the order in which a frame holds them.
// NaN stands for what was not measured.
const (
	guestWindow = iota // seconds; 0: the guest was absent
	guestCPU
	guestWait
	guestRemote
	guestMBps
	guestColumns
)
const (
	nodeCPU = iota
	nodeWait
	nodeMBps
	nodeUsed // bytes
	nodeColumns
)

// frame is one sample, or the mean of consecutive samples.
type frame struct {
	end    int64   // of its window, Unix time in ns
	window float32 // measured seconds; less than its span where there are gaps
	shape  *shape
	// values are nodeColumns for each node, guestColumns for each guest, then
	// the bytes in each cell.
	values  []float32
	sources []uint8 // of guestRemote, by guest
}

func emptyFrame(s *shape) frame {
	f := frame{shape: s,
		values:  make([]float32, nodeColumns*len(s.nodes)+guestColumns*len(s.guests)+len(s.cells)),
		sources: make([]uint8, len(s.guests))}
	nan := float32(math.NaN())
	for i := range nodeColumns * len(s.nodes) {
		f.values[i] = nan
	}
	for i := range s.guests {
		g := f.guest(i)
		g[guestRemote], g[guestMBps] = nan, nan
	}
	return f
}

// bytes is the memory of the frame, counted twice: lists grow by doubling.
func (f *frame) bytes() int { return 2*72 + allocated(4*len(f.values)) + allocated(len(f.sources)) }

func (f *frame) node(i int) []float32 { return f.values[nodeColumns*i:][:nodeColumns] }

func (f *frame) guest(i int) []float32 {
	return f.values[nodeColumns*len(f.shape.nodes)+guestColumns*i:][:guestColumns]
}

// memory returns the bytes in each cell of guest i.
func (f *frame) memory(i int) []float32 {
	all := f.values[nodeColumns*len(f.shape.nodes)+guestColumns*len(f.shape.guests):]
	return all[f.shape.first[i]:f.shape.first[i+1]]
}

// find returns the position of a guest that was measured in the frame.
func (f *frame) find(name string) (i int, ok bool) {
	i, ok = slices.BinarySearch(f.shape.guests, name)
	return i, ok && f.guest(i)[guestWindow] > 0
}

// frameOf returns a sample as a frame.
func (h *History) frameOf(s *inventory.Sample) frame {
	nodes := slices.SortedFunc(slices.Values(s.Nodes),
		func(a, b inventory.NodeSample) int { return cmp.Compare(a.Node, b.Node) })
	measured := slices.DeleteFunc(slices.Clone(s.Guests),
		func(g inventory.GuestSample) bool { return g.Load.Window <= 0 })
	slices.SortStableFunc(measured, func(a, b inventory.GuestSample) int { return cmp.Compare(a.Name, b.Name) })
	measured = slices.CompactFunc(measured, func(a, b inventory.GuestSample) bool { return a.Name == b.Name })
	var like *shape
	if last := h.last(); last != nil {
		like = last.shape
	}
	f := emptyFrame(shapeOf(nodes, measured, like))
	f.end, f.window = s.Taken.UnixNano(), float32(s.Window.Seconds())
	for i := range nodes {
		n := &nodes[i]
		v := f.node(i)
		v[nodeCPU], v[nodeWait], v[nodeMBps] = float32(n.CPU), float32(n.Wait), orNaN(n.MemoryMBps)
		v[nodeUsed] = float32(n.Memory) - float32(n.Free)
	}
	for i := range measured {
		h.fillGuest(&f, i, &measured[i])
	}
	return f
}

func (h *History) fillGuest(f *frame, i int, g *inventory.GuestSample) {
	v := f.guest(i)
	v[guestWindow], v[guestCPU], v[guestWait] = float32(g.Load.Window.Seconds()), float32(
		g.Load.CPU), float32(g.Load.Wait)
	v[guestMBps] = orNaN(g.Load.MemoryMBps)
	if r := g.Load.Remote; r != nil {
		if f.sources[i] = h.number(r.Source); f.sources[i] != 0 {
			v[guestRemote] = float32(r.Share)
		}
	}
	cells := f.shape.cellsOf(i)
	memory := f.memory(i)
	for n, bytes := range g.MemoryByNode {
		if at, found := slices.BinarySearch(cells, int32(n)); found {
			memory[at] = float32(bytes)
		}
	}
}

// number returns the number of a source, 0 for none. Four sources exist;
// numbers beyond 255 count as not measured.
func (h *History) number(s inventory.AccessSource) uint8 {
	i := slices.Index(h.sources, s)
	if i < 0 && len(h.sources) <= math.MaxUint8 {
		i = len(h.sources)
		h.sources = append(h.sources, s)
	}
	return uint8(max(i, 0))
}

// orNaN converts figures whose value 0 means that they were not measured.
func orNaN(v float64) float32 {
	if v == 0 {
		return float32(math.NaN())
	}
	return float32(v)
}

// in returns the frame in a shape that includes its own.
func (f *frame) in(s *shape) *frame {
	if f.shape == s {
		return f
	}
	wide := emptyFrame(s)
	wide.end, wide.window = f.end, f.window
	for i, n := range f.shape.nodes {
		at, _ := slices.BinarySearch(s.nodes, n)
		copy(wide.node(at), f.node(i))
	}
	for i, name := range f.shape.guests {
		at, _ := slices.BinarySearch(s.guests, name)
		copy(wide.guest(at), f.guest(i))
		wide.sources[at] = f.sources[i]
		cells := s.cellsOf(at)
		for j, n := range f.shape.cellsOf(i) {
			c, _ := slices.BinarySearch(cells, n)
			wide.memory(at)[c] = f.memory(i)[j]
		}
	}
	return &wide
}

// merge returns the mean of two frames, weighted by their windows, remote
// shares also by the CPUs used (see Load). Where one frame has no measurement,
// the other counts; of remote shares from different sources, the later counts.
func merge(earlier, later *frame) frame {
	s := union(earlier.shape, later.shape)
	a, b := earlier.in(s), later.in(s)
	m := emptyFrame(s)
	m.end, m.window = b.end, a.window+b.window
	for i := range s.nodes {
		for c := range nodeColumns {
			m.node(i)[c] = mean(a.node(i)[c], b.node(i)[c], a.window, b.window)
		}
	}
	for i := range s.guests {
		mergeGuest(&m, a, b, i)
	}
	return m
}

func mergeGuest(m, a, b *frame, i int) {
	va, vb, v := a.guest(i), b.guest(i), m.guest(i)
	wa, wb := va[guestWindow], vb[guestWindow]
	if wa+wb == 0 {
		return
	}
	for c := guestCPU; c < guestColumns; c++ {
		v[c] = mean(va[c], vb[c], wa, wb)
	}
	v[guestRemote] = mean(va[guestRemote], vb[guestRemote], wa*(va[guestCPU]+idle), wb*(vb[guestCPU]+idle))
	v[guestWindow] = wa + wb
	switch m.sources[i] = b.sources[i]; {
	case b.sources[i] == 0:
		m.sources[i] = a.sources[i]
	case a.sources[i] != b.sources[i]:
		v[guestRemote] = vb[guestRemote]
	}
	for j := range m.memory(i) {
		m.memory(i)[j] = mean(a.memory(i)[j], b.memory(i)[j], wa, wb)
	}
}

func mean(a, b, weightA, weightB float32) float32 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	wa, wb := float64(weightA), float64(weightB)
	return float32((float64(a)*wa + float64(b)*wb) / (wa + wb))
}
