package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/room"
	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// CreateRequest is the input of Create in addition to the host.
type CreateRequest struct {
	Spec      guest.Spec // normalized, with a name
	Render    Renderer
	Transient bool
	// MakeRoom moves other guests if the guest does not fit otherwise, by means of Mover.
	// A dry run needs no Mover.
	MakeRoom bool
	Mover    Mover
	// Placement was decided elsewhere, for example by a fleet's scheduler: it is checked, and
	// refused if it is not legal here now (ErrPlacement). Nil: Create decides.
	Placement *guest.Placement
	// Cells are those of a definition that exists already: their vCPUs stay in them.
	Cells []inventory.ConfigCell
	// Request identifies the request for the journal; nil: it cannot be repeated.
	Request *journal.Request
}

// Renderer makes the definition that is bound to an intent's placement and
// records the intent.
type Renderer func(guest.Intent) (Rendered, error)

// Rendered is a definition, and the parts of the placement that it cannot
// express.
type Rendered struct {
	Definition guest.Definition
	Cannot     []plan.Refusal
	// Transient: the hypervisor stores no configuration, and a guest that ends is gone.
	Transient bool
}

// Created is the result of Create.
type Created struct {
	Placement guest.Placement `json:"placement"`
	Why       place.Why       `json:"why"`
	Cannot    []plan.Refusal  `json:"cannot,omitempty"`
	Truth     Truth           `json:"truth"`
	// MakeRoom are the moves of other guests that came first; nil: none were needed.
	MakeRoom  *room.Plan `json:"make_room,omitempty"`
	started   bool
	roomTaken bool            // not all guests that made room are back
	seen      *inventory.Host // on which it does not fit
}

// Started says whether the guest was started; it may run even if Create returned an error.
func (c *Created) Started() bool { return c.started }

// Shortfalls lists in words how the running guest differs from the request. A
// part that its configuration cannot express (Cannot) is no shortfall if the
// guest has it all the same.
func (c *Created) Shortfalls() []string {
	var all []string
	for _, d := range c.Truth.Differences {
		all = append(all, d.String())
	}
	return append(all, shared(&c.Why)...)
}

// shared lists the CPUs that should be exclusive to a guest but that guests
// placed earlier may still run on.
func shared(w *place.Why) []string {
	var all []string
	for _, o := range w.Overlaps {
		what := fmt.Sprintf("VM %s may also run on CPUs %s, which should be exclusive; bind it to others: "+
			"numavisor bind %s", o.Guest, o.CPUs, text.ShellWord(o.Guest))
		if o.Managed {
			what += " (a daemon in mode auto does this by itself)"
		}
		all = append(all, what)
	}
	return all
}

// Create places a guest, claims its resources, starts it bound from its first
// page, and verifies it. If it does not start, Create reverts the enlarged
// pools, the claim, and the moves that made room. A guest that started but cannot be
// verified keeps running; the error says so. If the guest does not fit, the error is a
// *room.RefusalError.
func (h *Host) Create(ctx context.Context, r CreateRequest) (Created, error) {
	var c Created
	var want guest.Intent
	var short []plan.Step
	var x *effect
	name := r.Spec.Name
	loads := h.measure(ctx)
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) (err error) {
		if want, short, err = h.decide(ctx, tx, r, loads, &c); err != nil {
			return err
		}
		x, err = h.begin(journal.Entry{Effect: journal.EffectCreate, Guests: []string{name}, Why: c.Why.Summary,
			What: c.what(&r.Spec), Reasons: reasonsOf(&c.Why), Request: r.Request})
		if err != nil {
			return errors.Join(err, h.Ledger.Release(name))
		}
		return nil
	})
	if err != nil {
		return c, h.advise(&c, &r.Spec, err)
	}
	if c.MakeRoom != nil {
		short, err = h.makeRoom(ctx, r, &c)
	}
	if err == nil {
		err = h.create(ctx, r, want, short, &c)
	}
	if err != nil && !c.started && c.MakeRoom != nil {
		err = errors.Join(err, h.giveRoomBack(ctx, r, &c))
	}
	x.inPart = c.started || c.roomTaken
	return c, errors.Join(err, x.end(err, c.Shortfalls()), h.Ledger.Release(name))
}

// reasonsOf are the reasons for a placement, for the journal; nil: it was given.
func reasonsOf(w *place.Why) *journal.Reasons {
	if w == nil || len(w.Terms) == 0 {
		return nil
	}
	out := &journal.Reasons{Text: w.Text(), Cost: w.Cost}
	for _, t := range w.Terms {
		out.Terms = append(out.Terms, journal.Term{Name: t.Name, Cost: t.Cost, Why: t.Note})
	}
	return out
}

// what describes the creation for the journal.
func (c *Created) what(s *guest.Spec) string {
	what := fmt.Sprintf("create %s with %d vCPUs and %v on nodes %s", s.Name, len(c.Placement.VCPUs), s.Memory,
		c.Placement.Nodes)
	if c.MakeRoom != nil {
		what += fmt.Sprintf(", after %s of other VMs", text.Count(len(c.MakeRoom.Moves), "move", "moves"))
	}
	return what
}

// advise adds to a refusal the moves that would make room. The ledger is not locked:
// the search may take a second.
func (h *Host) advise(c *Created, s *guest.Spec, refused error) error {
	var advised *room.RefusalError
	if c.seen == nil || errors.As(refused, &advised) {
		return refused
	}
	return room.Advise(room.Request{Host: c.seen, Spec: *s, Policy: h.Policy}, refused)
}

// create starts a guest whose resources are claimed.
func (h *Host) create(
	ctx context.Context, r CreateRequest, want guest.Intent, short []plan.Step, c *Created,
) (err error) {
	name := r.Spec.Name
	if p := want.Placement.Handoff; p != nil && h.AwaitStart != nil {
		if err := h.AwaitStart(ctx, name, p.First); err != nil {
			return fmt.Errorf("creating VM %s: %w", name, err)
		}
	}
	if c.Cannot, err = h.start(ctx, r, want, short); err != nil {
		return err
	}
	c.started = true
	if c.Truth, err = h.Verify(ctx, name); err != nil {
		return fmt.Errorf("VM %s was started, but could not be verified: %w", name, err)
	}
	return nil
}

// decide places a guest and claims its resources while the ledger is locked. It
// returns the intent to record with the guest, and the huge pages that the
// pools lack.
func (h *Host) decide(
	ctx context.Context, tx claim.Locked, r CreateRequest, loads *measured, c *Created,
) (want guest.Intent, short []plan.Step, err error) {
	if _, err := tx.Claims(); err != nil { // removes void claims before the observation
		return want, nil, err
	}
	if want, short, err = h.placeNew(ctx, r, loads, c); err != nil {
		return want, nil, err
	}
	return want, short, tx.Put(h.claimFor(r.Spec.Name, c.Placement))
}

// placeNew observes the host and places a guest whose name must be free. It
// returns the intent to record with the guest, and the huge pages that the pools
// lack.
func (h *Host) placeNew(
	ctx context.Context, r CreateRequest, loads *measured, c *Created,
) (want guest.Intent, short []plan.Step, err error) {
	inv, err := h.Observe(ctx)
	if err != nil {
		return want, nil, err
	}
	loads.addTo(&inv)
	if err := errors.Join(RoomIsKnown(&inv), nameIsFree(inv, r.Spec.Name)); err != nil {
		return want, nil, err
	}
	if r.Placement != nil {
		return h.placeGiven(&inv, r.Spec, *r.Placement, c)
	}
	c.Placement, c.Why, err = place.Place(place.Request{Host: &inv, Spec: r.Spec, Policy: h.Policy})
	switch {
	case err == nil:
		r.Spec = r.Spec.Resolve(&c.Placement)
		err = h.legal(&inv, r.Spec, c.Placement)
		c.Placement = adopt.Align(c.Placement, inventory.Config{Cells: r.Cells})
		want = guest.Intent{Host: inv.Identity(), Spec: r.Spec, Placement: c.Placement}
	case r.MakeRoom:
		if want, err = h.roomPlan(&inv, r.Spec, err, c); err == nil {
			inv = afterMoves(inv, c.MakeRoom)
		}
	default:
		c.seen = &inv
	}
	if err != nil {
		return want, nil, err
	}
	return want, poolShortages(capacity.Available(&inv, h.Policy, ""), c.Placement), nil
}

// placeGiven checks a placement that was decided elsewhere.
func (h *Host) placeGiven(
	inv *inventory.Host, s guest.Spec, p guest.Placement, c *Created,
) (want guest.Intent, short []plan.Step, err error) {
	s = s.Resolve(&p)
	p = share.Now(inv, h.Policy, s.Limits, p)
	if err := h.given(inv, s, p); err != nil {
		return want, nil, err
	}
	c.Placement, c.Why = p, place.Why{Summary: "the placement was given"}
	want = guest.Intent{Host: inv.Identity(), Spec: s, Placement: p}
	return want, poolShortages(capacity.Available(inv, h.Policy, ""), p), nil
}

// CreatePlan is what Create would do.
type CreatePlan struct {
	Placement guest.Placement `json:"placement"`
	Why       place.Why       `json:"why"`
	// MakeRoom are the moves of other guests that would come first; nil: none are needed.
	MakeRoom *room.Plan `json:"make_room,omitempty"`
	// Pools are the huge pages that would be added to pools.
	Pools []plan.Step `json:"pools,omitempty"`
	// Cannot are parts of the placement that the domain XML cannot express.
	Cannot []plan.Refusal `json:"cannot,omitempty"`
	XML    string         `json:"xml"`
}

// WouldCreate decides as Create does and changes nothing. It returns the error
// with which Create would refuse. Another process may take the room afterwards.
func (h *Host) WouldCreate(ctx context.Context, r CreateRequest) (CreatePlan, error) {
	var c Created
	want, short, err := h.placeNew(ctx, r, h.measure(ctx), &c)
	if err != nil {
		return CreatePlan{}, h.advise(&c, &r.Spec, err)
	}
	rendered, err := r.Render(want)
	if err != nil {
		return CreatePlan{}, fmt.Errorf("creating VM %s: %w", r.Spec.Name, err)
	}
	return CreatePlan{Placement: c.Placement, Why: c.Why, MakeRoom: c.MakeRoom, Pools: short, Cannot: rendered.Cannot,
		XML: string(rendered.Definition.Text)}, nil
}

// RoomIsKnown refuses an inventory that does not show all VMs and reservations:
// placing without the others would give their resources away.
func RoomIsKnown(inv *inventory.Host) error { return roomIsKnown(inv.RoomHiddenBy()) }

func roomIsKnown(hidden []inventory.Gap) error {
	if len(hidden) == 0 {
		return nil
	}
	return &HiddenError{Gaps: hidden,
		What: fmt.Sprintf("cannot see %s, so the free resources are unknown", whatOf(hidden))}
}

func nameIsFree(inv inventory.Host, name string) error {
	taken := slices.ContainsFunc(inv.Guests, func(g inventory.Guest) bool { return g.Name == name }) ||
		slices.ContainsFunc(inv.Claims, func(c inventory.Claim) bool { return c.Name == name })
	if taken {
		return fmt.Errorf("VM %s: %w; choose another name or delete it first", name, ErrExists)
	}
	return nil
}

func (h *Host) start(
	ctx context.Context, r CreateRequest, want guest.Intent, short []plan.Step,
) ([]plan.Refusal, error) {
	p := want.Placement
	rendered, err := r.Render(want)
	if err == nil {
		err = h.growPools(ctx, p.Guest, short)
	}
	if err != nil {
		return nil, fmt.Errorf("creating VM %s: %w", p.Guest, err)
	}
	// The error of Start names the guest and the action. Start reverts its own
	// steps, and refuses a name that is taken: Create must not remove that guest.
	if err := h.Domains.Start(ctx, rendered.Definition, r.Transient || rendered.Transient); err != nil {
		return nil, errors.Join(err, h.givePoolsBack(p.Guest, nil, topology.NodeSet{}))
	}
	return rendered.Cannot, nil
}

// DeleteRequest names the VM to delete. Force is needed for one that Numavisor
// did not create.
type DeleteRequest struct {
	Name  string
	Force bool
	// Redefine says that the VM, which does not run, will be defined again: the variables of
	// its firmware stay.
	Redefine bool
	// Check may refuse the VM as it is observed; nil: it does not.
	Check Check
}

// Check refuses a VM that is no longer as the request expects it.
type Check func(*inventory.Guest) error

// of applies a check, if there is one.
func (c Check) of(g *inventory.Guest) error {
	if c == nil {
		return nil
	}
	return c(g)
}

// Delete ends a guest, removes its configuration, and shrinks huge page pools
// that were enlarged for it. If the guest was already removed by other means,
// Delete shrinks its pools and returns ErrNoGuest. Without Force, the error for
// a VM that Numavisor did not create is ErrNotOurs, and nothing is changed.
func (h *Host) Delete(ctx context.Context, r DeleteRequest) error {
	name := r.Name
	inv, err := h.observeFor(ctx, name)
	if err != nil {
		return err
	}
	g, ok := inv.Guest(name)
	if !ok {
		err := Missing(inv, name)
		if errors.Is(err, ErrNoGuest) &&
			!slices.ContainsFunc(inv.Claims, func(c inventory.Claim) bool { return c.Name == name }) {
			err = errors.Join(err, h.givePoolsOfMissing(name, inv.Topology.NodeSet()))
		}
		return err
	}
	if err := errors.Join(mayDelete(g, r.Force), r.Check.of(g)); err != nil {
		return err
	}
	x, err := h.begin(deleteEntry(g))
	if err != nil {
		return fmt.Errorf("deleting VM %s: %w", name, err)
	}
	remove := h.Domains.Remove
	if r.Redefine {
		remove = h.Domains.Undefine
	}
	if err := remove(ctx, name); err != nil {
		err = fmt.Errorf("deleting VM %s: %w", name, err)
		return errors.Join(err, x.end(err, nil))
	}
	x.inPart = true
	err = errors.Join(h.givePoolsBack(name, g.Seen.MemoryByNode, inv.Topology.NodeSet()), h.Ledger.Release(name))
	return errors.Join(err, x.end(err, nil))
}

// WouldDelete says what Delete would end and remove, or returns the error with which it would refuse.
// Nothing is changed.
func (h *Host) WouldDelete(ctx context.Context, r DeleteRequest) (what string, err error) {
	inv, err := h.observeFor(ctx, r.Name)
	if err != nil {
		return "", err
	}
	g, ok := inv.Guest(r.Name)
	if !ok {
		return "", Missing(inv, r.Name)
	}
	return deleteEntry(g).What, mayDelete(g, r.Force)
}

// mayDelete refuses a VM that Numavisor did not create, unless the operator insists.
func mayDelete(g *inventory.Guest, force bool) error {
	if g.Created() || force {
		return nil
	}
	return fmt.Errorf("VM %s %w: %s; 'numavisor delete --force %[1]s' deletes it anyway", g.Name, ErrNotOurs,
		lostWith(g))
}

// givePoolsOfMissing gives back the huge pages of a guest that was removed by
// other means.
func (h *Host) givePoolsOfMissing(name string, nodes topology.NodeSet) error {
	if grown, err := h.Ledger.GrownFor(name); err != nil || len(grown) == 0 {
		return err
	}
	x, err := h.begin(
		journal.Entry{
			Effect: journal.EffectDelete,
			Guests: []string{name},
			What:   "give back the huge pages of " + name,
			Why:    "the VM no longer exists",
		},
	)
	if err != nil {
		return err
	}
	err = h.givePoolsBack(name, nil, nodes)
	return errors.Join(err, x.end(err, nil))
}

// deleteEntry is the journal's entry for deleting a guest, with its former
// state.
func deleteEntry(g *inventory.Guest) journal.Entry {
	what := fmt.Sprintf("delete %s (%s, %d vCPUs, %v", g.Name, g.State, g.Config.VCPUs, g.Config.Memory)
	if g.Placement != nil {
		what += fmt.Sprintf(", on nodes %s", g.Placement.Nodes)
	}
	return journal.Entry{Effect: journal.EffectDelete, Guests: []string{g.Name}, What: what + ")"}
}

// lostWith lists what deleting a guest destroys.
func lostWith(g *inventory.Guest) string {
	var lost []string
	if g.State != "shutoff" {
		lost = append(
			lost,
			fmt.Sprintf("ends it at once (it is %s, with %d vCPUs and %v of memory)", g.State, g.Config.VCPUs,
				g.Config.Memory),
		)
	}
	if g.Persistent {
		lost = append(lost,
			"removes its configuration with its NVRAM, its saved memory and the records of its snapshots")
	}
	return "deleting it " + strings.Join(lost, " and ") + "; disk images stay"
}
