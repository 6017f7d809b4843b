package diagnose

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
)

// balancingAgainstBinding: automatic NUMA balancing of the kernel moves pages
// (kernel.numa_balancing, bit 0: NUMA_BALANCING_NORMAL). It does not touch huge
// pages of a pool or memory with a policy (vma_policy_mof in mm/mempolicy.c), so
// it only affects guests that are bound by cpusets alone.
func balancingAgainstBinding(v *view) []Finding {
	mode, err := strconv.Atoi(v.host.Kernel.NUMABalancing)
	if err != nil || mode&1 == 0 {
		return nil
	}
	names := v.withoutPolicy()
	if len(names) == 0 {
		return nil
	}
	_, loose := v.boundNames()
	f := Finding{
		Severity: Warning, Object: "host",
		Evidence: []string{
			fmt.Sprintf("kernel.numa_balancing is %d (/proc/sys/kernel/numa_balancing)", mode),
			"bound by cpuset, with memory without a policy: " + strings.Join(names, ", "),
		},
		Effect: "the kernel repeatedly unmaps their pages to sample accesses and moves them between the VM's " +
			"nodes; it was observed to hide them from move_pages (Linux 6.1), so that a later bind misses them",
		Fix:     "disable it: bound VMs do not need it",
		Command: "sysctl -w kernel.numa_balancing=" + strconv.Itoa(mode&^1),
		Safe:    loose == 0,
		Action: &plan.Remedy{
			Kind:  plan.WriteSetting,
			Path:  plan.NUMABalancingPath,
			From:  v.host.Kernel.NUMABalancing,
			Value: strconv.Itoa(mode &^ 1),
		},
	}
	if loose > 0 {
		f.Fix = fmt.Sprintf("bind %s, which profit from it, then disable it",
			text.Count(loose, "unbound VM", "unbound VMs"))
	}
	return []Finding{f}
}

// withoutPolicy returns the bound guests whose memory the kernel's balancing may move.
func (v *view) withoutPolicy() (names []string) {
	for _, s := range v.guests {
		if s.bound && s.Config.PageSize == 0 && !s.hasPolicy() {
			names = append(names, s.Name)
		}
	}
	return names
}

// hasPolicy reports whether all of the guest's memory has a NUMA policy, by its
// mappings if they are known, else by its placement or configuration.
func (s *subject) hasPolicy() bool {
	known := false
	for _, r := range s.Seen.Ranges {
		if r.Cell == nil {
			continue
		}
		if r.Policy == "" || r.Policy == "default" {
			return false
		}
		known = true
	}
	if known {
		return true
	}
	gives := func(mode string) bool {
		return mode == string(guest.MemoryStrict) || mode == string(guest.MemoryPreferred) ||
			mode == string(guest.MemoryInterleave)
	}
	if p := s.Placement; p != nil && s.Config.Source == "memfd" && gives(string(p.MemoryMode)) {
		return true // Numavisor sets the policy with mbind, so the configuration need not have it
	}
	t := s.Config.NUMATune
	if t == nil {
		return false
	}
	for _, c := range t.Cells {
		if !gives(c.Mode) {
			return false
		}
	}
	return len(t.Cells) > 0 || gives(t.Mode)
}

// boundNames returns the guests with bound memory, and the number of others.
func (v *view) boundNames() (bound []string, loose int) {
	for _, s := range v.guests {
		if s.bound {
			bound = append(bound, s.Name)
		} else {
			loose++
		}
	}
	return bound, loose
}
