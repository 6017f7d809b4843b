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

// turnBack plans the rollback of the guests that still exist, while their
// claims hold. On error nothing was changed.
func (m *mover) turnBack(ctx context.Context, why error) error {
	if err := m.record(journal.Entry{Kind: journal.MoveUndoing, What: "back: " + m.Move.String(),
		Why: why.Error()}); err != nil {
		return err
	}
	m.Pull = false // the way back is paced for the guests, and no second change of a setting
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
	if moves, err = m.present(ctx, &inv, moves); err != nil {
		return err
	}
	return m.ways(&inv, moves, m.backAgain)
}

// present are the guests that are still those of the move's beginning. It fails
// if a guest is not listed, or is listed without its process, while that
// process lives: a restarting hypervisor shows that, and the guest must not
// stay between two placements.
func (m *mover) present(
	ctx context.Context, inv *inventory.Host, moves []plan.GuestMove,
) (there []plan.GuestMove, err error) {
	m.gone = len(m.Move.Guests) - len(moves)
	for _, g := range moves {
		seen, ok := inv.Guest(g.Guest)
		gone := apply.Still(ctx, m.host.Kernel, m.host.Control, g.Guest, g.Basis)
		switch {
		case errors.Is(gone, apply.ErrGone):
			m.gone++
		case gone != nil:
			return nil, gone
		case !ok || seen.PID != g.Basis.PID:
			return nil, fmt.Errorf("VM %s: %w: it is running, but its hypervisor does not show it (process %d, run %q)",
				g.Guest, operate.ErrUnseen, g.Basis.PID, g.Basis.Run)
		default:
			there = append(there, g)
		}
	}
	return there, nil
}

// backAgain plans the steps back to the guest's state before the move. A guest
// that had no placement gets no intent and no limit that it did not have.
func (m *mover) backAgain(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	if g.Undo.Placement != nil {
		g.Placement = *g.Undo.Placement
		m.there(inv, seen, g)
		if g.Undo.Spec != nil {
			g.intent.Spec = *g.Undo.Spec
		}
		m.preferAgain(seen, g)
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
		func(s plan.Step) bool { return s.Kind == plan.Record }) // the steps that widen stay
	for i := range g.before {
		if s := &g.before[i]; s.Kind == plan.AllowNodes || s.Kind == plan.TuneLive {
			s.Nodes = s.Nodes.Union(g.Undo.Allowed)
		}
	}
	g.after = slices.DeleteFunc(slices.Clone(g.after), ours)
	m.preferAgain(seen, g)
	g.bound.Plan.Steps, g.bound.Plan.Cannot = slices.Concat(g.before, g.copies, g.after), nil
}

// preferAgain adds to the steps back which CPUs each vCPU preferred.
func (m *mover) preferAgain(seen *inventory.Guest, g *moving) {
	g.before = slices.Clone(g.before)
	for _, v := range g.Placement.VCPUs {
		was, ok := g.Undo.SoftPins[v.ID]
		if !ok || was.IsEmpty() {
			continue
		}
		i := slices.IndexFunc(g.before, func(s plan.Step) bool { return s.Kind == plan.PinVCPU && s.VCPU == v.ID })
		switch {
		case i >= 0:
			g.before[i].Prefer = was
		case !seen.Config.SoftPins[v.ID].Equal(was):
			g.before = append(g.before, plan.Step{Kind: plan.PinVCPU, VCPU: v.ID, CPUs: g.Placement.StartPin(v),
				Prefer: was, Why: "the CPUs that it preferred before"})
		}
	}
	g.bound.Plan.Steps = slices.Concat(g.before, g.copies, g.after)
}

// asItWas is the placement that stands for the former state of a guest without
// one: its vCPUs anywhere on their nodes, its memory on the nodes where it was.
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

// strayPart: less than a fiftieth of a guest's memory on a node does not make
// it one of the guest's nodes.
const strayPart = 50

// unmanage removes the intent from guests that had none before, once they are
// back, and restores their stored configurations.
func (m *mover) unmanage(ctx context.Context) {
	for _, g := range m.guests {
		if g.forget && g.err == nil {
			g.err = operate.CleanUp(ctx, func(ctx context.Context) error {
				if err := m.host.Control.Forget(ctx, g.Guest); err != nil {
					return fmt.Errorf("removing the intent of VM %s: %w", g.Guest, err)
				}
				if g.Undo.StoredBinding == "" {
					return nil
				}
				return m.host.Control.RestoreBinding(ctx, g.Guest, g.Undo.StoredBinding)
			})
		}
	}
}
