// Package show makes documents of the fleet's API from inventories and decisions, for the server of a fleet and the
// daemon of one host alike.
package show

import (
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Size says how many nodes, CPUs and how much memory a host has.
func Size(h *fleetapi.Host, t *topology.Topology) {
	h.Nodes, h.CPUs, h.Memory = len(t.Nodes), len(t.CPUs), 0
	for i := range t.Nodes {
		h.Memory = h.Memory.Plus(t.Nodes[i].Memory)
	}
}

// Left is the memory in small pages that no VM holds.
func Left(h *inventory.Host, p policy.Policy) (left topology.Bytes) {
	for _, n := range capacity.Available(h, p, "") {
		left = left.Plus(n.Left)
	}
	return left
}

// Nodes returns the nodes of a host with their free room.
func Nodes(h *inventory.Host, p policy.Policy) []fleetapi.Node {
	out := []fleetapi.Node{}
	for _, n := range capacity.Available(h, p, "") {
		shown := fleetapi.Node{Node: n.Node, CPUs: n.CPUs, Shared: n.Shared, Exclusive: n.Exclusive, VCPUs: n.Load,
			Memory: n.Memory, Promised: n.Promised, Left: n.Left}
		for _, pool := range n.Huge {
			shown.Huge = append(shown.Huge, fleetapi.Pool{Size: pool.Size, Free: pool.Free})
		}
		for _, l := range h.Load {
			if l.Node == n.Node {
				shown.CPU, shown.Wait = &l.CPU, &l.Wait
			}
		}
		out = append(out, shown)
	}
	return out
}

// Alarms adds the alarms of a host to those of others.
func Alarms(to fleetapi.Alarms, host string, all []alarm.Alarm) fleetapi.Alarms {
	counts := map[string]int{}
	for i := range all {
		counts[string(all[i].Quantity)]++
		to.Lasting = append(to.Lasting, fleetapi.AlarmOf(host, &all[i]))
	}
	to.Alarms = append(to.Alarms, Counts(host, counts)...)
	return to
}

// Counts lists how many alarms of each kind a host has.
func Counts(host string, counts map[string]int) (out []fleetapi.Alarm) {
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[kind]; n > 0 {
			out = append(out, fleetapi.Alarm{Host: host, Kind: kind, Count: n})
		}
	}
	return out
}

// Terms returns the prices that make up the cost of a placement.
func Terms(w *place.Why) (terms []fleetapi.Term) {
	for _, term := range w.Terms {
		terms = append(terms, fleetapi.Term{Name: term.Name, Cost: term.Cost, Why: term.Note})
	}
	return terms
}

// Why returns the reasons for the nodes of a VM on the only host that was asked.
func Why(w *place.Why, now time.Time) *fleetapi.Why {
	return &fleetapi.Why{Summary: w.Summary, Text: w.Text(), Decided: now, Cost: w.Cost, Fitted: 1, Terms: Terms(w)}
}

// Adopted fills a record from what a host reports of a VM.
func Adopted(g *inventory.Guest, vm *fleet.VM) error {
	spec := adopt.Spec(*g)
	if g.Managed && g.Spec != nil && g.Placement != nil {
		spec, vm.Placement = *g.Spec, *g.Placement
	}
	vm.Machine.Type = inventory.MachineTypeOf(g.Hypervisor)
	spec.Name = g.Name
	normal, err := spec.Normalize()
	if err != nil {
		return err
	}
	vm.Spec, vm.Run = normal, fleet.Running
	if g.State == "shutoff" {
		vm.Run = fleet.Stopped
	}
	return nil
}
