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
// topology of all hosts of one model. Records are never changed in place, so they may share parts.
type parts struct {
	vms        pool[fleet.VM]          // without what vmRecord has
	statuses   pool[fleet.VMStatus]    // without what statusRecord has
	guests     pool[inventory.Guest]   // without what guestRecord has
	specs      pool[guest.Spec]        // without names
	placements pool[guest.Placement]   // without names
	disks      pool[fleet.Disk]        // without paths
	topologies pool[topology.Topology] // without what is free, and measured on one host
	kernels    pool[inventory.Kernel]
	words      map[string]string
}

// pool has one copy of each value, found by the hash of its JSON form: that is all that a record has of it.
type pool[T any] map[[sha256.Size]byte]*T

// mostParts bounds a pool. One that is full begins again: values that are in use stay with their records.
const mostParts = 1 << 14

// one returns the pool's copy of a value, which it takes if it has none.
func (p *pool[T]) one(v T) *T {
	text, err := json.Marshal(v)
	if err != nil {
		return &v
	}
	key := sha256.Sum256(text)
	if old, ok := (*p)[key]; ok {
		return old
	}
	if *p == nil || len(*p) >= mostParts {
		*p = pool[T]{}
	}
	(*p)[key] = &v
	return &v
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

// topology shares all of a topology but what is free on its nodes and what was measured.
func (p *parts) topology(t topology.Topology) topology.Topology {
	own, measured := t.Nodes, t.Measured
	t.Nodes, t.Measured = slices.Clone(own), nil
	for i := range t.Nodes {
		t.Nodes[i].Free, t.Nodes[i].Reclaimable, t.Nodes[i].HugePages = 0, 0, nil
	}
	t.CPUs = slices.Clone(t.CPUs)
	t = *p.topologies.one(t)
	t.Nodes, t.Measured = slices.Clone(t.Nodes), measured
	for i := range t.Nodes {
		t.Nodes[i].Free, t.Nodes[i].Reclaimable = own[i].Free, own[i].Reclaimable
		t.Nodes[i].HugePages = slices.Clip(own[i].HugePages)
	}
	return t
}
