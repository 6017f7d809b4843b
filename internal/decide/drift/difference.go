package drift

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Difference is one way in which a guest differs from its placement.
type Difference struct {
	Kind     string `json:"kind"`
	Object   string `json:"object"`   // "vCPU 0", "cell 1", "cells", "emulator threads", "guest"
	Intended string `json:"intended"` // Linux list of CPUs or nodes, or a memory policy
	Seen     string `json:"seen"`
}

// Kinds of differences.
const (
	VCPUAffinity     = "vcpu-affinity"
	EmulatorAffinity = "emulator-affinity"
	IOThreadAffinity = "io-thread-affinity"
	Memory           = "memory"        // pages outside their nodes
	MemoryPolicy     = "memory-policy" // pages touched from now on may be allocated outside the nodes
	MemoryLimit      = "memory-limit"  // cpuset.mems of the guest's threads
	CPUsOffline      = "cpus-offline"  // all CPUs of a thread are offline, so the kernel lets it run anywhere
)

// Objects of a difference of a guest as a whole, and of all its cells together.
const (
	wholeGuest = "guest"
	cells      = "cells"
)

// String gives the observed and the intended value in one clause.
func (d Difference) String() string {
	object := d.Object
	if object == wholeGuest {
		object = "the VM"
	}
	switch d.Kind {
	case Memory:
		if d.Object == cells {
			return fmt.Sprintf("the cells have their memory on %s, not on %s", d.Seen, d.Intended)
		}
		return fmt.Sprintf("%s has memory on nodes other than %s: %s", object, d.Intended, d.Seen)
	case MemoryPolicy:
		return fmt.Sprintf("%s has memory policy %s, not %s", object, d.Seen, d.Intended)
	case MemoryLimit:
		return fmt.Sprintf("%s may take memory from nodes %s, not %s", object, orNone(d.Seen), orNone(d.Intended))
	}
	if d.Kind == CPUsOffline {
		return fmt.Sprintf("%s may run on CPUs %s, as its CPUs %s are all offline", object, orNone(d.Seen),
			d.Intended)
	}
	return fmt.Sprintf("%s may run on CPUs %s, not %s", object, orNone(d.Seen), orNone(d.Intended))
}

func orNone(list string) string {
	if list == "" {
		return "none"
	}
	return list
}

// Of returns how a guest differs from its placement, CPUs first. The result is
// empty for a guest without a placement or without threads (not running).
func Of(g inventory.Guest, t *topology.Topology) []Difference {
	if g.Placement == nil || t == nil {
		return nil
	}
	c := comparison{guest: &g, placed: g.Placement, topology: t}
	c.vcpus()
	c.helpers()
	c.limit()
	c.memory()
	c.policies()
	return c.found
}

type comparison struct {
	guest    *inventory.Guest
	placed   placement
	topology *topology.Topology
	found    []Difference
}

func (c *comparison) add(kind, object, intended, seen string) {
	c.found = append(c.found, Difference{Kind: kind, Object: object, Intended: intended, Seen: seen})
}
