package drift

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// largestPolicyPage is the largest page of memfd memory whose policy can be
// set from outside: hugetlbfs files keep theirs.
const largestPolicyPage = 64 * topology.KiB

// policies: where pages go that the guest touches from now on. Memfd memory
// takes a policy from outside, so it shall have the intended one. Other memory
// keeps what it was started with; that is a difference only where it would
// send pages out of the guest's nodes, which no cpuset prevents.
func (c *comparison) policies() {
	mode := c.placed.MemoryMode
	if mode == guest.MemoryNone {
		return
	}
	mems := allowed(c.guest)
	held := !mems.IsEmpty() && mems.SubsetOf(c.placed.Nodes)
	told := map[string]bool{}
	for i := range c.guest.Seen.Ranges {
		r := &c.guest.Seen.Ranges[i]
		if r.Cell == nil || r.Policy == "" {
			continue
		}
		target := targetOf(c.placed, *r.Cell)
		have := parsePolicy(r.Policy)
		settable := r.Backing == "memfd" && r.PageSize <= largestPolicyPage
		differs := !held && have.leaves(c.placed.Nodes)
		if settable && !(held && c.placed.Nodes.Len() == 1) {
			differs = differs || !have.serves(mode, target)
		}
		d := Difference{
			Kind:     MemoryPolicy,
			Object:   fmt.Sprintf("cell %d", *r.Cell),
			Intended: policyText(mode, target),
			Seen:     r.Policy,
		}
		if differs && !told[d.String()] {
			told[d.String()] = true
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
		nodes = topology.NodeSet{} // newer kernels may write what we do not know: no nodes, not judged by them
	}
	return policy{mode, nodes}
}

// leaves reports whether the policy sends pages elsewhere. Default memory goes
// where the toucher runs, so its vCPUs' pins say where.
func (p policy) leaves(nodes topology.NodeSet) bool {
	return !p.nodes.IsEmpty() && !p.nodes.SubsetOf(nodes)
}

// serves reports whether the policy does what the mode asks for. A bind to the
// same nodes serves preferred too: libvirt takes one mode for guests without
// cells, and the outer limit is those nodes.
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
