package bind

import (
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Rebind returns the nodes of a bind or interleave policy after a cpuset write.
// For each node, the ordinal in the old set becomes the ordinal in the new set,
// modulo the size of the new set; nodes outside the old set do not change.
// Shrinking a set loses information: {0},{1} narrowed to {1} and widened to {0,1}
// leaves both policies at node 0. Source: mpol_rebind_nodemask and bitmap_remap of
// the kernel; confirmed in the lab.
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

// rebinds reports whether the kernel remaps a policy on cpuset changes. The kernel
// only stores preferred policies; the default policy has no nodes.
func rebinds(mode string) bool {
	return mode == "bind" || mode == "interleave" || mode == "weighted interleave"
}

// SplitPolicy parses a policy in the form that numa_maps writes: "bind:0-1",
// "prefer:2", "prefer (many):1-2", "interleave:0-3", "default". It drops flags
// such as "=static".
func SplitPolicy(text string) (mode string, nodes topology.NodeSet) {
	mode, list, _ := strings.Cut(text, ":")
	mode, _, _ = strings.Cut(mode, "=")
	nodes, _ = topology.ParseSet[topology.NodeID](list) // an unreadable list gives the empty set
	return mode, nodes
}

// PolicyIs reports whether a numa_maps policy implements a memory mode on the given nodes.
func PolicyIs(text string, want guest.MemoryMode, nodes topology.NodeSet) bool {
	mode, have := SplitPolicy(text)
	switch want {
	case guest.MemoryStrict:
		return mode == "bind" && have.Equal(nodes)
	case guest.MemoryPreferred:
		// libvirt sets bind on all nodes of the limit for a guest without visible cells: no overflow is possible.
		return (strings.HasPrefix(mode, "prefer") || mode == "bind") && have.Equal(nodes)
	case guest.MemoryInterleave:
		return strings.HasSuffix(mode, "interleave") && have.Equal(nodes)
	default:
		return mode == "default" || mode == "local"
	}
}
