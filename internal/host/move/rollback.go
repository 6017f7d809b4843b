package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// turnBack plans the way back of the guests that are still there, while their
// claims hold. On error nothing was touched.
func (m *mover) turnBack(ctx context.Context, why error) error {
	if err := m.keep(journal.Entry{Kind: journal.MoveUndoing, What: "back: " + m.Move.String(),
		Why: why.Error()}); err != nil {
		return err
	}
	names := make([]string, len(m.guests))
	moves := make([]plan.GuestMove, len(m.guests))
	for i, g := range m.guests {
		names[i], moves[i] = g.Guest, g.GuestMove
	}
	inv, err := m.host.Observe(ctx, names...)
	if err == nil {
		err = operate.RoomIsKnown(&inv)
	}
	if err != nil {
		return err
	}
	if moves, err = m.present(&inv, moves); err != nil {
		return err
	}
	return m.ways(&inv, moves, m.backAgain)
}

// present are the guests that are still the ones that the move was begun on. It
// fails where one is not shown, or without its process, and that process lives:
// a hypervisor that restarts shows that, and half-way is no place to leave it.
func (m *mover) present(inv *inventory.Host, moves []plan.GuestMove) (there []plan.GuestMove, err error) {
	m.gone = len(m.Move.Guests) - len(moves)
	for _, g := range moves {
		seen, ok := inv.Guest(g.Guest)
		gone := apply.StillThere(m.host.Kernel, g.Basis)
		switch {
		case errors.Is(gone, apply.ErrGone):
			m.gone++
		case gone != nil:
			return nil, gone
		case !ok || seen.PID != g.Basis.PID:
			return nil, fmt.Errorf("guest %s: %w: its process %d lives, and its hypervisor does not show it", g.Guest,
				operate.ErrUnseen, g.Basis.PID)
		default:
			there = append(there, g)
		}
	}
	return there, nil
}

// backAgain is the way back to how the guest was before the move. One that
// nobody had placed gets no intent and no limit that it did not have.
func (m *mover) backAgain(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	if g.Undo.Placement != nil {
		g.Placement = *g.Undo.Placement
		m.there(inv, seen, g)
		if g.Undo.Spec != nil {
			g.intent.Spec = *g.Undo.Spec
		}
		return
	}
	g.forget = seen.Can.StoreIntent
	g.Placement = asItWas(g.Placement, g.Undo, &inv.Topology)
	m.there(inv, seen, g)
	held := seen.Config.NUMATune != nil && seen.Config.NUMATune.Mode == string(guest.MemoryStrict)
	ours := func(s plan.Step) bool {
		return s.Kind == plan.Record || s.Kind == plan.Configure ||
			!held && (s.Kind == plan.HoldNodes || s.Kind == plan.TuneLive)
	}
	g.before = slices.DeleteFunc(slices.Clone(g.before),
		func(s plan.Step) bool { return s.Kind == plan.Record }) // what widens stays
	for i := range g.before {
		if s := &g.before[i]; s.Kind == plan.AllowNodes || s.Kind == plan.TuneLive {
			s.Nodes = s.Nodes.Union(g.Undo.Allowed)
		}
	}
	g.after = slices.DeleteFunc(slices.Clone(g.after), ours)
	g.bound.Plan.Steps, g.bound.Plan.Cannot = slices.Concat(g.before, g.copies, g.after), nil
}

// asItWas is the placement that stands for where a guest was that nobody had
// placed: its vCPUs anywhere on their nodes, its memory on those where it lay.
func asItWas(to guest.Placement, was plan.Undo, t *topology.Topology) guest.Placement {
	var total topology.Bytes
	for _, bytes := range was.Memory {
		total += bytes
	}
	p, cpus := to, t.CPUsOf(was.VCPUNodes)
	p.CPUMode, p.Nodes, p.Reservations = guest.CPURange, topology.NodeSet{}, nil
	p.Emulator, p.IOThread = cpus, cpus
	if !was.EmulatorPin.IsEmpty() {
		p.Emulator = was.EmulatorPin
	}
	for _, node := range slices.Sorted(maps.Keys(was.Memory)) {
		if bytes := was.Memory[node]; bytes > total/strayPart {
			p.Nodes = p.Nodes.With(node)
			p.Reservations = append(p.Reservations, guest.Reservation{Node: node, Memory: bytes, PageSize: to.PageSize})
		}
	}
	if p.Nodes.IsEmpty() {
		p.Nodes = was.VCPUNodes.Intersect(t.MemoryNodes())
	}
	p.Cells, p.VCPUs = slices.Clone(to.Cells), slices.Clone(to.VCPUs)
	for i := range p.Cells {
		p.Cells[i].Nodes = p.Nodes
	}
	for i := range p.VCPUs {
		p.VCPUs[i].CPUs = cpus
		if pin, ok := was.Pins[p.VCPUs[i].ID]; ok && !pin.IsEmpty() {
			p.VCPUs[i].CPUs = pin
		}
	}
	return p
}

// strayPart: a fiftieth of a guest's memory on a node does not make it the guest's.
const strayPart = 50

// forgetIntents takes the intent away from those that had none before, once
// they are back.
func (m *mover) forgetIntents(ctx context.Context) {
	for _, g := range m.guests {
		if g.forget && g.err == nil {
			g.err = operate.CleanUp(ctx, func(ctx context.Context) error {
				if err := m.host.Control.Forget(ctx, g.Guest); err != nil {
					return fmt.Errorf("forgetting the intent of guest %s: %w", g.Guest, err)
				}
				return nil
			})
		}
	}
}
