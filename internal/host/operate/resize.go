package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// ResizeRequest says how the size of a guest that does not run changes.
type ResizeRequest struct {
	Name string
	// Change returns the spec with the next size.
	Change func(guest.Spec) (guest.Spec, error)
	DryRun bool
	// Check may refuse the VM as it is observed; nil: it does not.
	Check Check
}

// Resized is the result of Resize.
type Resized struct {
	Spec      guest.Spec
	Placement guest.Placement
	Why       place.Why
}

// ErrRuns means that a guest must be stopped first.
var ErrRuns = errors.New("it runs; stop it first")

// Resize changes the vCPUs and the memory of a guest that does not run. The guest gets a new placement, and its stored
// configuration is bound to that. If no placement is possible, nothing changes.
func (h *Host) Resize(ctx context.Context, r ResizeRequest) (Resized, error) {
	var out Resized
	loads := h.measure(ctx)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		if _, err := tx.Claims(); err != nil { // removes void claims before the observation
			return err
		}
		inv, g, err := h.find(ctx, r.Name)
		if err != nil {
			return err
		}
		loads.addTo(&inv)
		want, err := h.planResize(&inv, &g, r, &out)
		if err != nil || r.DryRun {
			return err
		}
		x, err := h.begin(journal.Entry{Effect: journal.EffectResize, Guests: []string{r.Name},
			What: fmt.Sprintf("resize %s from %d vCPUs and %v to %d vCPUs and %v", r.Name, g.Config.VCPUs,
				g.Config.Memory, out.Spec.VCPUs, out.Spec.Memory),
			Why: out.Why.Summary, Reasons: reasonsOf(&out.Why)})
		if err != nil {
			return err
		}
		err = h.Domains.Resize(ctx, r.Name, want)
		x.inPart = err == nil
		return errors.Join(err, x.end(err, nil))
	})
	if err != nil {
		return out, fmt.Errorf("resizing VM %s: %w", r.Name, err)
	}
	return out, nil
}

// planResize places a guest that does not run, with its next size.
func (h *Host) planResize(
	inv *inventory.Host, g *inventory.Guest, r ResizeRequest, out *Resized,
) (want guest.Intent, err error) {
	if _, busy := inv.Claim(r.Name); busy {
		return want, ErrBusy
	}
	if err := r.Check.of(g); err != nil {
		return want, err
	}
	if g.State != shutoff {
		return want, ErrRuns
	}
	if err := RoomIsKnown(inv); err != nil {
		return want, err
	}
	spec := adopt.Spec(*g)
	if g.Spec != nil && g.Placement != nil {
		spec = *g.Spec
	}
	if out.Spec, err = r.Change(spec); err != nil {
		return want, err
	}
	p, why, err := place.Place(place.Request{Host: inv, Spec: out.Spec, Policy: h.Policy, Ignore: r.Name})
	if err != nil {
		return want, err
	}
	out.Placement, out.Why, out.Spec = p, why, out.Spec.Resolve(&p)
	want = guest.Intent{Host: inv.Identity(), Spec: out.Spec, Placement: p, Adopted: !g.Created()}
	return want, errors.Join(g.CheckNodes(p.Nodes), h.legal(inv, out.Spec, p))
}
