package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MemoryByNode says how much memory is on each node. A node that is missing has none.
type MemoryByNode map[NodeID]Bytes

// Nodes returns the nodes that have memory, ascending.
func (m MemoryByNode) Nodes() []NodeID {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(n NodeID) bool { return m[n] == 0 })
}

// Total returns the memory on all nodes together, at most the greatest amount.
func (m MemoryByNode) Total() (total Bytes) {
	for _, b := range m {
		total = total.Plus(b)
	}
	return total
}

// On returns the memory on the given nodes together, at most the greatest amount.
func (m MemoryByNode) On(nodes NodeSet) (total Bytes) {
	for n, b := range m {
		if nodes.Contains(n) {
			total = total.Plus(b)
		}
	}
	return total
}

// Add adds other's memory, node by node.
func (m MemoryByNode) Add(other MemoryByNode) {
	for n, b := range other {
		m[n] += b
	}
}

// String shows the nodes that have memory: "0: 1.5 GiB, 2: 512 MiB"; "-" without any.
func (m MemoryByNode) String() string {
	var parts []string
	for _, n := range m.Nodes() {
		parts = append(parts, fmt.Sprintf("%d: %v", n, m[n]))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
