package operate

import (
	"context"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Loads returns an inventory of this host with the loads that its daemon has
// measured. Its error says why there are none.
type Loads func(context.Context) (inventory.Host, error)

// measured is the answer of Loads.
type measured struct {
	host inventory.Host
	err  error
}

// measure asks for the loads of this host. It is called before the ledger is
// locked: a daemon that does not answer must not hold up other commands.
func (h *Host) measure(ctx context.Context) *measured {
	if h.Loads == nil {
		return nil
	}
	var m measured
	m.host, m.err = h.Loads(ctx)
	return &m
}

// addTo adds the loads to the inventory of the same host. Without loads, the
// inventory has a gap, and decisions count each vCPU as busy.
func (m *measured) addTo(inv *inventory.Host) {
	switch {
	case m == nil:
	case m.err != nil:
		inv.Gaps = append(inv.Gaps, inventory.LoadsGap(m.err.Error()))
	default:
		inv.TakeLoads(m.host)
	}
}

// ObserveLoads observes the host as Observe does, with the loads that its daemon
// has measured, so that a decision of a command has the figures of the daemon's.
func (h *Host) ObserveLoads(ctx context.Context) (inventory.Host, error) {
	loads := h.measure(ctx)
	inv, err := h.Observe(ctx)
	if err == nil {
		loads.addTo(&inv)
	}
	return inv, err
}
