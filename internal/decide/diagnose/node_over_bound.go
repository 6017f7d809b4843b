package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// holdings returns the holdings of the guests for which keep is true.
func (v *view) holdings(keep func(*subject) bool) []inventory.Holding {
	h := *v.host
	h.Guests = nil
	for _, s := range v.guests {
		if keep(s) {
			h.Guests = append(h.Guests, *s.Guest)
		}
	}
	return h.Holdings("")
}

// nodeOverBound: more memory is bound to a node than it has, and bound memory
// cannot overflow to other nodes.
func nodeOverBound(v *view) (found []Finding) {
	all := v.holdings(func(s *subject) bool { return s.bound })
	for _, n := range v.topology.Nodes {
		var sum topology.Bytes
		var evidence []string
		var least *inventory.Holding // the smallest guest whose move is enough
		for i := range all {
			if all[i].Node == n.ID && all[i].Memory() > 0 {
				sum = sum.Plus(all[i].Memory())
				evidence = append(evidence,
					fmt.Sprintf("%s: %v reserved, %v observed", all[i].Name, all[i].Reserved, all[i].Seen))
			}
		}
		if sum <= n.Memory || n.Memory == 0 {
			continue
		}
		for i := range all {
			_, busy := v.host.Claim(all[i].Name)
			if h := &all[i]; h.Node == n.ID && h.Memory() >= sum-n.Memory && !busy &&
				(least == nil || h.Memory() < least.Memory()) {
				least = h
			}
		}
		f := Finding{
			Severity: Error, Object: fmt.Sprintf("node %d", n.ID),
			Evidence: append(
				[]string{
					fmt.Sprintf("%v bound to %v of memory (reservations, or observed use if greater)", sum,
						n.Memory),
				},
				evidence...),
			Effect: "when the VMs touch all memory promised to them, the kernel reclaims, swaps and kills a VM, " +
				"although other nodes have free memory",
			Fix: "move VMs to other nodes until the rest fits",
		}
		if least != nil {
			f.Fix = fmt.Sprintf("move VM %s to other nodes; the rest then fits", least.Name)
			f.Command = "numavisor bind " + text.ShellWord(least.Name) + " --recompute"
		}
		found = append(found, f)
	}
	return found
}
