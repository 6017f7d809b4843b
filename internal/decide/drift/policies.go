package drift

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// largestPolicyPage is the largest page size of memfd memory whose policy can be
// set from outside: hugetlbfs files retain theirs.
const largestPolicyPage = 64 * topology.KiB

// policies checks where the kernel allocates the pages that the guest touches from
// now on. Memfd memory accepts a policy from outside, so it must have the intended
// one. Other memory retains the policy it was started with. That is a difference
// only if the policy would allocate pages outside the guest's nodes and no cpuset
// prevents it.
func (c *comparison) policies() {
	mode := c.placed.MemoryMode
	if mode == guest.MemoryNone {
		return
	}
	mems := allowed(c.guest)
	within := !mems.IsEmpty() && mems.SubsetOf(c.placed.Nodes)
	reported := map[string]bool{}
	for i := range c.guest.Seen.Ranges {
		r := &c.guest.Seen.Ranges[i]
		if r.Cell == nil || r.Policy == "" {
			continue
		}
		target := targetOf(c.placed, *r.Cell)
		have := parsePolicy(r.Policy)
		settable := r.Backing == "memfd" && r.PageSize <= largestPolicyPage
		differs := !within && have.leaves(c.placed.Nodes)
		if settable && !(within && c.placed.Nodes.Len() == 1) {
			differs = differs || !have.serves(mode, target)
		}
		d := Difference{
			Kind:     MemoryPolicy,
			Object:   fmt.Sprintf("cell %d", *r.Cell),
			Intended: policyText(mode, target),
			Seen:     r.Policy,
		}
		if differs && !reported[d.String()] {
			reported[d.String()] = true
			c.found = append(c.found, d)
		}
	}
}

// policy is a memory policy of the kernel.
type policy struct {
	mode  string
	nodes topology.NodeSet
}

// parsePolicy reads numa_maps's form: "bind:0-1", "prefer (many):1-2",
// "interleave=static:0-3", "default" (mpol_to_str in mm/mempolicy.c).
func parsePolicy(text string) policy {
	mode, list, _ := strings.Cut(text, ":")
	mode, _, _ = strings.Cut(mode, "=")
	nodes, err := topology.ParseSet[topology.NodeID](list)
	if err != nil {
		nodes = topology.NodeSet{} // newer kernels may write an unknown form: then there are no nodes to judge by
	}
	return policy{mode, nodes}
}

// leaves reports whether the policy allocates pages on other nodes. Default memory
// is allocated where the thread that touches it runs, so the vCPUs' pins decide.
func (p policy) leaves(nodes topology.NodeSet) bool {
	return !p.nodes.IsEmpty() && !p.nodes.SubsetOf(nodes)
}

// serves reports whether the policy has the effect of the mode. A bind to the same
// nodes also serves preferred: libvirt uses one mode for guests without cells,
// and the outer limit is those nodes.
func (p policy) serves(mode guest.MemoryMode, nodes topology.NodeSet) bool {
	same := p.nodes.Equal(nodes)
	switch mode {
	case guest.MemoryStrict:
		return p.mode == "bind" && same
	case guest.MemoryPreferred:
		return (strings.HasPrefix(p.mode, "prefer") || p.mode == "bind") && same
	case guest.MemoryInterleave:
		return strings.HasSuffix(p.mode, "interleave") && same || p.mode == "bind" && same && nodes.Len() == 1
	case guest.MemoryRestrictive, guest.MemoryNone: // the limit alone
	}
	return !p.leaves(nodes)
}

func policyText(mode guest.MemoryMode, nodes topology.NodeSet) string {
	switch mode {
	case guest.MemoryStrict:
		return "bind:" + nodes.String()
	case guest.MemoryPreferred:
		return "prefer:" + nodes.String()
	case guest.MemoryInterleave:
		return "interleave:" + nodes.String()
	case guest.MemoryRestrictive, guest.MemoryNone:
	}
	return "none outside nodes " + nodes.String()
}
