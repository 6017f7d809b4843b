package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// cooldown is the history of moves that keeps plans from moving the same guests
// again too soon.
type cooldown struct {
	moves  []balance.Moved        // that balance.Remembered covers
	failed map[string][]time.Time // moves that failed within the last hour, by guest
}

// failedFor is how long a failed move counts for alarms.
const failedFor = time.Hour

// begin starts the cooldown of a move's guests, whether the move succeeded or not.
// Guests that stayed on their nodes have left none to which they must not return.
func (c *cooldown) begin(m *plan.Move, at time.Time, stayed bool) {
	for _, g := range m.Guests {
		moved := balance.Moved{Guest: g.Guest, At: at, From: leaves(&g), To: g.To(), Demand: g.Demand}
		if stayed {
			moved.From = topology.NodeSet{}
		}
		c.moves = append(c.moves, moved)
	}
}

// leaves returns the nodes that a guest leaves by a move: those of its vCPUs. A guest that could run on more nodes than
// now, the present ones among them, was bound to none of them: it leaves those of its memory.
func leaves(g *plan.GuestMove) (from topology.NodeSet) {
	to := g.To()
	if before := g.Undo.VCPUNodes; g.Undo.Placement != nil || !to.SubsetOf(before) || before.Equal(to) {
		return before
	}
	least := g.Undo.Memory.Total() / 10
	for node, bytes := range g.Undo.Memory {
		if bytes > least {
			from = from.With(node)
		}
	}
	return from
}

// remember counts a move that failed.
func (c *cooldown) remember(e journal.Entry) {
	if !e.Fails() {
		return
	}
	for _, name := range e.Guests {
		c.failed[name] = append(c.failed[name], e.At)
	}
}

// prune drops history that no rule needs any more.
func (c *Controller) prune() {
	now := c.turn.now
	over := func(t time.Time, length time.Duration) bool { return now.Sub(t) >= length }
	remembered := balance.Remembered(c.rules.policy.Balance)
	c.cooldown.moves = slices.DeleteFunc(c.cooldown.moves, func(m balance.Moved) bool { return over(m.At, remembered) })
	for name, times := range c.cooldown.failed {
		times = slices.DeleteFunc(times, func(t time.Time) bool { return over(t, failedFor) })
		if c.cooldown.failed[name] = times; len(times) == 0 {
			delete(c.cooldown.failed, name)
		}
	}
	for id, at := range c.advice.noted {
		if over(at, advisedFor) {
			delete(c.advice.noted, id)
		}
	}
}
