package fleetofone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// CreateVM implements rest.HostService. Without room the VM is refused: there is no other host to wait for.
func (s *Service) CreateVM(ctx context.Context, c rest.Call, asked fleetapi.VMCreate) (fleetapi.VM, error) {
	v, err := asked.Normalize()
	if err == nil {
		err = cmp.Or(forOneHost(&v), s.makes(&v.Machine))
	}
	if err != nil {
		return fleetapi.VM{}, err
	}
	vm := fleet.VM{Name: v.Spec.Name, Project: fleetapi.DefaultProject, By: c.User.Name, Spec: v.Spec,
		Machine: v.Machine, Run: v.Run, Generation: 1, Created: time.Now().UTC().Truncate(time.Second)}
	if c.DryRun {
		return s.wouldCreate(ctx, c, vm)
	}
	return s.add(ctx, c, asked, vm, work{what: "created", limit: changeTime, vm: vm},
		func(ctx context.Context, h *operate.Host, r *journal.Request) error {
			p, err := operate.Prepare(ctx, s.Machines, &vm)
			if err != nil {
				return err
			}
			made, err := h.CreatePrepared(ctx, p, operate.CreateRequest{Request: r})
			if short := made.Shortfalls(); err == nil && len(short) > 0 {
				s.Log.Warn("not all is as requested", "vm", vm.Name, "what", short)
			}
			return err
		})
}

// makes refuses a type of machine that the host's hypervisor does not make.
func (s *Service) makes(m *fleet.Machine) error {
	if slices.Contains(s.Types, m.Kind()) {
		return nil
	}
	return fleetapi.NewProblem(fleetapi.ProblemInvalid, fmt.Sprintf("machine.type is %s, and this host makes machines "+
		"of type %s", m.Kind(), strings.Join(s.Types, ", ")))
}

// forOneHost refuses what needs a fleet's records.
func forOneHost(v *fleetapi.VMCreate) error {
	refuse := func(field string) error {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, field+" needs a fleet, and this is the daemon of one "+
			"host: leave it out, or ask the server of a fleet")
	}
	switch {
	case v.Project != "" && v.Project != fleetapi.DefaultProject:
		return refuse("project " + v.Project)
	case v.Affinity != (fleet.Affinity{}):
		return refuse("affinity")
	case len(v.Labels) > 0:
		return refuse("labels")
	case v.Run == fleet.Stopped:
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, "run: stopped: on one host, create the VM and stop it")
	}
	return nil
}

// wouldCreate says where a VM would be created. Its disks are not looked at.
func (s *Service) wouldCreate(ctx context.Context, c rest.Call, vm fleet.VM) (out fleetapi.VM, err error) {
	h, err := s.hostFor(ctx, c.User.Name)
	if err == nil {
		err = s.mayChange(ctx, vm.Name)
	}
	if err != nil {
		return out, err
	}
	made, err := h.WouldCreate(ctx, operate.CreateRequest{Spec: vm.Spec,
		Render: func(guest.Intent) (operate.Rendered, error) { return operate.Rendered{}, nil }})
	if err != nil {
		return out, problemOf(err)
	}
	if vm.Host, err = s.name(ctx); err != nil {
		return out, err
	}
	vm.Placement = made.Placement
	out = fleetapi.VM{VM: fleetapi.HideSecrets(vm), Why: show.Why(&made.Why, time.Now().UTC())}
	out.State = fleetapi.StateOf(&vm, nil, true)
	return out, nil
}

// add makes a VM of this API, unless the same request has made it already.
func (s *Service) add(
	ctx context.Context, c rest.Call, body any, vm fleet.VM, w work,
	do func(context.Context, *operate.Host, *journal.Request) error,
) (fleetapi.VM, error) {
	key, hash, err := c.Repeat(body)
	if err != nil {
		return fleetapi.VM{}, err
	}
	var request *journal.Request
	if key != "" {
		request = &journal.Request{Key: key, Body: hash}
		if made, err := s.repeated(request); err != nil || made != "" {
			if err != nil {
				return fleetapi.VM{}, err
			}
			return s.VM(ctx, c, made)
		}
	}
	w.request = request
	w.vm.Machine = fleet.Machine{} // it may contain secrets
	err = s.begin(ctx, c, vm.Name, w, func(ctx context.Context, h *operate.Host) error { return do(ctx, h, request) })
	if err != nil && !errors.Is(err, errGoesOn) {
		return fleetapi.VM{}, err
	}
	return s.VM(ctx, c, vm.Name)
}

// repeated returns the VM that an earlier request with the same key has made; empty: there was none.
func (s *Service) repeated(r *journal.Request) (vm string, err error) {
	entries, err := s.Local.Journal.Entries()
	if err != nil {
		return "", unavailable(err)
	}
	begun := map[string]string{} // the VM by the ID of the effect
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Request != nil && e.Request.Key == r.Key && len(e.Guests) == 1:
			if e.Request.Body != r.Body {
				return "", rest.ErrOtherRequest()
			}
			begun[e.ID] = e.Guests[0]
		case e.Takes() && begun[e.ID] != "":
			vm = begun[e.ID]
		}
	}
	return vm, nil
}

// AdoptVM implements rest.HostService. The VM is bound to nodes, and from then on one that Numavisor placed.
func (s *Service) AdoptVM(ctx context.Context, c rest.Call, a fleetapi.VMAdopt) (fleetapi.VM, error) {
	if a.Project != "" && a.Project != fleetapi.DefaultProject {
		return fleetapi.VM{}, forOneHost(&fleetapi.VMCreate{Project: a.Project})
	}
	host, err := s.name(ctx)
	if err != nil {
		return fleetapi.VM{}, err
	}
	if a.Host != host {
		return fleetapi.VM{}, noSuchHost(a.Host, host)
	}
	managed := func(g *inventory.Guest) error {
		if g.Managed {
			return fleetapi.NewProblem(fleetapi.ProblemExists, "VM "+a.Name+" is placed by Numavisor already")
		}
		return running(g)
	}
	if c.DryRun {
		return s.wouldBind(ctx, c, a.Name, managed)
	}
	return s.add(ctx, c, a, fleet.VM{Name: a.Name}, work{what: "adopted", limit: bindTime},
		func(ctx context.Context, h *operate.Host, r *journal.Request) error {
			return s.bind(ctx, h, operate.BindRequest{Name: a.Name, Why: "a user adopted it", Check: managed,
				Request: r})
		})
}

// bind binds a VM, and logs what is not as requested.
func (s *Service) bind(ctx context.Context, h *operate.Host, r operate.BindRequest) error {
	b, err := h.Bind(ctx, r)
	if err == nil && !b.Complete() {
		s.Log.Warn("not all is as requested", "vm", r.Name, "what", b.Shortfalls())
	}
	return err
}

// running refuses a VM that does not run: only running ones are bound.
func running(g *inventory.Guest) error {
	if runOf(g) == fleet.Stopped {
		return fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+g.Name+" does not run: start it first")
	}
	return nil
}

// runOf says whether a VM runs.
func runOf(g *inventory.Guest) fleet.RunState {
	if g.State == "shutoff" {
		return fleet.Stopped
	}
	return fleet.Running
}

// BindVM implements rest.HostService.
func (s *Service) BindVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	check := expecting(c, running)
	if c.DryRun {
		return s.wouldBind(ctx, c, name, check)
	}
	return s.change(ctx, c, name, work{what: "bound", limit: bindTime},
		func(ctx context.Context, h *operate.Host) error {
			return s.bind(ctx, h, operate.BindRequest{Name: name, Recompute: true, Why: "a user asked for it",
				Check: check})
		})
}

// wouldBind says where a VM would be bound.
func (s *Service) wouldBind(
	ctx context.Context, c rest.Call, name string, check operate.Check,
) (out fleetapi.VM, err error) {
	h, err := s.hostFor(ctx, c.User.Name)
	if err == nil {
		err = s.mayChange(ctx, name)
	}
	if err != nil {
		return out, err
	}
	b, err := h.Bind(ctx, operate.BindRequest{Name: name, Recompute: true, DryRun: true, Check: check})
	if err != nil {
		return out, problemOf(err)
	}
	if out, err = s.VM(ctx, c, name); err != nil {
		return out, err
	}
	out.Placement = b.Plan.Placement
	if b.Why != nil {
		out.Why = show.Why(b.Why, time.Now().UTC())
	}
	return out, nil
}

// expecting is a check that the VM has the revision of the request.
func expecting(c rest.Call, more operate.Check) operate.Check {
	return func(g *inventory.Guest) error {
		vm := recordOf(g, "")
		if err := c.CheckRevision(revisionOfVM(&vm, g.UUID)); err != nil || more == nil {
			return err
		}
		return more(g)
	}
}

// change makes a change of a VM that exists, and returns the VM.
func (s *Service) change(
	ctx context.Context, c rest.Call, name string, w work, do func(context.Context, *operate.Host) error,
) (fleetapi.VM, error) {
	err := s.begin(ctx, c, name, w, do)
	if err != nil && !errors.Is(err, errGoesOn) {
		return fleetapi.VM{}, err
	}
	return s.VM(ctx, c, name)
}

// would returns a VM as it would be after a change, if the change is allowed.
func (s *Service) would(
	ctx context.Context, c rest.Call, name string, check operate.Check, change func(*fleetapi.VM),
) (fleetapi.VM, error) {
	if err := s.mayChange(ctx, name); err != nil {
		return fleetapi.VM{}, err
	}
	_, g, err := s.find(ctx, name)
	if err == nil {
		err = check(g)
	}
	if err != nil {
		return fleetapi.VM{}, err
	}
	vm, err := s.VM(ctx, c, name)
	if err == nil {
		change(&vm)
	}
	return vm, err
}

// StartVM implements rest.HostService.
func (s *Service) StartVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	check := expecting(c, nil)
	if c.DryRun {
		return s.would(ctx, c, name, check, func(vm *fleetapi.VM) { vm.Run = fleet.Running })
	}
	return s.change(ctx, c, name, work{what: "started", limit: changeTime},
		func(ctx context.Context, h *operate.Host) error {
			_, err := h.StartGuest(ctx, operate.StartRequest{Name: name, Check: check})
			return err
		})
}

// StopVM implements rest.HostService.
func (s *Service) StopVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	check := expecting(c, func(g *inventory.Guest) error {
		if runOf(g) == fleet.Running && !g.Persistent {
			return fleetapi.NewProblem(fleetapi.ProblemConflict,
				fmt.Sprintf("VM %s would be gone: %v; delete it instead", name, guest.ErrTransient))
		}
		return nil
	})
	if c.DryRun {
		return s.would(ctx, c, name, check, func(vm *fleetapi.VM) { vm.Run = fleet.Stopped })
	}
	return s.change(ctx, c, name, work{what: "stopped", limit: changeTime},
		func(ctx context.Context, h *operate.Host) error {
			return h.StopGuest(ctx, operate.StopRequest{Name: name, Grace: s.Grace, Check: check})
		})
}

// DeleteVM implements rest.HostService. A VM that Numavisor did not create is refused.
func (s *Service) DeleteVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	deleted := func(vm *fleetapi.VM) {
		vm.Delete, vm.Run = true, fleet.Stopped
		vm.State = fleetapi.StateOf(&vm.VM, vm.Status, true)
	}
	check := expecting(c, nil)
	vm, err := s.would(ctx, c, name, func(g *inventory.Guest) error {
		_, err := s.Local.WouldDelete(ctx, operate.DeleteRequest{Name: name})
		return cmp.Or(problemOf(err), check(g))
	}, deleted)
	if err != nil || c.DryRun {
		return vm, err
	}
	err = s.begin(ctx, c, name, work{what: "deleted", limit: changeTime},
		func(ctx context.Context, h *operate.Host) error {
			return h.Delete(ctx, operate.DeleteRequest{Name: name, Check: check})
		})
	if errors.Is(err, errGoesOn) {
		err = nil
	}
	return vm, err
}

// ResizeVM implements rest.HostService.
func (s *Service) ResizeVM(
	ctx context.Context, c rest.Call, name string, size fleetapi.VMResize,
) (out fleetapi.VM, err error) {
	r := operate.ResizeRequest{Name: name, Change: size.Of, Check: expecting(c, nil), DryRun: c.DryRun}
	if !c.DryRun {
		return s.change(ctx, c, name, work{what: "resized", limit: changeTime},
			func(ctx context.Context, h *operate.Host) error {
				_, err := h.Resize(ctx, r)
				return err
			})
	}
	h, err := s.hostFor(ctx, c.User.Name)
	if err == nil {
		err = s.mayChange(ctx, name)
	}
	if err != nil {
		return out, err
	}
	resized, err := h.Resize(ctx, r)
	if err != nil {
		return out, problemOf(err)
	}
	if out, err = s.VM(ctx, c, name); err != nil {
		return out, err
	}
	out.Spec, out.Placement, out.Why = resized.Spec, resized.Placement, show.Why(&resized.Why, time.Now().UTC())
	return out, nil
}
