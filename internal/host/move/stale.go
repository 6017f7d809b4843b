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

// strayed is the share of a guest's memory that may be on other nodes than when
// its move was planned: meanwhile the guest touches pages and the kernel
// reclaims some. While the kernel brings memory to the vCPUs for moves (Request.Drifts), much of it may go to nodes
// other than the move's: another plan would be as stale.
const (
	strayed = 0.1
	drifted = 0.5
)

// still returns ErrStale if a guest differs from its state in the plan of the
// move. A guest that an earlier attempt of this move left partly moved is
// accepted.
func still(inv *inventory.Host, m plan.GuestMove, drifts bool) error {
	g, ok := inv.Guest(m.Guest)
	if !ok {
		return fmt.Errorf("%w: %w", ErrStale, operate.Missing(*inv, m.Guest))
	}
	if g.State != "running" && g.State != "paused" {
		return fmt.Errorf("%w: VM %s is %s", ErrStale, g.Name, g.State)
	}
	if samePlacement(g.Placement, &m.Placement) && !samePlacement(m.Undo.Placement, &m.Placement) {
		return nil
	}
	if err := recordedAs(g, m); err != nil {
		return err
	}
	if now := g.VCPUNodes(&inv.Topology); !now.Equal(m.Undo.VCPUNodes) {
		return fmt.Errorf("%w: the vCPUs of VM %s may run on nodes %s; when the move was planned it was %s",
			ErrStale, g.Name, now, m.Undo.VCPUNodes)
	}
	most := strayed
	if drifts {
		most = drifted
	}
	if part := elsewhere(m.Undo.Memory, g.Seen.MemoryByNode, m.Placement.Nodes); part > most {
		return fmt.Errorf(
			"%w: %.0f %% of the memory of VM %s has changed nodes since the move was planned: %v, it was %v",
			ErrStale, 100*part, g.Name, g.Seen.MemoryByNode, m.Undo.Memory)
	}
	return nil
}

// recordedAs returns ErrStale if a guest got a placement other than its former
// one and its target.
func recordedAs(g *inventory.Guest, m plan.GuestMove) error {
	if samePlacement(g.Placement, m.Undo.Placement) || samePlacement(g.Placement, &m.Placement) {
		return nil
	}
	if g.Placement == nil {
		return fmt.Errorf("%w: VM %s no longer has a recorded placement", ErrStale, g.Name)
	}
	return fmt.Errorf("%w: VM %s has been placed on nodes %s since the move was planned", ErrStale, g.Name,
		g.Placement.Nodes)
}

// samePlacement compares placements as read back from a file: an empty list
// equals none.
func samePlacement(a, b *guest.Placement) bool {
	if a == nil || b == nil {
		return a == b
	}
	one, err1 := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, other)
}

// elsewhere is the share of the memory that is on other nodes than before, and not on those of the target.
func elsewhere(was, now topology.MemoryByNode, target topology.NodeSet) float64 {
	before, after := float64(was.Total()), float64(now.Total())
	if before == 0 || after == 0 {
		return 0
	}
	part := 0.0
	for node, b := range now {
		if target.Contains(node) {
			continue
		}
		part += max(0, float64(b)/after-float64(was[node])/before)
	}
	return part
}
