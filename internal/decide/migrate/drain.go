package migrate

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Drained is the plan that empties a host.
type Drained struct {
	// Migrations in the order in which they should begin. Every order is legal.
	Migrations []Migration `json:"migrations"`
	// Blocked are the VMs that stay, and why.
	Blocked []Blocked `json:"blocked,omitempty"`
	// Proven says that no assignment of VMs to hosts lets all leave if some stay for lack of room.
	Proven bool `json:"proven"`
}

// Drain returns the migrations that empty a host, largest VMs first. The caller cordons the host.
// The error says that the fleet does not have it.
func Drain(r Request, host string) (Drained, error) {
	h, known := r.Fleet.Host(host)
	if !known {
		return Drained{}, fmt.Errorf("host %s is not in the fleet", host)
	}
	p := newPlanner(r)
	out := Drained{Migrations: []Migration{}}
	var all []*wanted
	guests := map[string]*inventory.Guest{}
	for i := range h.Inventory.Guests {
		g := h.Inventory.Guests[i]
		if g.State == "shutoff" && g.Placement == nil {
			continue
		}
		if arrives(p.Running, g.Name, host) {
			continue // it is a reservation for a migration, which the caller lets end first
		}
		if b := p.immovable(host, &g); b.Kind != "" {
			out.Blocked = append(out.Blocked, b)
			continue
		}
		guests[g.Name] = &g
		all = append(all, &wanted{vm: g.Name, request: schedule.Request{Spec: specOf(&g), Without: host,
			Machine: machineOf(&g, r.VMs[g.Name]), Affinity: r.VMs[g.Name].Affinity, WhatIf: true}})
	}
	out.Proven = assign(r.Fleet, all)
	for _, w := range all {
		if w.at == nil {
			out.Blocked = append(out.Blocked, Blocked{VM: w.vm, Host: host, Kind: NoHost, Why: w.why})
			continue
		}
		g := guests[w.vm]
		m := Migration{VM: w.vm, From: host, To: w.at.Host, Spec: w.at.Spec, Placement: w.at.Placement,
			Price: p.price(g, demandOf(g)), Target: w.at.Why, Why: fmt.Sprintf("host %s is drained", host)}
		if m.Waits = p.limitsReached(host) || p.limitsReached(w.at.Host); !m.Waits {
			p.busy[host]++
			p.busy[w.at.Host]++
			p.begun++
		}
		out.Migrations = append(out.Migrations, m)
	}
	return out, nil
}

func arrives(running []Running, vm, host string) bool {
	for _, m := range running {
		if m.VM == vm && m.To == host {
			return true
		}
	}
	return false
}

// demandOf returns how many CPUs a VM demands: measured, or its number of vCPUs.
func demandOf(g *inventory.Guest) float64 {
	if l := g.Seen.Load; l != nil && l.IsValid() {
		return l.Demand()
	}
	return float64(g.Config.VCPUs)
}

// HostHeadroom says whether the VMs of a host would fit on the others if it failed.
type HostHeadroom struct {
	Host string `json:"host"`
	VMs  int    `json:"vms"`
	// Missing are VMs that would not fit; empty: all fit.
	Missing []Missing `json:"missing,omitempty"`
	// Proven says that there is no assignment that lets all fit if some are missing.
	Proven bool `json:"proven"`
}

// Missing is a VM that would not fit elsewhere.
type Missing struct {
	VM  string `json:"vm"`
	Why string `json:"why"`
}

// Headroom says for each host whether all its VMs would fit on the others, with the CPUs and
// nodes that they ask for. VMs with devices of the host do not.
func Headroom(f *schedule.Fleet, vms map[string]VM) []HostHeadroom {
	var out []HostHeadroom
	for _, name := range f.Names() {
		out = append(out, HeadroomOf(f, vms, name))
	}
	return out
}

// HeadroomOf is Headroom for one host of the fleet.
func HeadroomOf(f *schedule.Fleet, vms map[string]VM, host string) HostHeadroom {
	one := HostHeadroom{Host: host, Proven: true}
	h, known := f.Host(host)
	if !known {
		return one
	}
	var all []*wanted
	for i := range h.Inventory.Guests {
		g := &h.Inventory.Guests[i]
		if g.State == "shutoff" && g.Placement == nil {
			continue
		}
		one.VMs++
		if len(g.Config.Devices) > 0 {
			one.Missing = append(one.Missing, Missing{g.Name, "a host device is assigned to it"})
			continue
		}
		spec := adopt.Spec(*g)
		if g.Spec != nil {
			spec = *g.Spec
		}
		spec.Name = g.Name
		all = append(all, &wanted{vm: g.Name, request: schedule.Request{Spec: spec, Without: host,
			Machine: machineOf(g, vms[g.Name]), Affinity: vms[g.Name].Affinity, WhatIf: true}})
	}
	proven := assign(f, all)
	for _, w := range all {
		if w.at == nil {
			one.Missing = append(one.Missing, Missing{w.vm, w.why})
			one.Proven = proven
		}
	}
	return one
}
