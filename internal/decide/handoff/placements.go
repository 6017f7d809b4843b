package handoff

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// RulesOf returns the rules that follow from a policy.
func RulesOf(p policy.Policy) Rules {
	return Rules{CPUs: p.Handoff.CPUs, WholeCores: p.Handoff.WholeCores}
}

// GuestOf returns a guest as its placement describes it; ok is false if it does not
// hand CPUs over.
func GuestOf(name string, p *guest.Placement) (g Guest, ok bool) {
	if p == nil || p.Handoff == nil || len(p.VCPUs) == 0 {
		return Guest{}, false
	}
	h := p.Handoff
	return Guest{Name: name, Home: h.Home, Weight: h.Weight, Min: h.Min, Mirror: p.Mirror()}, true
}

// Placed returns the guests of a host that hand CPUs over, except the one named
// ignore, and the grants with which they start. Claims count as guests.
func Placed(h *inventory.Host, ignore string) (guests []Guest, first []Grant) {
	seen := map[string]bool{ignore: ignore != ""}
	add := func(name string, p *guest.Placement) {
		g, ok := GuestOf(name, p)
		if !ok || seen[name] {
			return
		}
		seen[name] = true
		guests = append(guests, g)
		for cpu := range p.Handoff.First.All() {
			first = append(first, Grant{CPU: cpu, Guest: name})
		}
	}
	for i := range h.Guests {
		add(h.Guests[i].Name, h.Guests[i].Placement)
	}
	for i := range h.Claims {
		add(h.Claims[i].Name, &h.Claims[i].Placement)
	}
	return guests, first
}
