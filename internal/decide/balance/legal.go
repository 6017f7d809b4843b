package balance

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// SpecOf returns the guest's spec with all defaults written out, or for an
// unmanaged guest the spec derived from its configuration. A move's placement is
// checked against this spec and recorded with it.
func SpecOf(g *inventory.Guest) guest.Spec { return specOf(g) }

// Legal checks the placements of a move on a host as it is now. It checks each
// guest with the other guests of the move on their target nodes. A node on which more
// memory or CPUs are promised than it has may stay so: it must not lack more than now. All
// guests of the move must be on the host. The error lists every broken rule; it wraps an
// inventory.NodeLimitError if a cgroup above a guest excludes its new nodes.
func Legal(h *inventory.Host, p policy.Policy, moves []plan.GuestMove) error {
	if err := onHost(h, moves); err != nil {
		return err
	}
	held := h.Holdings("")
	eased, now := withCredit(h, held, p), capacity.Held(h, p, held)
	host := After(&eased, moves)
	return errors.Join(arrives(h, &eased, &host, p, moves), crowds(now, &host, p),
		legalAfter(h, &host, withCPUCredit(now, p), moves))
}

// Fits is Legal without leniency: every promise must be met. It decides whether an
// interrupted move can be finished. Such a move has changed the host, so that its
// present state is not the standard.
func Fits(h *inventory.Host, p policy.Policy, moves []plan.GuestMove) error {
	if err := onHost(h, moves); err != nil {
		return err
	}
	host := After(h, moves)
	return legalAfter(h, &host, p, moves)
}

func onHost(h *inventory.Host, moves []plan.GuestMove) error {
	for _, m := range moves {
		if _, ok := h.Guest(m.Guest); !ok {
			return fmt.Errorf("VM %s is not on the host", m.Guest)
		}
	}
	return nil
}

func legalAfter(h, after *inventory.Host, p policy.Policy, moves []plan.GuestMove) error {
	var errs []error
	for _, m := range moves {
		g, _ := h.Guest(m.Guest)
		if err := g.CheckNodes(m.Placement.Nodes); err != nil {
			errs = append(errs, fmt.Errorf("VM %s: %w", m.Guest, err))
		}
		spec := specOf(g)
		errs = append(errs, check.Error(spec.Name, check.Placement(after, p, spec, m.Placement)))
	}
	return errors.Join(errs...)
}

// After returns the host as it is once the guests of a move are at their targets.
// All of them must be on the host.
func After(h *inventory.Host, moves []plan.GuestMove) inventory.Host {
	host := *h
	removed := make([]inventory.Guest, len(moves))
	for i, m := range moves {
		host, removed[i] = without(host, m.Guest)
	}
	for i, m := range moves {
		host = with(host, removed[i], specOf(&removed[i]), m.Placement)
	}
	return host
}
