package history

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Series holds the measurements of one guest or node, oldest first. All columns
// are as long as Times.
type Series struct {
	// Times are when the windows end, whose lengths in seconds are Window.
	Times  []time.Time `json:"times"`
	Window Column      `json:"window_seconds"`
	CPU    Column      `json:"cpu"`         // CPUs in use
	Wait   Column      `json:"wait"`        // additional CPUs that were wanted; of a node: threads that waited
	MBps   Column      `json:"memory_mbps"` // traffic to memory
	// Memory is bytes by node: the guest's, or what the node has in use.
	Memory map[topology.NodeID]Column `json:"memory_by_node"`
	// Remote is the share of a guest's accesses that leave the node, Local the
	// rest, Sources the source of each figure; all nil for a node.
	Remote  Column                   `json:"remote,omitempty"`
	Local   Column                   `json:"local,omitempty"`
	Sources []inventory.AccessSource `json:"sources,omitempty"`
}

// Column is one quantity over time; NaN, in JSON null, marks a value that was
// not measured.
type Column []float32

// MarshalJSON writes [1.5,null,2].
func (c Column) MarshalJSON() ([]byte, error) {
	text := []byte{'['}
	for i, v := range c {
		if i > 0 {
			text = append(text, ',')
		}
		if x := float64(v); math.IsNaN(x) || math.IsInf(x, 0) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, x, 'g', -1, 32)
		}
	}
	return append(text, ']'), nil
}

// Guest returns the series of a guest; without points if it was not measured.
func (h *History) Guest(name string) Series {
	s := Series{Memory: map[topology.NodeID]Column{}}
	h.all(func(f *frame) {
		i, there := f.find(name)
		if !there {
			return
		}
		v := f.guest(i)
		s.add(f.end, v[guestWindow], v[guestCPU], v[guestWait], v[guestMBps])
		s.Remote = append(s.Remote, v[guestRemote])
		s.Local = append(s.Local, 1-v[guestRemote])
		s.Sources = append(s.Sources, h.sources[f.sources[i]])
		for j, n := range f.shape.cellsOf(i) {
			s.remember(topology.NodeID(n), f.memory(i)[j])
		}
	})
	s.fill()
	return s
}

// Node returns the series of a node; without points if it was not measured.
func (h *History) Node(id topology.NodeID) Series {
	s := Series{Memory: map[topology.NodeID]Column{}}
	h.all(func(f *frame) {
		i, found := slices.BinarySearch(f.shape.nodes, id)
		if !found || math.IsNaN(float64(f.node(i)[nodeCPU])) {
			return
		}
		v := f.node(i)
		s.add(f.end, f.window, v[nodeCPU], v[nodeWait], v[nodeMBps])
		s.remember(id, v[nodeUsed])
	})
	return s
}

func (s *Series) add(end int64, window, cpu, wait, mbps float32) {
	s.Times = append(s.Times, time.Unix(0, end).UTC())
	s.Window = append(s.Window, window)
	s.CPU = append(s.CPU, cpu)
	s.Wait = append(s.Wait, wait)
	s.MBps = append(s.MBps, mbps)
}

// remember stores the memory of the latest point; earlier points without any get 0.
func (s *Series) remember(n topology.NodeID, bytes float32) {
	column := s.Memory[n]
	column = append(column, make(Column, len(s.Times)-1-len(column))...)
	s.Memory[n] = append(column, bytes)
}

// fill extends the columns of memory to the length of the others.
func (s *Series) fill() {
	for n, column := range s.Memory {
		s.Memory[n] = append(column, make(Column, len(s.Times)-len(column))...)
	}
}

// leastTrend is the shortest span from which a trend is computed.
const leastTrend = time.Minute

// Trend returns by how much a column of the series changes per hour: the slope
// of the line with the least squares, each point weighted by its window.
// False: less than a minute was measured.
func (s *Series) Trend(c Column) (perHour float64, ok bool) {
	var first, last int
	var t, y sum
	found := false
	hours := func(i int) float64 { // to the middle of the window, where a mean belongs
		return s.Times[i].Sub(s.Times[first]).Hours() - float64(s.Window[i])/7200
	}
	measured := func(see func(i int, w float64)) {
		for i, v := range c {
			if v == v {
				see(i, float64(s.Window[i]))
			}
		}
	}
	measured(func(i int, w float64) {
		if !found {
			first, found = i, true
		}
		last = i
		t.total, t.weight = t.total+w*hours(i), t.weight+w
		y.add(c[i], w)
	})
	if !found || s.Times[last].Sub(s.Times[first]) < leastTrend {
		return 0, false
	}
	var product, square float64
	measured(func(i int, w float64) {
		dt := hours(i) - t.mean()
		product += w * dt * (float64(c[i]) - y.mean())
		square += w * dt * dt
	})
	return product / square, true
}
