package move

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// asked plans the steps to the move's placement, without those that Request.Later
// leaves.
func (m *mover) asked(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	m.there(inv, seen, g)
	if m.Later && g.Placement.CPUMode != guest.CPUNone {
		g.leaveRest()
		if slices.Contains(m.Served, g.Guest) {
			g.leaveCold()
		}
	}
}

// leaveCold leaves the memory that the kernel has not brought to the guest's vCPUs, if it is little: they hardly use
// it.
func (g *moving) leaveCold() {
	var far topology.Bytes
	for node, bytes := range g.seen.Seen.MemoryByNode {
		if !g.Placement.Nodes.Contains(node) {
			far += bytes
		}
	}
	if len(g.copies) > 0 && order.Cold(far, g.seen.Seen.MemoryByNode.Total()) {
		g.copies, g.left, g.cold = nil, true, true
	}
}

// leaveRest takes the steps of which Request.Later speaks from the guest's plan.
// The memory that its vCPUs access is where it should be without them, and so are
// new pages, as its vCPUs run on CPUs of its nodes.
func (g *moving) leaveRest() {
	before := len(g.copies) + len(g.after)
	g.copies = slices.DeleteFunc(slices.Clone(g.copies), func(s plan.Step) bool { return s.Kind == plan.MoveOwn })
	g.after = slices.DeleteFunc(slices.Clone(g.after), plan.Step.Limits)
	g.left = len(g.copies)+len(g.after) < before
}

// leavesHeld reports whether kernel balancing, which was on before the move, stays on for what leaveCold has left: the
// kernel brings it when the vCPUs use it.
func (m *mover) leavesHeld() bool {
	if m.moved.Held == nil || !slices.ContainsFunc(m.guests, func(g *moving) bool { return g.cold }) {
		return false
	}
	m.note("kernel balancing stays on for a little memory that is not in use")
	return true
}

// withoutLeft returns the differences but those that Request.Later left.
func (g *moving) withoutLeft(all []drift.Difference) []drift.Difference {
	if !g.left {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(d drift.Difference) bool {
		return d.Kind == drift.MemoryLimit || g.cold && d.Kind == drift.Memory
	})
}

// errGivesWay ends copying for Request.GiveWay.
var errGivesWay = errors.New("other VMs need a move more")

// grace is how long a move that is to give way still copies: what ends in this time is not planned, begun and copied
// again.
const grace = 5 * time.Second

// yielding watches whether a move is to give way.
type yielding struct {
	giveWay <-chan struct{}
	clock   func() time.Time
	since   time.Time // when it was first seen that the move is to give way
}

func (m *mover) yielding() yielding { return yielding{giveWay: m.GiveWay, clock: m.host.Clock} }

// passed reports whether the move has been to give way for so long.
func (y *yielding) passed(long time.Duration) bool {
	if y.since.IsZero() {
		select {
		case <-y.giveWay:
			y.since = y.clock()
		default:
			return false
		}
	}
	return y.clock().Sub(y.since) >= long
}

// sleep waits for some time, and not longer than until the move is to give way. The error is the end of the context.
func (y *yielding) sleep(ctx context.Context, most time.Duration) error {
	if !y.since.IsZero() {
		return sleep(ctx, most)
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-y.giveWay:
	case <-timer.C:
	}
	return nil
}

// yieldingPacer is a pacer that ends copying some time after the move is to give way.
type yieldingPacer struct {
	apply.Pacer

	yielding yielding
}

func (p *yieldingPacer) Next(ctx context.Context) (topology.Bytes, error) {
	if p.yielding.passed(grace) {
		return 0, errGivesWay
	}
	return p.Pacer.Next(ctx)
}

// leaveAll leaves the memory that has not been copied for a quiet time.
func (m *mover) leaveAll() {
	m.moved.GaveWay = true
	m.note("the rest of the memory waits: " + errGivesWay.Error())
	for _, g := range m.order {
		if done, total := g.turn.Done(); done < total {
			g.turn.Leave()
			g.left, g.cold, g.partly = true, true, true
		}
	}
}
