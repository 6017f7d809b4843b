package server

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// hostLoad is the load of a host, put together from the messages of its daemon.
type hostLoad struct {
	number uint64 // of the last message
	change uint64 // counts the messages of all hosts of this server; 0: another server relayed it
	taken  time.Time
	heard  time.Time // when the server got the message
	nodes  map[topology.NodeID]fleet.Node
	vms    map[string]fleet.VMLoad
	alarms map[string]int
	// lasting are the alarms themselves; nil: an older daemon does not send them.
	lasting []alarm.Alarm
	mover   topology.Bytes
}

// merged returns the loads after a message; ok is false if the message is based on another one.
func (l *hostLoad) merged(m *fleet.Loads) (next *hostLoad, ok bool) {
	next = &hostLoad{number: m.Number, taken: m.Taken, nodes: map[topology.NodeID]fleet.Node{},
		vms: map[string]fleet.VMLoad{}, alarms: maps.Clone(m.Alarms), mover: m.MoverBytesPerSecond}
	if m.Since != 0 {
		if l == nil || l.number != m.Since {
			return nil, false
		}
		next.nodes, next.vms, next.lasting = maps.Clone(l.nodes), maps.Clone(l.vms), l.lasting
	}
	if m.Lasting != nil {
		next.lasting = m.Lasting
	}
	for _, n := range m.Nodes {
		next.nodes[n.Node] = n
	}
	for i := range m.VMs {
		next.vms[m.VMs[i].Name] = m.VMs[i]
	}
	for _, name := range m.Gone {
		delete(next.vms, name)
	}
	return next, true
}

// complete returns the loads as one message.
func (l *hostLoad) complete() fleet.Loads {
	out := fleet.Loads{Number: l.number, Taken: l.taken, Alarms: l.alarms, Lasting: l.lasting,
		MoverBytesPerSecond: l.mover}
	for _, node := range slices.Sorted(maps.Keys(l.nodes)) {
		out.Nodes = append(out.Nodes, l.nodes[node])
	}
	for _, name := range slices.Sorted(maps.Keys(l.vms)) {
		out.VMs = append(out.VMs, l.vms[name])
	}
	return out
}

// inventoryOf returns a host as decisions should see it: as it was reported, with the loads of the
// last seconds, and with each VM of the fleet that is claimed there. Where the host reports another
// placement of such a VM, both are reserved. It changes the inventory, but not what the inventory shares with others.
func inventoryOf(out *inventory.Host, claimed map[string]claimedVM, l *hostLoad) *inventory.Host {
	out.Claims = slices.Clone(out.Claims)
	seen := map[string]bool{}
	for i := range out.Guests {
		g := &out.Guests[i]
		if c, ok := claimed[g.Name]; ok {
			seen[g.Name] = true
			if g.Placement != nil && !samePlacement(g.Placement, c.placement) {
				out.Claims = append(out.Claims, inventory.Claim{Name: g.Name, Placement: *g.Placement})
			}
			g.Managed, g.Spec, g.Placement = true, c.spec, c.placement
		}
		if l != nil {
			if load, ok := l.vms[g.Name]; ok {
				g.Seen.Load = &load.GuestLoad
			}
		}
	}
	for name, c := range claimed {
		if !seen[name] {
			out.Guests = append(out.Guests, inventory.Guest{Name: name, State: "running", Managed: true,
				Spec: c.spec, Placement: c.placement, Config: inventory.Config{
					VCPUs: c.spec.VCPUs, Memory: c.spec.Memory, PageSize: c.spec.PageSize}})
		}
	}
	slices.SortFunc(out.Guests, func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) })
	if l != nil {
		addLoads(out, l)
	}
	return out
}

// addLoads gives an inventory the loads and the free memory of its nodes. Loads of nodes that it
// does not have are ignored.
func addLoads(h *inventory.Host, l *hostLoad) {
	h.Load, h.MoverBytesPerSecond = nil, l.mover
	h.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for i := range h.Topology.Nodes {
		n := &h.Topology.Nodes[i]
		if load, ok := l.nodes[n.ID]; ok {
			h.Load = append(h.Load, load.NodeLoad)
			n.Free = min(load.Free, n.Memory)
		}
	}
}

// claimedVM is a VM of the fleet with what is reserved for it on a host.
type claimedVM struct {
	spec      *guest.Spec
	placement *guest.Placement
}

// samePlacement reports whether two placements reserve the same room.
func samePlacement(a, b *guest.Placement) bool {
	return slices.EqualFunc(a.Reservations, b.Reservations, func(x, y guest.Reservation) bool {
		return x.Node == y.Node && x.Memory == y.Memory && x.PageSize == y.PageSize && x.VCPUs == y.VCPUs &&
			x.Exclusive.Equal(y.Exclusive)
	})
}
