package diagnose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// rule looks for one kind of problem.
type rule struct {
	name string
	find func(*view) []Finding
}

var rules = []rule{
	{"preallocated-unbound", preallocatedUnbound},
	{"vfio-unbound", vfioUnbound},
	{"binding-matters-little", bindingMattersLittle},
	{"memory-far", memoryFar},
	{"helpers-far", helpersFar},
	{"device-far", deviceFar},
	{"exclusive-overlap", exclusiveOverlap},
	{"restrictive-memnodes", restrictiveMemnodes},
	{"auto-placement-without-numad", autoWithoutNumad},
	{"numa-hidden", numaHidden},
	{"cells-folded", cellsFolded},
	{"drift", drifted},
	{"placed-for-another-host", placedForAnotherHost},
	{"strict-without-room", strictWithoutRoom},
	{"node-over-bound", nodeOverBound},
	{"memory-only-node-used", memoryOnlyNodeUsed},
	{"uneven-huge-pages", unevenHugePages},
	{"cpusets-missing", cpusetsMissing},
	{"ksm-across-nodes", ksmAcrossNodes},
	{"numa-balancing-against-binding", balancingAgainstBinding},
	{"numad-with-bindings", numadWithBindings},
	{"zone-reclaim", zoneReclaim},
	{"distances-missing", distancesMissing},
	{"node-without-memory", nodeWithoutMemory},
	{"memory-only-node", memoryOnlyNode},
	{"bound-to-nothing", boundToNothing},
	{"vcpus-crowded", vcpusCrowded},
	{"housekeeping-taken", housekeepingTaken},
	{"cells-contradicted", cellsContradicted},
	{"demotion-against-binding", demotionAgainstBinding},
	{"distances-asymmetric", distancesAsymmetric},
	{"memory-lopsided", memoryLopsided},
	{"topology-incomplete", topologyIncomplete},
	{"intent-unusable", intentUnusable},
	{"control-domain-unlimited", controlDomainUnlimited},
	{"control-domain-unpinned", controlDomainUnpinned},
	{"control-domain-balloons", controlDomainBalloons},
	{"claims-off", claimsOff},
	{"node-affinity-far", nodeAffinityFar},
	{"cell-memory-elsewhere", cellMemoryElsewhere},
	{"pins-outside-pool", pinsOutsidePool},
	{"soft-affinity-ignored", softAffinityIgnored},
	{"handoff-without-agent", handoffWithoutAgent},
	{"handoff-slow", handoffSlow},
	{"scale-without-agent", scaleWithoutAgent},
	{"handoff-outside-policy", handoffOutsidePolicy},
	{"handoff-taken", handoffTaken},
	{"handoff-cores-split", handoffCoresSplit},
}

// Run returns the findings of a host under the policy's defaults, as RunUnder does.
func Run(h *inventory.Host) []Finding { return RunUnder(h, policy.Policy{}) }

// RunUnder returns the findings of a host under a policy, the most severe first, then by
// object.
func RunUnder(h *inventory.Host, p policy.Policy) []Finding {
	if h == nil {
		return nil
	}
	v := newView(h)
	v.policy = p
	if v.memoryNodes.Len() < 2 && v.topology.NodesOf(v.topology.CPUSet()).Len() < 2 {
		return v.findings(func(rule string) bool { // everything is local
			return rule == "intent-unusable" || strings.HasPrefix(rule, "handoff-")
		})
	}
	return v.findings(func(string) bool { return true })
}

// findings returns those of some rules.
func (v *view) findings(of func(rule string) bool) (found []Finding) {
	for _, r := range rules {
		if of(r.name) {
			found = append(found, named(r.name, r.find(v))...)
		}
	}
	found = v.postponed(found)
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Object, b.Object),
			cmp.Compare(a.Rule, b.Rule))
	})
	return found
}

// postponed takes the remedies from findings about guests that are being bound
// or moved: they would be refused, and what was found may change by itself.
func (v *view) postponed(found []Finding) []Finding {
	busy := map[string]*inventory.Claim{}
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.busy != nil {
			busy[s.object()] = s.busy
		}
	}
	for i := range found {
		if c, ok := busy[found[i].Object]; ok {
			f := &found[i]
			f.Evidence = append(f.Evidence, "is being bound or moved by "+c.HeldBy()+" (reservation)")
			f.Fix, f.Command, f.Action, f.Safe = "nothing now: wait until the bind or move ends", "", nil, false
		}
	}
	return found
}

// named gives findings the name of their rule.
func named(rule string, found []Finding) []Finding {
	for i := range found {
		found[i].Rule = rule
	}
	return found
}
