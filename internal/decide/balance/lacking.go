package balance

import (
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// Lacking names the guests that wait for CPUs, or reach over to other nodes,
// for more than the policy bears, by one sample alone: a plan is worth making
// for who is new among them. Whether they are degraded is for the plan to say, which
// knows what the host could give them. b has its defaults filled in.
func Lacking(guests []inventory.GuestSample, b policy.Balance) map[string]bool {
	short := map[string]bool{}
	for i := range guests {
		g := &guests[i]
		waits := g.Load.Wait >= b.Wait*g.Load.Demand()
		far := g.Load.Remote != nil && g.Load.Remote.Share >= b.Access
		if g.Load.Demand() >= b.MinCPUDemand && (waits || far) {
			short[g.Name] = true
		}
	}
	return short
}
