package move

import (
	"slices"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
)

// asked plans the steps to the move's placement, without those that Request.Later
// leaves.
func (m *mover) asked(inv *inventory.Host, seen *inventory.Guest, g *moving) {
	m.there(inv, seen, g)
	if m.Later && g.Placement.CPUMode != guest.CPUNone {
		g.leaveRest()
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

// withoutLeft returns the differences but those that Request.Later left.
func (g *moving) withoutLeft(all []drift.Difference) []drift.Difference {
	if !g.left {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(d drift.Difference) bool {
		return d.Kind == drift.MemoryLimit || g.cold && d.Kind == drift.Memory
	})
}
