package operate

import (
	"context"
	"errors"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Reserve claims the room of a placement for a guest that comes from another host, and
// enlarges the huge page pools that lack pages for it. The placement (see PlacementNow) must be legal here and
// now, and the name free. begun records the beginning under the ledger's lock, before
// anything but the claim is changed. After an error nothing is claimed or enlarged.
func (h *Host) Reserve(ctx context.Context, intent guest.Intent, begun func() error) error {
	name := intent.Placement.Guest
	var short []plan.Step
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		if _, err := tx.Claims(); err != nil { // removes void claims before the observation
			return err
		}
		inv, err := h.Observe(ctx)
		if err == nil {
			err = errors.Join(RoomIsKnown(&inv), nameIsFree(inv, name))
		}
		if err == nil {
			intent.Placement = h.PlacementNow(&inv, intent)
			err = h.legal(&inv, intent.Spec, intent.Placement)
		}
		if err != nil {
			return err
		}
		short = poolShortages(capacity.Available(&inv, h.Policy, ""), intent.Placement)
		if err := tx.Put(h.claimFor(name, intent.Placement)); err != nil {
			return errors.Join(err, h.Ledger.Release(name))
		}
		if err := begun(); err != nil {
			return errors.Join(err, h.Ledger.Release(name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := h.growPools(ctx, name, short); err != nil {
		return errors.Join(err, h.Ledger.Release(name))
	}
	return nil
}

// PlacementNow returns the placement of an intent with the CPUs that the guest may share now: other guests may have got
// CPUs for themselves since it was decided.
func (h *Host) PlacementNow(inv *inventory.Host, i guest.Intent) guest.Placement {
	return share.Now(inv, h.Policy, i.Spec.Limits, i.Placement)
}

// Unreserve ends the claim of Reserve and gives back the huge pages that were added. The
// guest is not here.
func (h *Host) Unreserve(name string) error {
	return errors.Join(h.givePoolsBack(name, nil, topology.NodeSet{}), h.Ledger.Release(name))
}

// Leave gives back the huge pages that were added for a guest that has left the host, and
// ends its claim. before is its observation while it was here.
func (h *Host) Leave(name string, before topology.MemoryByNode, nodes topology.NodeSet) error {
	return errors.Join(h.givePoolsBack(name, before, nodes), h.Ledger.Release(name))
}

// Hold claims for a running guest what it has, so that no other command binds or moves it, and
// returns its observation. begun is as for Reserve. The error is ErrBusy if another
// process works on the guest.
func (h *Host) Hold(
	ctx context.Context, name string, begun func(*inventory.Guest) error,
) (inv inventory.Host, g inventory.Guest, err error) {
	err = h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		claims, err := tx.Claims()
		if err != nil {
			return err
		}
		for _, c := range claims {
			if c.Name == name {
				return ErrBusy
			}
		}
		if inv, g, err = h.find(ctx, name); err != nil {
			return err
		}
		held := guest.Placement{Guest: name}
		if g.Placement != nil {
			held = *g.Placement
		}
		if err := tx.Put(h.claimFor(name, held)); err != nil {
			return errors.Join(err, h.Ledger.Release(name))
		}
		if err := begun(&g); err != nil {
			return errors.Join(err, h.Ledger.Release(name))
		}
		return nil
	})
	return inv, g, err
}
