package diagnose

import (
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
)

// unseen: no finding about what could not be seen does not mean that all is well.
func unseen(v *view) (found []Finding) {
	at := map[string]int{}
	for _, g := range gaps(v.host) {
		i, told := at[g.Object]
		if !told {
			i = len(found)
			at[g.Object] = i
			found = append(found, Finding{
				Severity: Info, Object: g.Object,
				Effect: "rules that need this were not tried",
				Fix:    "remove the cause and run numavisor doctor again; most sources need root",
			})
		}
		found[i].Evidence = append(found[i].Evidence, g.What+": "+g.Why)
	}
	return found
}

func gaps(h *inventory.Host) []inventory.Gap {
	all := slices.Clone(h.Gaps)
	for _, g := range h.Topology.Gaps {
		all = append(all, inventory.Gap{Object: "host", What: "topology", Why: g})
	}
	return all
}
