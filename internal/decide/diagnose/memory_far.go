package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Thresholds of memoryFar. A tenth of remote memory is normal after page sharing
// and migration, and a small amount of memory is not worth a finding.
const (
	minLocalShare  = 0.9
	minMemoryBytes = 64 * topology.MiB
)

// memoryFar: much of the memory that the guest's vCPUs access is on other nodes.
// The rule drift covers guests with a placement, numa-hidden those larger than a
// node. Memory with policy interleave is remote as requested.
func memoryFar(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.Placement != nil || s.memory < minMemoryBytes || v.isSmall(s) && !s.cpuRestricted ||
			len(s.Config.Cells) <= 1 && v.tooWide(s) != "" ||
			s.spread() {
			continue
		}
		share := drift.LocalShare(*s.Guest, v.topology)
		if share == nil || *share >= minLocalShare {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{s.memoryEvidence(), v.ranOn(s),
				fmt.Sprintf(
					"local share %.0f %% (estimated from memory and vCPUs by node, by %s; accesses were not counted)",
					100**share, drift.LocalBy(s.Guest, v.topology))},
			Effect: fmt.Sprintf(
				"about %.0f %% of its cache misses go to another node; in a VM, STREAM with local memory ran "+
					"20-40 %% faster than with a neighbour's memory, and about twice as fast as with remote memory "+
					"(High Technology Letters 2021/4)",
				100*(1-*share),
			),
		}))
	}
	return found
}

// spread reports whether the guest's configuration interleaves its memory.
func (s *subject) spread() bool {
	t := s.Config.NUMATune
	return t != nil && t.Mode == string(guest.MemoryInterleave)
}

// ranOn reports the CPUs on which the guest's vCPUs may run, or on which they last
// ran if they are not pinned.
func (v *view) ranOn(s *subject) string {
	if s.cpuRestricted {
		return v.vcpuEvidence(s)
	}
	var on topology.CPUSet
	for i := range s.Seen.Threads {
		t := &s.Seen.Threads[i]
		if t.VCPU == nil {
			continue
		}
		if c, known := v.topology.CPU(t.LastCPU); known {
			on = on.With(c.ID)
		} else {
			on = on.Union(t.Affinity)
		}
	}
	return fmt.Sprintf("vCPUs may run anywhere and last ran on CPUs %s, nodes %s (%s)", on, v.topology.NodesOf(on),
		orUnknown(s.Seen.ThreadSource))
}
