package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/text"
)

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
