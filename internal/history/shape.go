package history

import (
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// shape names the guests and nodes of a frame's figures. Frames share shapes:
// guests seldom start and end, and their memory seldom changes nodes.
type shape struct {
	nodes  []topology.NodeID // ascending
	guests []string          // ascending
	// first is the index of the first cell of each guest, followed by the number of
	// cells; a cell is a node that has memory of the guest, ascending.
	first []int32
	cells []int32
	users int // frames that have this shape
}

// bytes is the memory of the shape; each shape counts its names.
func (s *shape) bytes() int {
	n := allocated(160) + allocated(8*len(s.nodes)) + allocated(4*len(s.first)) + allocated(
		4*len(s.cells)) + allocated(16*len(s.guests))
	for _, g := range s.guests {
		n += allocated(len(g))
	}
	return n
}

// allocated is the memory that Go allocates for a number of bytes, or a little
// more. Go rounds up to size classes, which are less than an eighth apart
// beyond the smallest.
func allocated(bytes int) int { return (bytes + bytes/8 + 15) &^ 15 }

// cellsOf returns the nodes that hold memory of guest i.
func (s *shape) cellsOf(i int) []int32 { return s.cells[s.first[i]:s.first[i+1]] }

// shapeOf returns the shape that a sample needs: like, if that includes all its
// figures.
func shapeOf(nodes []inventory.NodeSample, guests []inventory.GuestSample, like *shape) *shape {
	s := &shape{first: make([]int32, 1, len(guests)+1)}
	for i := range nodes {
		s.nodes = append(s.nodes, nodes[i].Node)
	}
	for i := range guests {
		// A clone: the name may be part of a whole file's text.
		s.guests = append(s.guests, strings.Clone(guests[i].Name))
		from := len(s.cells)
		for n, bytes := range guests[i].MemoryByNode {
			if bytes > 0 {
				s.cells = append(s.cells, int32(n))
			}
		}
		slices.Sort(s.cells[from:])
		s.first = append(s.first, int32(len(s.cells)))
	}
	if like != nil && like.fits(s) {
		return like
	}
	if like != nil && slices.Equal(s.guests, like.guests) {
		s.guests = like.guests // the same names, stored once
	}
	return s
}

// fits reports whether s has the same guests and nodes as other, and at least its cells.
func (s *shape) fits(other *shape) bool {
	if s == other {
		return true
	}
	if !slices.Equal(s.nodes, other.nodes) || !slices.Equal(s.guests, other.guests) {
		return false
	}
	for i := range s.guests {
		if !covers(s.cellsOf(i), other.cellsOf(i)) {
			return false
		}
	}
	return true
}

// covers reports whether the ascending list a has all of the ascending list b.
func covers(a, b []int32) bool {
	for _, x := range b {
		i, found := slices.BinarySearch(a, x)
		if !found {
			return false
		}
		a = a[i+1:]
	}
	return true
}

// union returns a shape that includes the figures of both shapes.
func union(a, b *shape) *shape {
	if b.fits(a) {
		return b
	}
	if a.fits(b) {
		return a
	}
	s := &shape{first: []int32{0}}
	s.nodes = merged(a.nodes, b.nodes)
	s.guests = merged(a.guests, b.guests)
	for _, name := range s.guests {
		var cells []int32
		for _, of := range []*shape{a, b} {
			if i, found := slices.BinarySearch(of.guests, name); found {
				cells = merged(cells, of.cellsOf(i))
			}
		}
		s.cells = append(s.cells, cells...)
		s.first = append(s.first, int32(len(s.cells)))
	}
	return s
}

// merged returns the union of two ascending lists, ascending, each value once.
func merged[T int32 | string | topology.NodeID](a, b []T) []T {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
