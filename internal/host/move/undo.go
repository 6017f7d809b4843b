package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrCannotUndo means that an effect is of a kind, or in a state, that cannot
// be undone. The error says what to do instead.
var ErrCannotUndo = errors.New("cannot be undone")

// ErrChanged means that the setting or guest to undo was changed since, or that
// other guests have its former room. Nothing was changed.
var ErrChanged = errors.New("changed since")

// UndoRequest names the effect to undo.
type UndoRequest struct {
	// ID of an effect or a move in the journal; empty: the last one that a user
	// asked for and that was not undone yet.
	ID string
	// Force undoes it even if it was changed since.
	Force bool
	// Move says how memory is copied: Progress and FullSpeed.
	Move Request
}

// Undone is the result of Undo.
type Undone struct {
	Of    journal.Entry `json:"of"` // beginning of the undone effect
	What  string        `json:"what"`
	Moved *Result       `json:"moved,omitempty"` // where guests were moved
	// Pools is the change of CPU pools, if the effect was one.
	Pools *operate.PoolsChanged `json:"pools,omitempty"`
	// Notes list what stays as the effect left it.
	Notes []string `json:"notes,omitempty"`
}

// Undo reverts an effect or a move: a setting gets its former value, guests
// go back to their former nodes and pins by the same code as any move. The undo
// is an effect itself, in the journal with the ID of the effect that it undoes.
// The error is ErrCannotUndo if undoing is impossible, and ErrChanged if the
// setting or a guest was changed since, or other guests have its former room.
func (h *Host) Undo(ctx context.Context, r UndoRequest) (Undone, error) {
	entries, err := h.Journal.Entries()
	if err != nil {
		return Undone{}, fmt.Errorf("finding the effect to undo: %w", err)
	}
	began, err := undoable(entries, r.ID)
	if err != nil {
		return Undone{}, err
	}
	u := Undone{Of: began}
	if began.Setting != nil {
		u.What, err = h.undoSetting(ctx, began, r.Force)
		return u, err
	}
	if began.Pools != nil {
		return h.undoPools(ctx, u, entries, r.Force)
	}
	r.Move.ID, r.Move.Move, r.Move.Undoes = operate.NewEffectID(h.Clock()), *began.Move, began.ID
	r.Move.By, r.Move.Journal = h.By, h.Journal
	u.What = "back: " + began.What
	moved, notes, err := h.undoMove(ctx, r.Move, entries, r.Force)
	u.Moved, u.Notes = &moved, notes
	return u, err
}

// undoable finds the beginning of the effect to undo, and refuses effects that
// cannot be undone.
func undoable(entries []journal.Entry, id string) (began journal.Entry, err error) {
	ends, undone := map[string]journal.Entry{}, map[string]string{}
	for _, e := range entries {
		if e.Ends() || e.Closes() {
			ends[e.ID] = e
		}
		if e.Undoes != "" && (e.Takes() || e.Kind == journal.MoveUndone) {
			undone[e.Undoes] = e.ID
		}
	}
	for _, e := range slices.Backward(entries) {
		if !e.Begins() && e.Kind != journal.MoveBegan || e.ID == "" || id != "" && e.ID != id {
			continue
		}
		end, ended := ends[e.ID]
		if id == "" &&
			(undone[e.ID] != "" || e.Undoes != "" || !e.ByUser() || !ended || !tookEffect(end) || noWayBack(e) != nil) {
			continue
		}
		switch {
		case undone[e.ID] != "":
			err = fmt.Errorf("%s was undone already, by %s", e.ID, undone[e.ID])
		case e.Undoes != "":
			err = fmt.Errorf("%s is an undo itself; make the change again with its own command", e.ID)
		case !ended:
			err = fmt.Errorf(
				"%s has not ended; wait for it, or finish an interrupted one with 'numavisor apply --resume'", e.ID)
		case !tookEffect(end):
			err = fmt.Errorf("%s made no lasting change: %s", e.ID, end.Kind)
		default:
			err = noWayBack(e)
		}
		if err != nil {
			return e, fmt.Errorf("%w: %w", ErrCannotUndo, err)
		}
		return e, nil
	}
	if id == "" {
		return began, fmt.Errorf(
			"%w: the journal has no effect of a user that can be undone; 'numavisor history' shows all",
			ErrCannotUndo)
	}
	return began, fmt.Errorf("%w: the journal has no effect or move %q; 'numavisor history' shows all", ErrCannotUndo,
		id)
}

// tookEffect reports whether something is left to undo after the end.
func tookEffect(end journal.Entry) bool {
	switch end.Kind {
	case journal.MoveDone, journal.MovePartial, end.Effect.Interrupted():
		return true
	default:
		return end.Takes()
	}
}

// noWayBack says why an effect cannot be undone, and what to do instead.
func noWayBack(e journal.Entry) error {
	name := strings.Join(e.Guests, ", ")
	switch {
	case e.Effect == journal.EffectCreate:
		return fmt.Errorf("%s created %s; 'numavisor delete %[2]s' deletes it", e.ID, name)
	case e.Effect == journal.EffectDelete:
		return fmt.Errorf("%s deleted %s; its disk images are still there, 'numavisor create' makes a VM of them", e.ID,
			name)
	case e.Effect == journal.EffectStart, e.Effect == journal.EffectStop:
		return fmt.Errorf("%s is the %s of %s; start or stop the VM instead", e.ID, e.Effect, name)
	case e.Effect == journal.EffectResize:
		return fmt.Errorf("%s resized %s; resize it back", e.ID, name)
	case e.Effect == journal.EffectRun:
		return fmt.Errorf("%s ran a command, which is bound for as long as it runs", e.ID)
	case e.Migration != nil, e.Effect == journal.EffectMigrateOut:
		return fmt.Errorf("%s migrated %s; migrate it back", e.ID, name)
	case e.Setting != nil && e.Setting.Held:
		return fmt.Errorf("%s is a setting that the daemon restores when it ends; change the policy (movers) instead",
			e.ID)
	case e.Setting == nil && e.Move == nil && e.Pools == nil:
		return fmt.Errorf("%s has no former state in the journal", e.ID)
	case e.Move != nil && e.Move.Guests[0].Process:
		return fmt.Errorf("%s bound a plain process; 'numavisor bind --pid %d --nodes NODES' binds it elsewhere", e.ID,
			e.Move.Guests[0].Basis.PID)
	}
	return nil
}

// undoSetting writes the former value of a setting.
func (h *Host) undoSetting(ctx context.Context, began journal.Entry, force bool) (string, error) {
	s := began.Setting
	remedy := plan.Remedy{
		Kind:  plan.WriteSetting,
		Path:  s.Path,
		From:  s.Value,
		Value: s.Former,
		Why:   "undo of " + began.ID,
	}
	if force {
		remedy.From = ""
	}
	f, err := h.Fix(ctx, operate.FixRequest{Remedy: remedy, Undoes: began.ID})
	if err != nil && f.Former != "" && f.Former != s.Value && !force {
		err = fmt.Errorf("%w: %s was set to %s, and is %s now; --force writes %s anyway", ErrChanged, s.Path,
			s.Value, f.Former, s.Former)
	}
	return f.What, err
}

// undoPools restores the former CPU pools.
func (h *Host) undoPools(ctx context.Context, u Undone, entries []journal.Entry, force bool) (Undone, error) {
	interrupted := slices.ContainsFunc(entries, func(e journal.Entry) bool {
		return e.ID == u.Of.ID &&
			(e.Kind == journal.EffectPools.Interrupted() || e.Kind == journal.EffectPools.Partial())
	})
	changed, err := h.UndoPools(ctx, u.Of, interrupted, force)
	if errors.Is(err, operate.ErrPoolsChanged) {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	u.What, u.Pools = "back: "+u.Of.What, &changed
	return u, err
}

// undoMove returns the guests of a move to their state before it.
func (h *Host) undoMove(
	ctx context.Context, r Request, entries []journal.Entry, force bool,
) (moved Result, notes []string, err error) {
	m := h.mover(r)
	m.moved.Cancelled = true // a user asked for it: that is not a failed move
	why := errors.New("undo of " + r.Undoes)
	err = h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		inv, err := m.observe(ctx, tx)
		if err != nil {
			return err
		}
		if err := m.asLeft(&inv, force); err != nil {
			return err
		}
		if notes, err = m.storedAsLeft(ctx, &inv, entries, force); err != nil {
			return err
		}
		if err := m.ways(&inv, m.Move.Guests, m.backAgain); err != nil {
			return err
		}
		if err := m.formerPlaceIsFree(&inv); err != nil {
			return fmt.Errorf("%w: its former place is taken: %w", ErrChanged, err)
		}
		return m.begin(tx, &inv,
			journal.Entry{Kind: journal.MoveBegan, What: "back: " + m.Move.String(), Why: why.Error(), Move: &m.Move})
	})
	if err != nil {
		return m.moved, nil, fmt.Errorf("undoing %s: %w", r.Undoes, err)
	}
	moved, err = m.finish(ctx, m.carryBack(m.backing(ctx), why))
	return moved, notes, err
}

// asLeft refuses guests that are not those of the move, or that were placed or
// pinned differently since. With force it refuses only the former. It accepts a
// guest that an earlier undo left unfinished.
func (m *mover) asLeft(inv *inventory.Host, force bool) error {
	for _, g := range m.Move.Guests {
		seen, ok := inv.Guest(g.Guest)
		switch gone := apply.StillThere(m.host.Kernel, g.Basis); {
		case gone != nil:
			return fmt.Errorf("%w: VM %s was restarted or has ended: %w", ErrChanged, g.Guest, gone)
		case !ok || seen.PID != g.Basis.PID:
			return operate.Missing(*inv, g.Guest)
		case g.Basis.Run != "" && seen.Run != g.Basis.Run:
			return fmt.Errorf("%w: VM %s was restarted, or made again on other nodes; 'numavisor bind %[2]s "+
				"--nodes NODES --recreate' moves it and its memory", ErrChanged, g.Guest)
		case force:
		case recordedAs(seen, g) != nil:
			return fmt.Errorf("%w: VM %s was given another placement; --force undoes it anyway",
				ErrChanged, g.Guest)
		case !seen.VCPUNodes(&inv.Topology).
			SubsetOf(inv.Topology.NodesOf(placedCPUs(g.Placement)).Union(g.Undo.VCPUNodes)):
			return fmt.Errorf(
				"%w: the vCPUs of VM %s were pinned to other nodes, %s; --force undoes it anyway",
				ErrChanged, g.Guest, seen.VCPUNodes(&inv.Topology))
		}
	}
	return nil
}

// storedAsLeft refuses stored configurations whose binding was changed since
// Numavisor wrote it, except with force. One that the undo cannot restore, since
// it is unknown how it was or what has changed it, stays as it is, with a note.
func (m *mover) storedAsLeft(
	ctx context.Context, inv *inventory.Host, entries []journal.Entry, force bool,
) (notes []string, err error) {
	m.Move.Guests = slices.Clone(m.Move.Guests) // the journal's entry stays
	for i := range m.Move.Guests {
		g := &m.Move.Guests[i]
		seen, ok := inv.Guest(g.Guest)
		if !ok || g.Undo.Placement != nil || !seen.Persistent {
			continue
		}
		left := journal.StoredBinding(entries, g.Guest)
		switch {
		case g.Undo.StoredBinding != "" && force:
		case g.Undo.StoredBinding == "" || left == "":
			g.Undo.StoredBinding = ""
			notes = append(notes, fmt.Sprintf("the stored configuration of %s keeps the placement for its next "+
				"start, because the journal does not say how it was or what was written; 'virsh edit %[1]s' changes it",
				g.Guest))
		case m.host.BindingDigest(ctx, seen) != left:
			return nil, fmt.Errorf("%w: the stored configuration of VM %s was changed; --force overwrites it",
				ErrChanged, g.Guest)
		}
	}
	return notes, nil
}

// formerPlaceIsFree checks that the guests may go back: other guests may have
// got their room since. A guest without a former placement needs room for its
// memory, and CPUs that are not exclusive to others.
func (m *mover) formerPlaceIsFree(inv *inventory.Host) error {
	before := *inv
	before.Guests = slices.Clone(inv.Guests)
	var placed []plan.GuestMove
	for _, g := range m.guests {
		if g.Undo.Placement == nil {
			seen, _ := inv.Guest(g.Guest)
			if err := seen.CheckNodes(g.Placement.Nodes); err != nil {
				return fmt.Errorf("VM %s: %w", g.Guest, err)
			}
			if err := roomFor(g.Placement, capacity.Available(inv, m.host.Policy, g.Guest)); err != nil {
				return err
			}
			continue
		}
		placed = append(placed, g.GuestMove)
		if seen, ok := before.Guest(g.Guest); ok && g.Undo.Spec != nil {
			seen.Spec = g.Undo.Spec
		}
	}
	return balance.Legal(&before, m.host.Policy, placed)
}

// roomFor refuses a placement if a node has too little free memory.
func roomFor(p guest.Placement, rooms []capacity.Node) error {
	for _, room := range rooms {
		if taken := placedCPUs(p).Intersect(room.Exclusive); !taken.IsEmpty() {
			return fmt.Errorf("CPUs %s are exclusive to another VM", taken)
		}
		for _, r := range p.Reservations {
			left := room.Left
			if r.PageSize != 0 {
				left = topology.Bytes(room.Pool(r.PageSize)) * r.PageSize
			}
			if r.Node == room.Node && r.Memory > left {
				return fmt.Errorf("node %d has %v free, but %v were there", r.Node, left, r.Memory)
			}
		}
	}
	return nil
}

// placedCPUs are the CPUs that a placement gives to vCPUs.
func placedCPUs(p guest.Placement) topology.CPUSet {
	var cpus topology.CPUSet
	for _, v := range p.VCPUs {
		cpus = cpus.Union(v.CPUs)
	}
	return cpus
}
