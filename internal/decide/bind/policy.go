package bind

import (
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Rebind tells what a cpuset write does to the nodes of a bind or interleave
// policy: node by node, the ordinal in the old set becomes the ordinal in the
// new one, folded modulo its size; nodes outside the old set stay. Information
// is lost when sets shrink: {0},{1} narrowed to {1} and widened to {0,1} leaves
// both policies at node 0. Source: mpol_rebind_nodemask and bitmap_remap of the
// kernel; seen in the lab.
func Rebind(policy, old, fresh topology.NodeSet) topology.NodeSet {
	if fresh.IsEmpty() {
		return policy
	}
	from, to := old.IDs(), fresh.IDs()
	var result topology.NodeSet
	for node := range policy.All() {
		mapped := node
		for ordinal, id := range from {
			if id == node {
				mapped = to[ordinal%len(to)]
			}
		}
		result = result.With(mapped)
	}
	if result.IsEmpty() {
		return fresh
	}
	return result
}

// rebinds reports whether the kernel remaps a policy on cpuset changes:
// preferred ones are only stored, default has no nodes.
func rebinds(mode string) bool {
	return mode == "bind" || mode == "interleave" || mode == "weighted interleave"
}

// SplitPolicy takes a policy apart as numa_maps writes it: "bind:0-1",
// "prefer:2", "prefer (many):1-2", "interleave:0-3", "default". Flags such as
// "=static" are dropped.
func SplitPolicy(text string) (mode string, nodes topology.NodeSet) {
	mode, list, _ := strings.Cut(text, ":")
	mode, _, _ = strings.Cut(mode, "=")
	nodes, _ = topology.ParseSet[topology.NodeID](list) // a list that cannot be read names no node
	return mode, nodes
}

// PolicyIs reports whether a numa_maps policy does what a memory mode asks for on the given nodes.
func PolicyIs(text string, want guest.MemoryMode, nodes topology.NodeSet) bool {
	mode, have := SplitPolicy(text)
	switch want {
	case guest.MemoryStrict:
		return mode == "bind" && have.Equal(nodes)
	case guest.MemoryPreferred:
		// libvirt gives a guest without visible cells bind for its whole limit: nothing is outside it to overflow to.
		return (strings.HasPrefix(mode, "prefer") || mode == "bind") && have.Equal(nodes)
	case guest.MemoryInterleave:
		return strings.HasSuffix(mode, "interleave") && have.Equal(nodes)
	default:
		return mode == "default" || mode == "local"
	}
}
