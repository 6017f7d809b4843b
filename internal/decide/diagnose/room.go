package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
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

// strictWithoutRoom: a strictly bound guest has untouched memory for which its
// node no longer has free pages.
func strictWithoutRoom(v *view) (found []Finding) {
	for _, s := range v.guests {
		if !s.strict() || s.Config.PageSize > 0 {
			continue
		}
		for _, h := range v.holdings(func(o *subject) bool { return o == s }) {
			n, ok := v.topology.Node(h.Node)
			if h.Name != s.Name || !ok || n.Free == 0 || h.PageSize > 0 {
				continue
			}
			room := n.Free + n.Reclaimable
			if h.Untouched() <= room {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: s.object(),
				Evidence: []string{
					fmt.Sprintf("%v of its memory on node %d is untouched (%v promised, %v observed, %s)",
						h.Untouched(), n.ID, h.Memory(), h.Seen, orUnknown(s.Seen.MemorySource)),
					fmt.Sprintf("node %d has %v free and reclaimable", n.ID, room),
				},
				Effect: "its strict binding forbids other nodes: when it touches the rest, the kernel swaps or kills " +
					"a VM",
				Fix:     fmt.Sprintf("free memory on node %d, or bind the VM to other nodes", n.ID),
				Command: "numavisor bind " + text.ShellWord(s.Name) + " --recompute",
			})
		}
	}
	return found
}

// strict reports whether allocations of the guest fail rather than use other nodes.
func (s *subject) strict() bool {
	if s.Placement != nil {
		return s.Placement.MemoryMode == guest.MemoryStrict
	}
	tune := s.Config.NUMATune
	if tune == nil {
		return false
	}
	for _, c := range tune.Cells {
		if c.Mode != string(guest.MemoryStrict) {
			return false
		}
	}
	return len(tune.Cells) > 0 || tune.Mode == string(guest.MemoryStrict)
}

// memoryOnlyNodeUsed: guest memory got to a node without CPUs (CXL, HBM) by
// overflow or demotion.
func memoryOnlyNodeUsed(v *view) (found []Finding) {
	for _, s := range v.guests {
		for _, n := range v.topology.Nodes {
			bytes := s.Seen.MemoryByNode[n.ID]
			meant := s.Placement != nil && s.Placement.Nodes.Contains(n.ID)
			if !n.CPUs.IsEmpty() || meant || bytes < minMemoryBytes || bytes < s.memory/50 {
				continue
			}
			evidence := []string{
				fmt.Sprintf("node %d has memory and %s (%s)", n.ID, v.noCPUs(), orUnknown(v.topology.Source)),
				s.memoryEvidence()}
			if d := v.host.Kernel.Demotion; d != "" {
				evidence = append(evidence, "demotion_enabled is "+d+" (/sys/kernel/mm/numa)")
			}
			found = append(found, s.binding(Finding{Severity: Warning, Evidence: evidence,
				Effect: fmt.Sprintf("%v of its memory is local to no CPU and slow for every vCPU", bytes)}))
		}
	}
	return found
}

// noCPUs says of a node without CPUs that they may be offline: the kernel does
// not tell which node a CPU that is switched off belongs to.
func (v *view) noCPUs() string {
	if v.topology.Offline.IsEmpty() {
		return "no CPUs"
	}
	return fmt.Sprintf("no CPUs online; CPUs %s of the host are offline", v.topology.Offline)
}
