package diagnose

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// poolOf returns the CPU pool of a guest; nil: the host has none.
func (v *view) poolOf(s *subject) *inventory.Pool {
	i := slices.IndexFunc(v.host.Pools, func(p inventory.Pool) bool { return p.Name == s.Pool })
	if i < 0 {
		return nil
	}
	return &v.host.Pools[i]
}

// repinning completes a finding whose fix sets affinities only: no memory moves.
func (s *subject) repinning(f Finding) Finding {
	f.Object = s.object()
	f.Fix, f.Command = "bind the VM: that sets the affinities of its vCPUs; it keeps running",
		"numavisor bind "+text.ShellWord(s.Name)
	f.Action, f.Safe = &plan.Remedy{Kind: plan.BindGuest, Guest: s.Name}, s.Placement != nil
	return f
}

// pinsOutsidePool: a hard affinity to CPUs of another pool has no effect there. If the pool loses the other
// CPUs, Xen widens the affinity to all CPUs.
func pinsOutsidePool(v *view) (found []Finding) {
	for _, s := range v.guests {
		pool := v.poolOf(s)
		if pool == nil {
			continue
		}
		var pinned topology.CPUSet
		for _, cpus := range s.Config.Pins {
			pinned = pinned.Union(cpus)
		}
		outside := pinned.Minus(pool.CPUs)
		if outside.IsEmpty() {
			continue
		}
		found = append(found, s.repinning(Finding{Severity: Warning,
			Evidence: []string{fmt.Sprintf("hard affinity to CPUs %s (%s)", pinned, orUnknown(s.Seen.ThreadSource)),
				fmt.Sprintf("CPU pool %q has CPUs %s (xl cpupool-list)", pool.Name, pool.CPUs)},
			Effect: fmt.Sprintf("CPUs %s do not serve the VM: its vCPUs share the others", outside)}))
	}
	return found
}

// softAffinityIgnored: rtds and arinc653 accept a soft affinity and ignore it.
func softAffinityIgnored(v *view) (found []Finding) {
	for _, s := range v.guests {
		pool := v.poolOf(s)
		if pool == nil || pool.SoftAffinity() {
			continue
		}
		var preferred, allowed topology.CPUSet
		for _, t := range s.Seen.Threads {
			if !t.Preferred.IsEmpty() && !t.Affinity.SubsetOf(t.Preferred) {
				preferred, allowed = preferred.Union(t.Preferred), allowed.Union(t.Affinity)
			}
		}
		if preferred.IsEmpty() {
			continue
		}
		found = append(found, s.repinning(Finding{Severity: Warning,
			Evidence: []string{fmt.Sprintf("soft affinity to CPUs %s, hard affinity to CPUs %s (%s)", preferred,
				allowed, orUnknown(s.Seen.ThreadSource)),
				fmt.Sprintf("CPU pool %q has scheduler %s (xl cpupool-list)", pool.Name, pool.Scheduler)},
			Effect: "the scheduler ignores soft affinity: the vCPUs run on any CPU of the hard affinity, also far " +
				"from their memory"}))
	}
	return found
}
