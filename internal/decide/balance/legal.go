package balance

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// SpecOf is what a guest asked for, or would have if it is not ours, with all
// defaults written out: what a move's placement is checked against and recorded with.
func SpecOf(g *inventory.Guest) guest.Spec { return specOf(g) }

// Legal checks the placements of a move on a host as it is now: of each guest
// with the others of the move where they shall be. All of them must be on the
// host. The error lists every broken rule; it wraps an inventory.NodeLimitError
// where a cgroup above a guest keeps it from its new nodes.
func Legal(h *inventory.Host, p policy.Policy, moves []plan.GuestMove) error {
	host := *h
	lifted := make([]inventory.Guest, len(moves))
	for i, m := range moves {
		if _, ok := host.Guest(m.Guest); !ok {
			return fmt.Errorf("guest %s is not on the host", m.Guest)
		}
		host, lifted[i] = without(host, m.Guest)
	}
	for i, m := range moves {
		host = with(host, lifted[i], specOf(&lifted[i]), m.Placement)
	}
	var errs []error
	for i, m := range moves {
		if err := lifted[i].CheckNodes(m.Placement.Nodes); err != nil {
			errs = append(errs, fmt.Errorf("guest %s: %w", m.Guest, err))
		}
		spec := specOf(&lifted[i])
		errs = append(errs, check.Error(spec.Name, check.Placement(&host, p, spec, m.Placement)))
	}
	return errors.Join(errs...)
}
