package balance

import (
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// OverThreshold returns the names of the guests whose CPU wait or share of
// remote accesses exceeds the policy's threshold in one sample. A guest newly
// in this set justifies a new plan. Only the plan decides whether the guest is
// degraded, because only the plan compares it with other layouts. b must have
// its defaults filled in.
func OverThreshold(guests []inventory.GuestSample, b policy.Balance) map[string]bool {
	over := map[string]bool{}
	for i := range guests {
		g := &guests[i]
		waits := g.Load.Wait >= b.Wait*g.Load.Demand()
		remote := g.Load.Remote != nil && g.Load.Remote.Share >= b.Access
		if g.Load.Demand() >= b.MinCPUDemand && (waits || remote) {
			over[g.Name] = true
		}
	}
	return over
}
