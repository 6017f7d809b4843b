package server

import (
	"crypto/sha256"
	"encoding/json"
	"slices"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// parts has one copy of what many records have in common: the placement of all VMs of one shape on one node, the
// topology of all hosts of one model. Without it 10,000 hosts and 100,000 VMs take twice the memory. Records are
// never changed in place, so they may share parts.
type parts struct {
	specs      pool[guest.Spec]      // without names
	placements pool[guest.Placement] // without names
	machines   pool[fleet.Machine]   // without disks
	labels     pool[map[string]string]
	topologies pool[topology.Topology] // without what is free, and measured on one host
	configs    pool[inventory.Config]
	words      map[string]string
}

// pool has one copy of each value, found by the hash of its JSON form: that is all that a record has of it.
type pool[T any] map[[sha256.Size]byte]T

// mostParts bounds a pool. One that is full begins again: values that are in use stay with their records.
const mostParts = 1 << 14

// one returns the pool's copy of a value, which it takes if it has none.
func (p *pool[T]) one(v T) T {
	text, err := json.Marshal(v)
	if err != nil {
		return v
	}
	key := sha256.Sum256(text)
	if old, ok := (*p)[key]; ok {
		return old
	}
	if *p == nil || len(*p) >= mostParts {
		*p = pool[T]{}
	}
	(*p)[key] = v
	return v
}

// word returns one copy of a text that many records have.
func (p *parts) word(text *string) {
	if old, ok := p.words[*text]; ok {
		*text = old
		return
	}
	if p.words == nil || len(p.words) >= mostParts {
		p.words = map[string]string{}
	}
	p.words[*text] = *text
}

func (p *parts) spec(s *guest.Spec) {
	name := s.Name
	s.Name = ""
	*s = p.specs.one(*s)
	s.Name = name
}

func (p *parts) placement(of *guest.Placement) {
	name := of.Guest
	of.Guest = ""
	*of = p.placements.one(*of)
	of.Guest = name
}

// ofVM shares the parts of a VM's record that is new.
func (p *parts) ofVM(v *fleet.VM) {
	p.spec(&v.Spec)
	p.placement(&v.Placement)
	v.Spec.Name, v.Placement.Guest = shared(v.Spec.Name, v.Name), shared(v.Placement.Guest, v.Name)
	disks := slices.Clip(v.Machine.Disks)
	v.Machine.Disks = nil
	v.Machine = p.machines.one(v.Machine)
	v.Machine.Disks = disks
	if v.Labels != nil {
		v.Labels = p.labels.one(v.Labels)
	}
	p.word(&v.Project)
	p.word(&v.By)
	p.word(&v.Host)
}

// shared returns one of two equal texts, so that the other one's memory is free; else the first.
func shared(text, same string) string {
	if text == same {
		return same
	}
	return text
}

// ofStatus shares the parts of a status that is new.
func (p *parts) ofStatus(s *fleet.VMStatus) {
	p.placement(&s.Placement)
	s.Placement.Guest = shared(s.Placement.Guest, s.Name)
	p.word(&s.Host)
}

// ofReport shares the parts of a report that is new; vms are the records of VMs.
func (p *parts) ofReport(r *fleet.Report, vms map[string]*record[fleet.VM]) {
	h := &r.Inventory
	h.Topology = p.topology(h.Topology)
	h.Guests = slices.Clone(h.Guests) // decoding leaves room for more
	for i := range h.Guests {
		g := &h.Guests[i]
		g.Config = p.configs.one(g.Config)
		p.word(&g.State)
		p.word((*string)(&g.Hypervisor))
		p.word(&g.Seen.MemorySource)
		p.word(&g.Seen.ThreadSource)
		var of *fleet.VM
		if at := vms[g.Name]; at != nil {
			of = &at.value
			g.Name = of.Name
		}
		if g.Spec != nil {
			p.spec(g.Spec)
			if of != nil && same(g.Spec, &of.Spec) {
				g.Spec = &of.Spec
			}
		}
		if g.Placement != nil {
			p.placement(g.Placement)
			if of != nil && same(g.Placement, &of.Placement) {
				g.Placement = &of.Placement
			}
		}
	}
}

// topology shares all of a topology but what is free on its nodes and what was measured.
func (p *parts) topology(t topology.Topology) topology.Topology {
	own, measured := t.Nodes, t.Measured
	t.Nodes, t.Measured = slices.Clone(own), nil
	for i := range t.Nodes {
		t.Nodes[i].Free, t.Nodes[i].Reclaimable, t.Nodes[i].HugePages = 0, 0, nil
	}
	t.CPUs = slices.Clone(t.CPUs)
	t = p.topologies.one(t)
	t.Nodes, t.Measured = slices.Clone(t.Nodes), measured
	for i := range t.Nodes {
		t.Nodes[i].Free, t.Nodes[i].Reclaimable = own[i].Free, own[i].Reclaimable
		t.Nodes[i].HugePages = slices.Clip(own[i].HugePages)
	}
	return t
}
