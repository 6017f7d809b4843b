package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/reconcile"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Deadlines of actions. A bind copies memory.
const (
	actionTime = 10 * time.Minute
	bindTime   = 6 * time.Hour
)

// carryOut makes one action.
func (a *Agent) carryOut(ctx context.Context, act reconcile.Action) error {
	limit := actionTime
	if act.Kind == reconcile.Bind || act.Kind == reconcile.Adopt {
		limit = bindTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v := &act.VM
	switch act.Kind {
	case reconcile.Create:
		return a.create(ctx, v)
	case reconcile.Replace:
		return a.replace(ctx, v)
	case reconcile.Start:
		_, err := a.Host.StartGuest(ctx, operate.StartRequest{Name: v.Name, Placement: placementOf(v)})
		return err
	case reconcile.Stop:
		return a.Host.StopGuest(ctx, operate.StopRequest{Name: v.Name, Grace: a.Grace, Again: !v.Adopted})
	case reconcile.Delete:
		return a.delete(ctx, &act)
	case reconcile.Bind, reconcile.Adopt:
		return a.bind(ctx, v)
	}
	return fmt.Errorf("action %q is not known", act.Kind)
}

// placementOf returns the placement that the fleet decided; nil: the host decides.
func placementOf(v *fleet.VM) *guest.Placement {
	if v.Placement.Nodes.IsEmpty() {
		return nil
	}
	return &v.Placement
}

// create creates a VM bound to the fleet's placement.
func (a *Agent) create(ctx context.Context, v *fleet.VM) error {
	p, err := operate.Prepare(ctx, a.Machines, v)
	if err != nil {
		return err
	}
	return a.start(ctx, v, p)
}

// replace defines a VM that does not run again, with another size, and starts it. All that can fail
// for reasons of the request is done before the VM is removed.
func (a *Agent) replace(ctx context.Context, v *fleet.VM) error {
	p, err := operate.Prepare(ctx, a.Machines, v)
	if err != nil {
		return err
	}
	err = a.Host.Delete(ctx, operate.DeleteRequest{Name: v.Name, Redefine: true})
	if err != nil && !errors.Is(err, operate.ErrNoGuest) {
		return errors.Join(err, p.Undo())
	}
	return a.start(ctx, v, p)
}

// start defines and starts a VM on the fleet's placement.
func (a *Agent) start(ctx context.Context, v *fleet.VM, p operate.Prepared) error {
	made, err := a.Host.CreatePrepared(ctx, p, operate.CreateRequest{Placement: placementOf(v)})
	if err == nil {
		for _, short := range made.Shortfalls() {
			a.Log.Warn("not all is as requested", "vm", v.Name, "what", short)
		}
	}
	return err
}

// errOther means that a VM's name has another VM now.
var errOther = errors.New("another VM has the name now")

// delete removes a VM. Its disks stay. The VM was found to be the fleet's, also if what was recorded of it is gone, as
// while it is stopped on a hypervisor that stores no configurations.
func (a *Agent) delete(ctx context.Context, act *reconcile.Action) error {
	err := a.Host.Delete(ctx, operate.DeleteRequest{Name: act.VM.Name, Force: true,
		Check: func(g *inventory.Guest) error {
			if g.UUID != act.UUID {
				return fmt.Errorf("deleting VM %s: %w", g.Name, errOther)
			}
			return nil
		}})
	if errors.Is(err, operate.ErrNoGuest) {
		return nil
	}
	return err
}

// bind binds a running VM to the fleet's placement.
func (a *Agent) bind(ctx context.Context, v *fleet.VM) error {
	b, err := a.Host.Bind(ctx, operate.BindRequest{Name: v.Name, Placement: placementOf(v),
		Why: "the fleet chose its nodes"})
	if err == nil && !b.Complete() {
		a.Log.Warn("not all is as requested", "vm", v.Name, "what", b.Shortfalls())
	}
	return err
}

// sameStatus compares two statuses but for their times.
func sameStatus(a, b fleet.VMStatus) bool {
	b.Since, b.Sequence = a.Since, a.Sequence
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
