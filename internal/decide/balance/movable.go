package balance

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// Immovable says why the policy, a guest's state or its spec keeps it on its nodes;
// no kind: it may move. The policy's defaults must be written out.
func Immovable(g *inventory.Guest, p policy.Policy) plan.Blocked {
	spec := specOf(g)
	switch {
	case p.Balance.ModeOf(g.Name, g.Ours()) == policy.ModeOff:
		return plan.Blocked{Kind: plan.BlockedModeOff, Why: "mode off"}
	case g.State != "running":
		return plan.Blocked{Kind: plan.BlockedNotRunning, Why: "is " + g.State}
	case spec.CPU.Binding == guest.CPUNone || spec.Binding.Mode == guest.MemoryNone:
		return plan.Blocked{Kind: plan.BlockedUnbound, Why: "its spec asks for no binding"}
	case spec.Topology.Mode == guest.TopologyMirror:
		return plan.Blocked{Kind: plan.BlockedMirror, Why: "mirrors the host's topology and so uses all nodes"}
	}
	return plan.Blocked{}
}

// MemoryPinned reports whether a guest's memory cannot move: vfio pins it, or its
// hypervisor moves none of a running guest.
func MemoryPinned(g *inventory.Guest) bool { return whyPinned(g) != "" }

// whyPinned says why a guest's memory cannot move; "": it can.
func whyPinned(g *inventory.Guest) string {
	switch {
	case !g.Can.MoveMemory && g.Can.Recreate:
		return "its hypervisor does not move the memory of a running VM; 'numavisor bind --recreate' makes the VM again"
	case !g.Can.MoveMemory:
		return "its hypervisor does not move the memory of a running VM"
	case len(g.Config.Devices) > 0 ||
		slices.ContainsFunc(specOf(g).Devices, func(d guest.DeviceSpec) bool { return d.Passthrough }):
		return "an assigned device pins it"
	}
	return ""
}
