package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// ProcessRequest says how to bind a plain process.
type ProcessRequest struct {
	PID int
	// Change alters the spec that was derived from the process: its present
	// memory, one CPU, no cells.
	Change func(guest.Spec) (guest.Spec, error)
	DryRun bool
}

// BindProcess binds any process that is not a VM of a hypervisor: all its
// threads, its memory, and, by a cgroup of its own, the pages that it touches
// later. The claim on its resources lasts as long as the process.
func (h *Host) BindProcess(ctx context.Context, r ProcessRequest) (Bound, error) {
	var b Bound
	var x *effect
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		if _, err := tx.Claims(); err != nil {
			return err
		}
		inv, err := h.Observe(ctx) // without loads: those of its node contain its own
		if err != nil {
			return err
		}
		for _, g := range inv.Guests {
			if g.PID == r.PID && g.Can.StoreIntent {
				return fmt.Errorf(
					"process %d is VM %s: run 'numavisor bind %[2]s', so that libvirt has the new binding",
					r.PID, g.Name)
			}
		}
		g, err := observe.Process(ctx, h.Sources.Kernel, r.PID)
		if err != nil {
			return err
		}
		before := TruthOf(g, &inv.Topology)
		b.Before = &before
		if err := h.planProcess(tx, &inv, g, r, &b); err != nil || r.DryRun {
			return err
		}
		if len(b.Plan.Steps) == 0 {
			return nil
		}
		if x, err = h.beginBind(ctx, g, &inv, &b, BindRequest{}); err != nil {
			return errors.Join(err, h.Ledger.Release(g.Name))
		}
		return nil
	})
	if err != nil || r.DryRun {
		return b, err
	}
	executor := apply.Executor{Kernel: h.Kernel, Clock: h.Clock, Progress: h.Progress}
	outcomes, err := executor.Run(ctx, b.Plan, guest.Intent{})
	b.Outcomes = outcomes
	err = errors.Join(err, CleanUp(ctx, func(ctx context.Context) error { return h.verifyProcess(ctx, &b) }))
	return b, errors.Join(err, x.endBind(&b, err))
}

func (h *Host) planProcess(tx claim.Locked, inv *inventory.Host, g inventory.Guest, r ProcessRequest, b *Bound) error {
	basis, err := apply.Basis(h.Kernel, g)
	if err != nil {
		return err
	}
	spec, err := r.Change(processSpec(g))
	if err != nil {
		return err
	}
	spec.Name = g.Name
	p, why, err := h.placeProcess(inv, spec)
	if err != nil {
		return err
	}
	if err := g.CheckNodes(p.Nodes); err != nil {
		return fmt.Errorf("binding process %d: %w", r.PID, err)
	}
	b.Why, b.Gaps = &why, inv.HiddenBy()
	b.Plan = bind.Steps(bind.Request{Guest: g, Topology: &inv.Topology, Placement: p, Basis: basis})
	if r.DryRun {
		return nil
	}
	c := h.claimFor(g.Name, p)
	c.Process, c.Holder = true, claim.Process{PID: basis.PID, StartTicks: basis.StartTicks}
	return tx.Put(c)
}

// processSpec asks for what the process has.
func processSpec(g inventory.Guest) guest.Spec {
	var memory topology.Bytes
	for _, bytes := range g.Seen.MemoryByNode {
		memory += bytes
	}
	return guest.Spec{
		Name:     g.Name,
		VCPUs:    max(1, g.Config.VCPUs),
		Memory:   max(memory, topology.MiB),
		Topology: guest.TopologySpec{Mode: guest.TopologyOff},
	}
}

// placeProcess places a process like a guest; all its threads get the CPUs of its vCPUs.
func (h *Host) placeProcess(inv *inventory.Host, spec guest.Spec) (guest.Placement, place.Why, error) {
	inv.Claims = slices.DeleteFunc(inv.Claims, func(c inventory.Claim) bool { return c.Name == spec.Name })
	p, why, err := place.Place(place.Request{Host: inv, Spec: spec, Policy: h.Policy, Ignore: spec.Name})
	p.Emulator = topology.CPUSet{}
	for _, v := range p.VCPUs {
		p.Emulator = p.Emulator.Union(v.CPUs)
	}
	return p, why, err
}

// NewProcess is a process that is about to run a command, placed and claimed.
type NewProcess struct {
	Placement guest.Placement
	// Gaps hide VMs, whose resources were not counted.
	Gaps   []inventory.Gap
	effect *effect
}

// PlaceNew places this process, which is about to run a command, and claims its
// resources for as long as it lives. The journal has its beginning; the caller
// reports the outcome by Starting or Failed.
func (h *Host) PlaceNew(ctx context.Context, spec guest.Spec, command string) (NewProcess, error) {
	var n NewProcess
	loads := h.measure(ctx)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		if _, err := tx.Claims(); err != nil {
			return err
		}
		inv, err := h.Observe(ctx)
		if err != nil {
			return err
		}
		n.Gaps = inv.HiddenBy()
		loads.addTo(&inv)
		if n.Placement, _, err = h.placeProcess(&inv, spec); err != nil {
			return err
		}
		c := h.claimFor(spec.Name, n.Placement)
		c.Process = true
		if err := tx.Put(c); err != nil {
			return err
		}
		n.effect, err = h.begin(journal.Entry{Effect: journal.EffectRun, Guests: []string{spec.Name},
			What: fmt.Sprintf("run %s as process %d on nodes %s", command, h.Self.PID, n.Placement.Nodes)})
		if err != nil {
			return errors.Join(err, h.Ledger.Release(spec.Name))
		}
		return nil
	})
	return n, err
}

// Starting records that this process becomes the command; after that it cannot
// record anything.
func (n *NewProcess) Starting() error { return n.effect.end(nil, nil) }

// Failed records that the command did not start, and returns the reason. If
// Starting was recorded, the journal has both.
func (n *NewProcess) Failed(why error) error { return errors.Join(why, n.effect.end(why, nil)) }

func (h *Host) verifyProcess(ctx context.Context, b *Bound) error {
	t, err := h.Sources.Kernel.Topology()
	if err != nil {
		return err
	}
	g, err := observe.Process(ctx, h.Sources.Kernel, b.Plan.PID)
	if err != nil {
		return fmt.Errorf("verifying: %w", err)
	}
	g.Placement = &b.Plan.Placement
	after := TruthOf(g, &t)
	b.Truth = &after
	return nil
}
