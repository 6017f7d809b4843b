package diagnose

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
)

// ksmAcrossNodes: a page merged across nodes is local to one of its users at most.
func ksmAcrossNodes(v *view) []Finding {
	k := &v.host.Kernel
	if k.KSMRun != "1" || k.KSMAcrossNodes != "1" || k.KSMPagesShared == 0 && len(v.guests) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{
			fmt.Sprintf("run 1, merge_across_nodes 1, pages_shared %d (/sys/kernel/mm/ksm)", k.KSMPagesShared)},
		Effect: "equal pages of guests on different nodes become one page on one node: far for all others, " +
			"whatever they are bound to",
		Fix: "let KSM merge within nodes only; what is merged must be split first, which takes memory",
		Command: "echo 2 > /sys/kernel/mm/ksm/run && echo 0 > /sys/kernel/mm/ksm/merge_across_nodes && echo 1 > " +
			"/sys/kernel/mm/ksm/run",
		Safe:   k.KSMPagesShared == 0, // nothing to split
		Action: &plan.Remedy{Kind: plan.KSMWithinNodes},
	}}
}

// balancingAgainstBinding: the kernel moves pages of its own accord
// (kernel.numa_balancing, bit 0: NUMA_BALANCING_NORMAL). It leaves alone huge
// pages of a pool and memory that has a policy (vma_policy_mof in
// mm/mempolicy.c), so what is at stake are guests held by cpusets only.
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
			"bound by cpuset, memory without a policy: " + strings.Join(names, ", "),
		},
		Effect: "the kernel unmaps their pages again and again to see who uses them, moves them between the " +
			"guest's nodes, and has been seen to hide them from move_pages (Linux 6.1), so that a later bind " +
			"misses them",
		Fix:     "switch it off: bound guests do not need it",
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
		f.Fix = fmt.Sprintf("bind the %d guests that are not bound too, then switch it off: they are served by it",
			loose)
	}
	return []Finding{f}
}

// withoutPolicy returns the bound guests whose memory the kernel's balancing works on.
func (v *view) withoutPolicy() (names []string) {
	for _, s := range v.guests {
		if s.bound && s.Config.PageSize == 0 && !s.hasPolicy() {
			names = append(names, s.Name)
		}
	}
	return names
}

// hasPolicy tells by the mappings where they are known, else by what the guest
// was made with or given.
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
		return true // set from outside where the configuration does not say it
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

// boundNames returns the guests whose memory is bound, and how many are not.
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

// numadBesideBindings: numad binds whole processes by its own reckoning.
func numadBesideBindings(v *view) []Finding {
	names, _ := v.boundNames()
	if !v.host.Kernel.NumadRunning || len(names) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{"numad is running (processes)", "bound: " + strings.Join(names, ", ")},
		Effect:   "numad re-pins guests and moves their memory by its own figures, against their binding",
		Fix:      "stop numad",
		Command:  "systemctl disable --now numad",
	}}
}

// zoneReclaim: a full node is reclaimed before another one's free memory is used.
func zoneReclaim(v *view) []Finding {
	mode := v.host.Kernel.ZoneReclaim
	if mode == "" || mode == "0" || len(v.guests) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{"vm.zone_reclaim_mode is " + mode + " (/proc/sys/vm/zone_reclaim_mode)"},
		Effect: "allocations stall while the kernel throws away page cache of a full node, though other nodes " +
			"have free memory",
		Fix:     "switch it off: bindings say where guests' memory goes",
		Command: "sysctl -w vm.zone_reclaim_mode=0",
		Safe:    true,
		Action:  &plan.Remedy{Kind: plan.WriteSetting, Path: "/proc/sys/vm/zone_reclaim_mode", From: mode, Value: "0"},
	}}
}
