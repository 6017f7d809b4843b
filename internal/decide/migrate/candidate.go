package migrate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// candidate is a migration that is worth making.
type candidate struct {
	Migration
	guest *inventory.Guest
	net   float64 // CPU seconds that it saves within the horizon beyond its price
}

// targets is the number of hosts that are considered for a VM, in the order of package schedule.
const targets = 4

// minSaved is the least that a migration must save, in CPUs, as for moves within a host.
const minSaved = 0.01

// candidate returns the best migration of a VM from a source, or why no migration pays.
func (p *planner) candidate(s *source, g *inventory.Guest) (*candidate, Blocked) {
	if b := p.immovable(s.name, g); b.Kind != "" {
		return nil, b
	}
	past := p.pastOf(g.Name)
	if b := p.cooling(s.name, g.Name, past); b.Kind != "" {
		return nil, b
	}
	blocked := Blocked{VM: g.Name, Host: s.name, Kind: NoHost, Why: "no other host takes it now"}
	not := append([]string{s.name}, past.left...)
	for range targets {
		d, err := p.Fleet.Decide(schedule.Request{Spec: specOf(g), Machine: machineOf(g, p.VMs[g.Name]),
			Affinity: p.VMs[g.Name].Affinity, Not: not, WhatIf: true})
		if err != nil {
			var none *schedule.NoHostError
			if !errors.As(err, &none) || len(not) == 1+len(past.left) {
				blocked.Why = err.Error()
			}
			return nil, blocked
		}
		if p.busy[d.Host] >= p.limits.PerHost {
			blocked.Kind, blocked.Why = AtLimit, fmt.Sprintf("host %s has as many migrations as it may", d.Host)
			not = append(not, d.Host)
			continue
		}
		c, why := p.weigh(s, g, d)
		if c != nil {
			return c, Blocked{}
		}
		blocked.Kind, blocked.Why = NoGain, why
		not = append(not, d.Host)
	}
	return nil, blocked
}

// weigh compares what a source and a target lose before and after a migration.
func (p *planner) weigh(s *source, g *inventory.Guest, d *schedule.Decision) (*candidate, string) {
	from, to := p.view(s.name), p.view(d.Host)
	before, costs := from.Lost().Plus(to.Lost()), from.Costs()
	demand := from.Demand(g.Name)
	source, target := from.Clone(), to.Clone()
	source.Leave(g.Name)
	target.Arrive(*g, d.Spec, d.Placement)
	after := source.Lost().Plus(target.Lost())
	if use := target.Use(d.Placement.Nodes); use > p.policy.Balance.MaxNodeCPU {
		return nil, fmt.Sprintf("host %s would use %.0f %% of the CPUs of its nodes", d.Host, 100*use)
	}
	left := source.Costs()
	left[g.Name] = target.Costs()[g.Name]
	relieved, by := "", 0.0
	for _, vm := range sorted(s.degraded) {
		was, degraded := costs[vm]
		if falls := was - left[vm]; degraded && falls > by && left[vm] <= was*(1-p.policy.Balance.MinGain) {
			relieved, by = vm, falls
		}
	}
	saved := before.Saved(after)
	price := p.price(g, demand)
	horizon := time.Duration(p.policy.Balance.Horizon)
	least := p.leastSaved(g.Name, d.Host, demand)
	switch {
	case relieved == "":
		return nil, fmt.Sprintf("host %s would not lower any degraded VM's cost by %.2g %%", d.Host,
			100*p.policy.Balance.MinGain)
	case saved < least:
		return nil, fmt.Sprintf("host %s would save %.2g CPUs, and %.2g are the least that is worth it", d.Host,
			saved, least)
	case saved*horizon.Seconds() <= price.CPUSeconds:
		return nil, fmt.Sprintf("the migration takes %.0f CPU seconds, more than it saves within %v",
			price.CPUSeconds, horizon)
	}
	m := Migration{VM: g.Name, From: s.name, To: d.Host, Spec: d.Spec, Placement: d.Placement, Price: price,
		Benefit: benefit(before, after, p.policy.Balance), Relieves: relieved, Target: d.Why,
		Why: fmt.Sprintf("host %s cannot relieve %s itself; on host %s %s saves %.2g CPUs", s.name, relieved, d.Host,
			g.Name, saved)}
	return &candidate{Migration: m, guest: g, net: saved*horizon.Seconds() - price.CPUSeconds}, ""
}

// leastSaved returns how many CPUs a migration must save to be worth making.
func (p *planner) leastSaved(vm, to string, demand float64) float64 {
	past := p.pastOf(vm)
	evidence := past.recent
	if slices.Contains(past.everLeft, to) {
		evidence++
	}
	return max(minSaved, p.policy.Balance.MinGain*demand*math.Exp2(float64(evidence)))
}

// longest bounds the estimated time of a copy, so that it fits into a time.Duration.
const longest = 1 << 62

// price returns what the migration of a VM costs: each host copies on one CPU, and the VM loses
// as much as by a copy within a host, and its downtime.
func (p *planner) price(g *inventory.Guest, demand float64) Price {
	out := Price{BytesPerSecond: p.limits.BytesPerSecond, Downtime: p.limits.Downtime}
	for _, b := range g.Seen.MemoryByNode {
		out.Bytes += b
	}
	if out.Bytes == 0 {
		out.Bytes = memoryOf(g)
	}
	seconds := float64(out.Bytes) / float64(out.BytesPerSecond)
	out.Took = time.Duration(min(longest, seconds*float64(time.Second)))
	out.CPUSeconds = seconds + cost.CopyingCPU(seconds, demand) + cost.MovingSeconds + demand*out.Downtime.Seconds()
	return out
}

func memoryOf(g *inventory.Guest) topology.Bytes {
	if g.Spec != nil {
		return g.Spec.Memory
	}
	return g.Config.Memory
}

func sorted(set map[string]bool) []string {
	var out []string
	for name := range set {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
