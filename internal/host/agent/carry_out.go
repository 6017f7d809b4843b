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
		return a.Host.StopGuest(ctx, v.Name, a.Grace)
	case reconcile.Delete:
		return a.delete(ctx, v)
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
	p, err := a.prepare(ctx, v)
	if err != nil {
		return err
	}
	return a.start(ctx, v, p)
}

// replace defines a VM that does not run again, with another size, and starts it. All that can fail
// for reasons of the request is done before the VM is removed.
func (a *Agent) replace(ctx context.Context, v *fleet.VM) error {
	p, err := a.prepare(ctx, v)
	if err != nil {
		return err
	}
	err = a.Host.Delete(ctx, operate.DeleteRequest{Name: v.Name, Redefine: true})
	if err != nil && !errors.Is(err, operate.ErrNoGuest) {
		return errors.Join(err, p.undo())
	}
	return a.start(ctx, v, p)
}

// prepared is a VM whose disks are made.
type prepared struct {
	spec   guest.Spec
	render operate.Renderer
	undo   func() error // removes what was made for it
}

func (a *Agent) prepare(ctx context.Context, v *fleet.VM) (p prepared, err error) {
	if p.spec, err = v.Spec.Normalize(); err == nil && p.spec.Name != v.Name {
		err = fmt.Errorf("its spec names VM %q", p.spec.Name)
	}
	if err == nil {
		p.render, p.undo, err = a.Machines.Prepare(ctx, v)
	}
	if err != nil {
		return p, fmt.Errorf("creating VM %s: %w", v.Name, err)
	}
	if p.undo == nil {
		p.undo = func() error { return nil }
	}
	return p, nil
}

// start defines and starts a VM on the fleet's placement.
func (a *Agent) start(ctx context.Context, v *fleet.VM, p prepared) error {
	made, err := a.Host.Create(ctx, operate.CreateRequest{Spec: p.spec, Render: p.render, Placement: placementOf(v)})
	if err == nil {
		for _, short := range made.Shortfalls() {
			a.Log.Warn("not all is as requested", "vm", v.Name, "what", short)
		}
		return nil
	}
	if !made.Started() {
		err = errors.Join(err, p.undo())
	}
	return err
}

// delete removes a VM. Its disks stay.
func (a *Agent) delete(ctx context.Context, v *fleet.VM) error {
	err := a.Host.Delete(ctx, operate.DeleteRequest{Name: v.Name, Force: v.Adopted})
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
