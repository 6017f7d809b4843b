package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// shutoff is the state of a guest that does not run.
const shutoff = "shutoff"

// StartRequest names the VM to start. It exists and does not run.
type StartRequest struct {
	Name string
	// Placement is where it starts; nil: where its configuration says.
	Placement *guest.Placement
	// Check may refuse the VM as it is observed; nil: it does not.
	Check Check
}

// StartGuest starts a guest that has a stored configuration, bound from its first page, and
// verifies it. A guest that runs already is only verified.
func (h *Host) StartGuest(ctx context.Context, r StartRequest) (Truth, error) {
	var short []plan.Step
	var x *effect
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) (err error) {
		if _, err := tx.Claims(); err != nil { // removes void claims before the observation
			return err
		}
		var want guest.Intent
		var change bool
		var what string
		if want, short, change, what, err = h.planStart(ctx, r); err != nil || what == "" {
			return err
		}
		if err := tx.Put(h.claimFor(r.Name, want.Placement)); err != nil {
			return err
		}
		x, err = h.begin(journal.Entry{Effect: journal.EffectStart, Guests: []string{r.Name}, What: what})
		if err == nil && change {
			err = h.Control.Configure(ctx, r.Name, want)
		}
		return err
	})
	if err == nil && x != nil {
		if err = h.growPools(ctx, r.Name, short); err == nil {
			if err = h.Domains.Launch(ctx, r.Name); err != nil {
				err = errors.Join(err, h.givePoolsBack(r.Name, nil, topology.NodeSet{}))
			} else {
				x.inPart = true
			}
		}
	}
	var t Truth
	if err == nil {
		t, err = h.Verify(ctx, r.Name)
	}
	if x != nil {
		err = errors.Join(err, x.end(err, nil), h.Ledger.Release(r.Name))
	}
	if err != nil {
		return t, fmt.Errorf("starting VM %s: %w", r.Name, err)
	}
	return t, nil
}

// planStart decides where a guest starts. what is empty if it runs already; change says
// whether its configuration must be changed first.
func (h *Host) planStart(
	ctx context.Context, r StartRequest,
) (want guest.Intent, short []plan.Step, change bool, what string, err error) {
	inv, g, err := h.find(ctx, r.Name)
	if err != nil {
		return want, nil, false, "", err
	}
	if _, busy := inv.Claim(r.Name); busy {
		return want, nil, false, "", ErrBusy
	}
	if err := r.Check.of(&g); err != nil {
		return want, nil, false, "", err
	}
	if g.State != shutoff {
		return want, nil, false, "", nil
	}
	placed := cmp.Or(r.Placement, g.Placement)
	if placed != nil && g.Spec != nil {
		p := share.Now(&inv, h.Policy, g.Spec.Limits, *placed)
		want = guest.Intent{Host: inv.Identity(), Spec: *g.Spec, Placement: p, Adopted: g.Adopted}
		change = r.Placement != nil || !reflect.DeepEqual(p, *placed)
	}
	if want.Placement.Guest == "" { // of another program, which starts it where it says
		return want, nil, false, "start " + r.Name, nil
	}
	if err := errors.Join(RoomIsKnown(&inv), h.given(&inv, want.Spec, want.Placement)); err != nil {
		return want, nil, false, "", err
	}
	what = fmt.Sprintf("start %s on nodes %s", r.Name, want.Placement.Nodes)
	return want, poolShortages(capacity.Available(&inv, h.Policy, r.Name), want.Placement), change, what, nil
}

// StopRequest names the VM to stop.
type StopRequest struct {
	Name  string
	Grace time.Duration // in which it may power off by itself
	// Check may refuse the VM as it is observed; nil: it does not.
	Check Check
	// Again says that the caller can create the VM again: one without a stored configuration is gone once it is
	// stopped.
	Again bool
}

// StopGuest asks a guest to power off, and ends it if it still runs after the grace time. Its
// configuration, and the resources that it holds for its next start, stay. A guest that does not
// run is no error.
func (h *Host) StopGuest(ctx context.Context, r StopRequest) error {
	name := r.Name
	_, g, err := h.find(ctx, name)
	if err != nil {
		return err
	}
	if err := r.Check.of(&g); err != nil {
		return err
	}
	if g.State == shutoff {
		return nil
	}
	if !g.Persistent && !r.Again {
		return fmt.Errorf("stopping VM %s: %w", name, guest.ErrTransient)
	}
	x, err := h.begin(journal.Entry{Effect: journal.EffectStop, Guests: []string{name}, What: "stop " + name})
	if err != nil {
		return fmt.Errorf("stopping VM %s: %w", name, err)
	}
	err = h.stop(ctx, &g, r.Grace)
	if err != nil {
		err = fmt.Errorf("stopping VM %s: %w", name, err)
	}
	return errors.Join(err, x.end(err, nil))
}

// stop ends the run of a guest.
func (h *Host) stop(ctx context.Context, g *inventory.Guest, grace time.Duration) error {
	if !g.Persistent { // what is recorded of it would stay when it ends by itself
		if err := h.Control.Forget(ctx, g.Name); err != nil {
			return err
		}
	}
	asked := h.Domains.ShutDown(ctx, g.Name)
	if asked == nil {
		if err := h.awaitEnd(ctx, g, grace); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return h.Domains.PowerOff(ctx, g.Name)
}

// errStillRuns means that a guest did not power off in time.
var errStillRuns = errors.New("it still runs")

// ended reports whether a guest's run has ended.
func (h *Host) ended(ctx context.Context, g *inventory.Guest) bool {
	runs, ok := h.Control.(apply.Runs)
	if !ok || g.Run == "" {
		_, err := h.Kernel.StartTicks(g.PID)
		return err != nil
	}
	_, err := runs.RunOf(ctx, g.Name)
	return errors.Is(err, guest.ErrNotFound)
}

// awaitEnd waits until a guest's run has ended.
func (h *Host) awaitEnd(ctx context.Context, g *inventory.Guest, grace time.Duration) error {
	end := time.NewTimer(grace)
	defer end.Stop()
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for {
		if h.ended(ctx, g) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return errStillRuns
		case <-poll.C:
		}
	}
}
