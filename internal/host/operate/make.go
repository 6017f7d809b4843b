package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
)

// ErrMachine means that what a new VM needs in addition to CPUs and memory cannot be made as asked for.
var ErrMachine = errors.New("its machine cannot be made")

// Machines makes definitions of new VMs.
type Machines interface {
	// Prepare makes what a new VM needs in addition to CPUs and memory, such as its disks, and
	// returns how to render its definition. undo removes what Prepare has made, for a VM that
	// was not created; it may be nil.
	Prepare(ctx context.Context, v *fleet.VM) (render Renderer, undo func() error, err error)
}

// Prepared is a VM of which all is made that can fail for reasons of the request.
type Prepared struct {
	Spec   guest.Spec
	Render Renderer
	// Undo removes what was made for the VM.
	Undo func() error
}

// Prepare makes the disks of a VM and what else it needs to be created.
func Prepare(ctx context.Context, m Machines, v *fleet.VM) (p Prepared, err error) {
	if p.Spec, err = v.Spec.Normalize(); err == nil && p.Spec.Name != v.Name {
		err = fmt.Errorf("its spec names VM %q", p.Spec.Name)
	}
	if err == nil {
		if p.Render, p.Undo, err = m.Prepare(ctx, v); err != nil {
			err = fmt.Errorf("%w: %w", ErrMachine, err)
		}
	}
	if err != nil {
		return p, fmt.Errorf("creating VM %s: %w", v.Name, err)
	}
	if p.Undo == nil {
		p.Undo = func() error { return nil }
	}
	return p, nil
}

// CreatePrepared creates a prepared VM; r has no spec and no renderer. If the VM is not started, what was prepared for
// it is removed.
func (h *Host) CreatePrepared(ctx context.Context, p Prepared, r CreateRequest) (Created, error) {
	r.Spec, r.Render = p.Spec, p.Render
	made, err := h.Create(ctx, r)
	if err != nil && !made.Started() {
		err = errors.Join(err, p.Undo())
	}
	return made, err
}
