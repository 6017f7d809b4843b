package move

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// strayed is which part of a guest's memory may lie elsewhere than when its
// move was planned: it touches pages and the kernel reclaims some meanwhile.
const strayed = 0.1

// still returns ErrStale where a guest is not as its move says that it was. A
// guest that was on this way before and was left there is as it shall be.
func still(inv *inventory.Host, m plan.GuestMove) error {
	g, ok := inv.Guest(m.Guest)
	if !ok {
		return fmt.Errorf("%w: %w", ErrStale, operate.Missing(*inv, m.Guest))
	}
	if g.State != "running" && g.State != "paused" {
		return fmt.Errorf("%w: guest %s is %s", ErrStale, g.Name, g.State)
	}
	if sameKept(g.Placement, &m.Placement) && !sameKept(m.Undo.Placement, &m.Placement) {
		return nil
	}
	if err := recordedAs(g, m); err != nil {
		return err
	}
	if now := g.VCPUNodes(&inv.Topology); !now.Equal(m.Undo.VCPUNodes) {
		return fmt.Errorf("%w: the vCPUs of guest %s may run on nodes %s; when the move was planned it was %s",
			ErrStale, g.Name, now, m.Undo.VCPUNodes)
	}
	if part := elsewhere(m.Undo.Memory, g.Seen.MemoryByNode); part > strayed {
		return fmt.Errorf(
			"%w: %.0f %% of the memory of guest %s lie elsewhere than when the move was planned: %v, it was %v",
			ErrStale, 100*part, g.Name, g.Seen.MemoryByNode, m.Undo.Memory)
	}
	return nil
}

// recordedAs returns ErrStale where a guest was given another placement than
// the one that it had and the one that it is to get.
func recordedAs(g *inventory.Guest, m plan.GuestMove) error {
	if sameKept(g.Placement, m.Undo.Placement) || sameKept(g.Placement, &m.Placement) {
		return nil
	}
	if g.Placement == nil {
		return fmt.Errorf("%w: guest %s has no recorded placement any more", ErrStale, g.Name)
	}
	return fmt.Errorf("%w: guest %s has been placed on nodes %s since the move was planned", ErrStale, g.Name,
		g.Placement.Nodes)
}

// sameKept compares placements as they read back from a file: an empty list is none.
func sameKept(a, b *guest.Placement) bool {
	if a == nil || b == nil {
		return a == b
	}
	one, err1 := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, other)
}

// elsewhere is which part of the memory lies on other nodes than it did.
func elsewhere(was, now topology.MemoryByNode) float64 {
	before, after := float64(was.Total()), float64(now.Total())
	if before == 0 || after == 0 {
		return 0
	}
	part := 0.0
	for node, b := range now {
		part += max(0, float64(b)/after-float64(was[node])/before)
	}
	return part
}
