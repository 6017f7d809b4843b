package move

import (
	"context"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// schedule sets the order of the guests, and which of them keep their vCPUs where
// these are until part of the memory has been copied.
func (m *mover) schedule(inv *inventory.Host) {
	access := cost.NewAccess(&inv.Topology)
	copies := make([]order.Copy, len(m.guests))
	for i, g := range m.guests {
		seen, _ := inv.Guest(g.Guest)
		copies[i] = g.copy(access, seen, &inv.Topology)
		if m.mayFollow(i, seen, &inv.Topology) {
			g.switchAt = copies[i].SwitchAt()
		}
		if g.switchAt > 0 {
			g.before, g.pins = apart(g.before)
		}
	}
	m.order = m.order[:0]
	for _, i := range order.Of(copies) {
		m.order = append(m.order, m.guests[i])
	}
}

// copy describes the copying of a guest's memory.
func (g *moving) copy(access *cost.Access, seen *inventory.Guest, t *topology.Topology) order.Copy {
	c := order.Copy{Loses: g.Saves}
	_, c.Bytes = g.turn.Done()
	here, target := seen.VCPUNodes(t), order.VCPUTargets(g.GuestMove, t)
	old, there := topology.MemoryByNode{}, topology.MemoryByNode{}
	for node, bytes := range seen.Seen.MemoryByNode {
		if g.Placement.Nodes.Contains(node) {
			there[node], c.There = bytes, c.There+bytes
		} else {
			old[node] = bytes
		}
	}
	if c.There == 0 {
		for node := range g.Placement.Nodes.All() {
			there[node] = 1
		}
	}
	c.Latency = order.Latency{
		HereToOld: order.MeanLatency(access, t, here, old), HereToNew: order.MeanLatency(access, t, here, there),
		TargetToOld: order.MeanLatency(access, t, target, old),
		TargetToNew: order.MeanLatency(access, t, target, there),
	}
	return c
}

// mayFollow reports whether the vCPUs of a guest may stay where they are while
// its memory is copied. They may not if waiting for CPUs is the reason for the
// move, or if other guests of the move need the CPUs: CPUs come before latency.
func (m *mover) mayFollow(i int, seen *inventory.Guest, t *topology.Topology) bool {
	g := m.guests[i]
	kind, _ := m.Move.Way(g.GuestMove)
	exchanges := kind == plan.Swap || len(m.guests) > 1 && g.Kind == ""
	if exchanges || m.Move.Benefit.WaitCPUs > m.Move.Benefit.AccessCPUs {
		return false
	}
	var taken topology.NodeSet
	for k, other := range m.guests {
		if k != i {
			taken = taken.Union(order.VCPUTargets(other.GuestMove, t))
		}
	}
	return !seen.VCPUNodes(t).SubsetOf(taken)
}

// apart separates the steps that move threads to other CPUs from the others.
func apart(steps []plan.Step) (others, pins []plan.Step) {
	pins = slices.DeleteFunc(slices.Clone(steps), func(s plan.Step) bool { return !s.Pins() })
	others = slices.DeleteFunc(slices.Clone(steps), plan.Step.Pins)
	return others, pins
}

// follow moves the vCPUs of guests whose memory has been copied far enough. If
// copying has ended, that is all of them but those whose memory could not be
// copied so far: their vCPUs stay with it.
func (m *mover) follow(ctx context.Context, x apply.Executor, ended bool) {
	for _, g := range m.order {
		done, _ := g.turn.Done()
		if len(g.pins) == 0 || done < g.switchAt && !ended {
			continue
		}
		if g.err == nil && done < g.switchAt {
			g.err = g.turn.Err
		}
		m.moveVCPUs(ctx, x, g)
	}
}

// moveVCPUs moves the vCPUs of a guest that follow its memory. If that fails, no more
// of its memory is copied: it would go away from the vCPUs.
func (m *mover) moveVCPUs(ctx context.Context, x apply.Executor, g *moving) {
	steps, failed := g.pins, g.err
	g.pins = nil
	m.steps(ctx, x, g, steps, journal.TracePin)
	if failed == nil && g.err != nil && g.turn.Err == nil {
		g.turn.Err = g.err
	}
}
