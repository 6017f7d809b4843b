package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/bind"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// BindRequest says how to bind a running guest.
type BindRequest struct {
	Name string
	// Change alters the spec before a new placement; nil uses the recorded
	// placement if it exists and has CPUs online, which repairs drift, without CPUs that were dedicated to others
	// since (share.Recorded).
	Change func(guest.Spec) (guest.Spec, error)
	// Recompute computes a new placement even if one is recorded.
	Recompute bool
	// Placement was decided elsewhere: it is checked, and refused if it is not legal here now
	// (ErrPlacement). Nil: Bind decides.
	Placement *guest.Placement
	DryRun    bool
	// Recreate lets memory that the hypervisor does not move go by making the guest again on this host, from
	// Definition or, if that is empty, from the hypervisor's own. The policy must allow it (ErrRecreate).
	Recreate   bool
	Definition []byte
	// Announce, if it is set, is called with a plan that makes the guest again, before anything is done.
	Announce func(plan.Steps)
	Why      string // the reason, for the journal; empty: an operator asked for it
	// Check may refuse the VM as it is observed; nil: it does not.
	Check Check
	// Request identifies the request for the journal; nil: it cannot be repeated.
	Request *journal.Request
}

// ErrRecreate means that the policy does not let bind make a running guest again.
var ErrRecreate = errors.New("the policy does not allow it; movers.recreate: operator allows it")

// Bound is the result of Bind.
type Bound struct {
	Plan     plan.Steps      `json:"plan"`
	Why      *place.Why      `json:"why,omitempty"` // nil: the recorded placement was used
	Outcomes []apply.Outcome `json:"outcomes,omitempty"`
	Before   *Truth          `json:"before,omitempty"`
	Truth    *Truth          `json:"truth,omitempty"`
	// Balancing is set by a dry run that chooses nodes, if the balancer would choose
	// others.
	Balancing *Balancing `json:"balancing,omitempty"`
	// Gaps hide VMs whose resources were not counted when the placement was
	// chosen.
	Gaps []inventory.Gap `json:"gaps,omitempty"`
}

// Complete reports whether all steps of the plan were done and none was
// refused.
func (b *Bound) Complete() bool {
	return apply.Complete(b.Outcomes) && len(b.Plan.Cannot) == 0 && (b.Why == nil || len(b.Why.Overlaps) == 0) &&
		(b.Truth == nil || len(b.Truth.Differences) == 0)
}

// Bind brings a running guest to its placement: vCPUs, helper threads and
// memory together, while it runs. It decides and claims under the ledger's
// lock, records the beginning in the journal, and then carries the plan out.
func (h *Host) Bind(ctx context.Context, r BindRequest) (Bound, error) {
	var b Bound
	var want guest.Intent
	var x *effect
	if r.Recreate && h.Policy.WithDefaults().Movers.Recreate != policy.AnswerOperator {
		return b, fmt.Errorf("making VM %s again on this host: %w", r.Name, ErrRecreate)
	}
	loads := h.measure(ctx)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		claims, err := tx.Claims()
		if err != nil {
			return err
		}
		if !r.DryRun && slices.ContainsFunc(claims, func(c inventory.Claim) bool { return c.Name == r.Name }) {
			return fmt.Errorf("VM %s: %w; wait until that has ended", r.Name, ErrBusy)
		}
		inv, g, err := h.find(ctx, r.Name)
		if err != nil {
			return err
		}
		if err := r.Check.of(&g); err != nil {
			return err
		}
		loads.addTo(&inv)
		if want, err = h.planBind(&inv, g, r, &b); err != nil || r.DryRun {
			if err == nil && b.Why != nil && r.Change == nil {
				b.Balancing = h.balancing(&inv, g, &b)
			}
			return err
		}
		if err := tx.Put(h.claimFor(g.Name, want.Placement)); err != nil {
			return err
		}
		if len(b.Plan.Steps) == 0 {
			return nil // with nothing to do, there is nothing to record
		}
		if x, err = h.beginBind(ctx, g, &inv, &b, r); err != nil {
			return errors.Join(err, h.Ledger.Release(r.Name))
		}
		return nil
	})
	if err != nil || r.DryRun {
		return b, err
	}
	if r.Announce != nil && slices.ContainsFunc(b.Plan.Steps, isRecreation) {
		r.Announce(b.Plan)
	}
	err = h.carryOut(ctx, &b, want, x)
	return b, errors.Join(err, x.endBind(&b, err), h.Ledger.Release(r.Name))
}

func isRecreation(s plan.Step) bool { return s.Kind == plan.Recreate }

// planBind decides where the guest goes, and by which steps.
func (h *Host) planBind(
	inv *inventory.Host, g inventory.Guest, r BindRequest, b *Bound,
) (want guest.Intent, err error) {
	if g.State != "running" && g.State != "paused" {
		return want, fmt.Errorf("VM %s is %s: start it first, or change its XML with 'numavisor place --xml'",
			g.Name, g.State)
	}
	before := TruthOf(g, &inv.Topology)
	b.Before = &before
	if want, b.Why, err = h.intentFor(inv, g, r); err != nil {
		return want, err
	}
	if err := g.CheckNodes(want.Placement.Nodes); err != nil {
		return want, fmt.Errorf("binding VM %s: %w", g.Name, err)
	}
	if b.Why != nil {
		b.Gaps = inv.HiddenBy()
	}
	basis, err := apply.Basis(h.Kernel, g)
	if err != nil {
		return want, err
	}
	rate, from, err := h.recreateRate(r.Recreate)
	if err != nil {
		return want, err
	}
	b.Plan = bind.Steps(
		bind.Request{
			Guest:      g,
			Topology:   &inv.Topology,
			Placement:  want.Placement,
			Basis:      basis,
			Persistent: g.Persistent,
			Recreate:   r.Recreate,
			Definition: r.Definition,

			RecreateRate: rate, RecreateRateFrom: from,
		},
	)
	return want, nil
}

// recreateRate is how fast guests are made again on this host: as in the journal, else as the policy assumes that
// memory is copied.
func (h *Host) recreateRate(asked bool) (rate topology.Bytes, from string, err error) {
	if !asked || h.Journal == nil {
		return 0, "", nil
	}
	entries, err := h.Journal.Entries()
	if err != nil {
		return 0, "", fmt.Errorf("looking for how fast VMs were made again: %w", err)
	}
	rate, from = h.Policy.Balance.CopyRate(journal.RecreateRate(entries))
	return rate, from, nil
}

// beginBind records that a bind begins, with what undo needs. The request of a process has no name.
func (h *Host) beginBind(
	ctx context.Context, g inventory.Guest, inv *inventory.Host, b *Bound, r BindRequest,
) (*effect, error) {
	p := &b.Plan
	undo := undoOf(g, &inv.Topology)
	former, err := h.FormerBinding(ctx, &g)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	undo.StoredBinding = former
	move := plan.Move{Kind: plan.MoveGuest, Why: r.Why, Guests: []plan.GuestMove{{
		Guest: g.Name, Placement: p.Placement, Basis: p.Basis, Undo: undo, Process: r.Name == ""}}}
	for _, s := range p.Steps {
		if s.Copies() {
			move.Guests[0].Bytes += s.Bytes
		}
	}
	x, err := h.begin(journal.Entry{Effect: journal.EffectBind, Guests: []string{g.Name}, Why: r.Why, Move: &move,
		What:    fmt.Sprintf("bind %s to nodes %s", g.Name, p.Placement.Nodes),
		Reasons: reasonsOf(b.Why), Request: r.Request})
	if err != nil {
		return nil, err
	}
	x.guest = &g
	return x, nil
}

// undoOf is the present binding of a running guest or process.
func undoOf(g inventory.Guest, t *topology.Topology) plan.Undo {
	u := plan.Undo{Placement: g.Placement, Spec: g.Spec, VCPUNodes: g.VCPUNodes(t), Memory: g.Seen.MemoryByNode,
		Pins: g.Config.Pins, EmulatorPin: g.Config.EmulatorPin, IOThreadPins: g.Config.IOThreadPins}
	for _, thread := range g.Seen.Threads {
		u.Allowed = u.Allowed.Union(thread.Mems)
	}
	if g.Can.SoftAffinity {
		u.SoftPins = map[guest.VCPUID]topology.CPUSet{}
		for v := range g.Config.VCPUs {
			id := guest.VCPUID(v)
			u.SoftPins[id] = t.CPUSet()
			if soft := g.Config.SoftPins[id]; !soft.IsEmpty() {
				u.SoftPins[id] = soft
			}
		}
	}
	if tune := g.Config.NUMATune; tune != nil {
		u.TuneMode, u.TuneNodes = tune.Mode, tune.Nodes
	}
	return u
}

// identifyBinding adds to the entry of the bind's end what its stored
// configuration has now.
func (x *effect) identifyBinding(ctx context.Context) {
	if x == nil {
		return
	}
	if digest := x.host.BindingDigest(ctx, x.guest); digest != "" {
		x.entry.StoredBindings = map[string]string{x.guest.Name: digest}
	}
}

// endBind records how a bind ended.
func (x *effect) endBind(b *Bound, failed error) error {
	if x == nil {
		return nil
	}
	for _, o := range b.Outcomes {
		x.inPart = x.inPart || o.Status == apply.Done || o.Status == apply.Partial
		if o.Moved != nil {
			x.entry.Moved += o.Moved.Moved
		}
		if isRecreation(o.Step) && o.Status == apply.Done {
			x.entry.Copied += o.Took // see journal.RecreateRate
		}
	}
	return x.end(failed, b.Shortfalls())
}

// carryOut runs the plan and verifies the guest, whatever the outcome of the
// plan. A guest that has been replaced since is not the one that was bound,
// even if its placement is right.
func (h *Host) carryOut(ctx context.Context, b *Bound, want guest.Intent, x *effect) error {
	executor := apply.Executor{Kernel: h.Kernel, Hypervisor: h.Control, Clock: h.Clock, Progress: h.Progress}
	outcomes, failed := executor.Run(ctx, b.Plan, want)
	b.Outcomes = outcomes
	for i := range outcomes {
		b.Plan.Basis.Run = cmp.Or(outcomes[i].Run, b.Plan.Basis.Run)
	}
	return errors.Join(failed, CleanUp(ctx, func(ctx context.Context) error {
		x.identifyBinding(ctx)
		t, err := h.Verify(ctx, b.Plan.Guest)
		if err == nil {
			b.Truth = &t
			err = errors.Join(apply.StillThere(h.Kernel, b.Plan.Basis),
				apply.StillRuns(ctx, h.Control, b.Plan.Guest, b.Plan.Basis))
		}
		return err
	}))
}

// intentFor returns the recorded placement of a guest or computes a new one;
// that requires a complete list of the hypervisor's guests.
func (h *Host) intentFor(inv *inventory.Host, g inventory.Guest, r BindRequest) (guest.Intent, *place.Why, error) {
	// A guest of the same name may have replaced the one with the recorded
	// intent.
	fits := g.Placement != nil && g.Spec != nil && len(g.Placement.VCPUs) == g.Config.VCPUs &&
		!g.Placement.LostCPUs(inv.Topology.CPUSet())
	pooled, err := inv.WithinPool(guest.Limits{Pool: g.Pool})
	if err != nil {
		return guest.Intent{}, nil, fmt.Errorf("binding VM %s: %w", g.Name, err)
	}
	// An operator may have moved the guest to another pool since, or taken CPUs from its pool.
	if fits && !pooled.CPUs.IsEmpty() && !vcpuCPUs(g.Placement).SubsetOf(pooled.CPUs) {
		r.Recompute = true
	}
	if fits && r.Change == nil && !r.Recompute && r.Placement == nil {
		p := share.Recorded(inv, h.Policy, &g)
		return guest.Intent{Host: inv.Identity(), Spec: *g.Spec, Placement: p, Adopted: g.Adopted}, nil, nil
	}
	othersHidden := func(gap inventory.Gap) bool { return !gap.HidesGuestsOf(g.Hypervisor) }
	if err := roomIsKnown(slices.DeleteFunc(inv.HiddenBy(), othersHidden)); err != nil {
		return guest.Intent{}, nil, err
	}
	spec := adopt.Spec(g)
	if fits {
		spec = *g.Spec
		spec.Limits.Pool = g.Pool
	}
	if r.Placement != nil {
		p := share.Now(inv, h.Policy, spec.Limits, *r.Placement)
		want := guest.Intent{Host: inv.Identity(), Spec: spec, Placement: p, Adopted: !g.Created()}
		return want, nil, h.given(inv, spec, p)
	}
	if r.Change != nil {
		if spec, err = r.Change(spec); err != nil {
			return guest.Intent{}, nil, err
		}
	}
	placing := spec
	if fits && g.State == "running" {
		placing = adopt.Fixed(spec, g.Placement)
	}
	home := g.HomeNodes()
	homeHasCPUs := pooled.CPUs.IsEmpty() || inv.Topology.NodesOf(pooled.CPUs).Intersects(home)
	if placing.Limits.Nodes.IsEmpty() && !g.Can.MoveMemory && homeHasCPUs {
		placing.Limits.Nodes = home
	}
	request := place.Request{Host: inv, Spec: placing, Policy: h.Policy, Ignore: g.Name}
	p, why, ok := cellsStay(request, &g, spec.Limits.Nodes)
	if !ok {
		p, why, err = place.Again(request, g.Seen.MemoryByNode)
	}
	if err != nil {
		return guest.Intent{}, nil, err
	}
	if err := h.legal(inv, spec, p); err != nil {
		return guest.Intent{}, nil, err
	}
	return guest.Intent{
		Host:      inv.Identity(),
		Spec:      spec,
		Placement: adopt.Align(p, g.Config),
		Adopted:   !g.Created(),
	}, &why, nil
}

// cellsStay places the cells of a guest, whose hypervisor does not move their memory, on the nodes from which it took
// that. ok is false if these nodes are not known, do not have the memory, are not within the operator's limit, or have
// no room.
func cellsStay(
	r place.Request, g *inventory.Guest, limit topology.NodeSet,
) (p guest.Placement, why place.Why, ok bool) {
	var homes []topology.NodeID
	var nodes topology.NodeSet
	for _, c := range g.Config.Cells {
		if c.Node == nil {
			return p, why, false
		}
		homes, nodes = append(homes, *c.Node), nodes.With(*c.Node)
	}
	if g.Can.MoveMemory || len(homes) == 0 || !nodes.Equal(g.HomeNodes()) ||
		!limit.IsEmpty() && !nodes.SubsetOf(limit) {
		return p, why, false
	}
	p, err := place.On(r, homes)
	why.Summary = fmt.Sprintf("%s stays on nodes %s: the memory of its cells is there, and does not move", g.Name,
		nodes)
	return p, why, err == nil
}

// vcpuCPUs returns the CPUs to which a placement binds vCPUs.
func vcpuCPUs(p *guest.Placement) (cpus topology.CPUSet) {
	for _, v := range p.VCPUs {
		cpus = cpus.Union(v.CPUs)
	}
	return cpus
}

// Shortfalls lists in words what a bind did not achieve.
func (b *Bound) Shortfalls() []string {
	var all []string
	for _, o := range b.Outcomes {
		if o.Status != apply.Done {
			all = append(all, fmt.Sprintf("%s: %s %s", o.Step, o.Status, o.Detail))
		}
	}
	for _, r := range b.Plan.Cannot {
		all = append(all, fmt.Sprintf("%s: %s", r.What, r.Why))
	}
	if b.Truth != nil {
		for _, d := range b.Truth.Differences {
			all = append(all, d.String())
		}
	}
	if b.Why != nil {
		all = append(all, shared(b.Why)...)
	}
	return all
}
