package agent

import (
	"crypto/sha256"
	"encoding/json"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// reported returns the part of an inventory that a report has: no loads, no threads, and not what guests hand over.
func reported(h inventory.Host) inventory.Host {
	h.Load, h.MoverBytesPerSecond = nil, 0
	h.Guests = slices.Clone(h.Guests)
	for i := range h.Guests {
		s := &h.Guests[i].Seen
		s.Load, s.Threads, s.Ranges, s.Throttled, s.HandedOver, s.Scaled = nil, nil, nil, 0, nil, nil
	}
	return h
}

// digest identifies an inventory without the figures that change all the time: free memory, and
// small changes of VMs' memory. A report is sent when it changes.
func digest(h inventory.Host) [sha256.Size]byte {
	h.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for i := range h.Topology.Nodes {
		h.Topology.Nodes[i].Free = 0
	}
	h.Guests = slices.Clone(h.Guests)
	for i := range h.Guests {
		s := &h.Guests[i].Seen
		rough := topology.MemoryByNode{}
		for node, b := range s.MemoryByNode {
			if b > 0 {
				rough[node] = topology.Bytes(1) << (bits.Len64(uint64(b)) - 1) // changes when it doubles or halves
			}
		}
		s.MemoryByNode = rough
	}
	h.Taken = h.Taken.UTC().Truncate(time.Hour) // once an hour in any case
	text, err := json.Marshal(h)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(text)
}

// mostAlarms bounds the alarms of a message; their numbers are complete.
const mostAlarms = 200

// sameAlarms compares alarms but for the values that change with each sample.
func sameAlarms(a, b []alarm.Alarm) bool {
	return slices.EqualFunc(a, b, func(x, y alarm.Alarm) bool {
		return x.Quantity == y.Quantity && x.Object == y.Object && x.Severity == y.Severity && x.Worst == y.Worst &&
			x.First.Equal(y.First)
	})
}

// loadsOf returns all loads of an inventory.
func loadsOf(h *inventory.Host, alarms []alarm.Alarm) fleet.Loads {
	l := fleet.Loads{Taken: h.Taken.UTC(), MoverBytesPerSecond: h.MoverBytesPerSecond, Alarms: map[string]int{},
		Lasting: append([]alarm.Alarm{}, alarms[:min(len(alarms), mostAlarms)]...)}
	for i := range alarms {
		l.Alarms[string(alarms[i].Quantity)]++
	}
	for i := range h.Topology.Nodes {
		n := fleet.Node{NodeLoad: inventory.NodeLoad{Node: h.Topology.Nodes[i].ID}, Free: h.Topology.Nodes[i].Free}
		for _, load := range h.Load {
			if load.Node == n.Node {
				n.NodeLoad = load
			}
		}
		l.Nodes = append(l.Nodes, n)
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Seen.Load == nil {
			continue
		}
		v := fleet.VMLoad{Name: g.Name, GuestLoad: *g.Seen.Load}
		if len(g.Seen.Threads) > 0 {
			v.LocalShare = drift.LocalShare(*g, &h.Topology)
		}
		l.VMs = append(l.VMs, v)
	}
	slices.SortFunc(l.Nodes, func(a, b fleet.Node) int { return int(a.Node - b.Node) })
	slices.SortFunc(l.VMs, func(a, b fleet.VMLoad) int { return strings.Compare(a.Name, b.Name) })
	return l
}

// changes returns what of the loads differs from those sent before.
func changes(sent, now fleet.Loads) fleet.Loads {
	out := now
	out.Nodes, out.VMs, out.Since = nil, nil, sent.Number
	if sameAlarms(sent.Lasting, now.Lasting) {
		out.Lasting = nil
	}
	for _, n := range now.Nodes {
		i := slices.IndexFunc(sent.Nodes, func(o fleet.Node) bool { return o.Node == n.Node })
		if i < 0 || sent.Nodes[i] != n {
			out.Nodes = append(out.Nodes, n)
		}
	}
	before, still := map[string][]byte{}, map[string]bool{}
	for _, v := range sent.VMs {
		before[v.Name], _ = json.Marshal(v)
	}
	for _, v := range now.VMs {
		still[v.Name] = true
		if text, err := json.Marshal(v); err != nil || string(text) != string(before[v.Name]) {
			out.VMs = append(out.VMs, v)
		}
	}
	for _, v := range sent.VMs {
		if !still[v.Name] {
			out.Gone = append(out.Gone, v.Name)
		}
	}
	return out
}
