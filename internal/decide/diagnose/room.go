package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// holdings returns what the guests for which keep holds take from each node.
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

// nodeOverBound: more is bound to a node than it has; what does not fit cannot go elsewhere.
func nodeOverBound(v *view) (found []Finding) {
	all := v.holdings(func(s *subject) bool { return s.bound })
	for _, n := range v.topology.Nodes {
		var sum topology.Bytes
		var evidence []string
		var least *inventory.Holding // whose leaving suffices
		for i := range all {
			if all[i].Node == n.ID && all[i].Memory() > 0 {
				sum = sum.Plus(all[i].Memory())
				evidence = append(evidence,
					fmt.Sprintf("%s: %v reserved, %v seen", all[i].Name, all[i].Reserved, all[i].Seen))
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
					fmt.Sprintf("%v bound to %v of memory (reservations, or what is seen where that is more)", sum,
						n.Memory),
				},
				evidence...),
			Effect: "when the guests touch all they were promised, the kernel reclaims, swaps, and kills a guest, " +
				"though other nodes have room",
			Fix: "move guests away until what is left fits",
		}
		if least != nil {
			f.Fix = fmt.Sprintf("move guest %s to other nodes: what is left fits", least.Name)
			f.Command = "numavisor bind " + text.ShellWord(least.Name) + " --anew"
		}
		found = append(found, f)
	}
	return found
}

// strictWithoutRoom: memory that may only come from certain nodes, not touched
// yet, and not there any more.
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
					fmt.Sprintf("%v of its memory on node %d is not touched yet (%v promised, %v seen, %s)",
						h.Untouched(), n.ID, h.Memory(), h.Seen, orUnknown(s.Seen.MemorySource)),
					fmt.Sprintf("node %d has %v free and reclaimable", n.ID, room),
				},
				Effect: "bound strictly, it cannot take memory elsewhere: touching the rest swaps or gets a guest " +
					"killed",
				Fix:     fmt.Sprintf("free memory on node %d, or place the guest anew", n.ID),
				Command: "numavisor bind " + text.ShellWord(s.Name) + " --anew",
			})
		}
	}
	return found
}

// strict reports whether the guest's memory fails rather than goes elsewhere.
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

// memoryOnlyNodeUsed: CXL and the like serve guests by overflow or demotion.
func memoryOnlyNodeUsed(v *view) (found []Finding) {
	for _, s := range v.guests {
		for _, n := range v.topology.Nodes {
			bytes := s.Seen.MemoryByNode[n.ID]
			meant := s.Placement != nil && s.Placement.Nodes.Contains(n.ID)
			if !n.CPUs.IsEmpty() || meant || bytes < worthAWord || bytes < s.memory/50 {
				continue
			}
			evidence := []string{
				fmt.Sprintf("node %d has memory and %s (%s)", n.ID, v.noCPUs(), orUnknown(v.topology.Source)),
				s.memoryEvidence()}
			if d := v.host.Kernel.Demotion; d != "" {
				evidence = append(evidence, "demotion_enabled is "+d+" (/sys/kernel/mm/numa)")
			}
			found = append(found, s.binding(Finding{Severity: Warning, Evidence: evidence,
				Effect: fmt.Sprintf("%v of its memory is local to no CPU: slower for every vCPU", bytes)}))
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
