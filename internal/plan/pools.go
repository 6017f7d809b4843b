package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// CPUPools are a host's CPU pools, in the hypervisor's order (new guests are in the first one), and the
// pool of each guest.
type CPUPools struct {
	Pools  []CPUPool         `json:"pools"`
	Guests map[string]string `json:"guests,omitempty"`
}

// CPUPool is a part of the host's CPUs with a scheduler of its own.
type CPUPool struct {
	Name      string          `json:"name"`
	Scheduler string          `json:"scheduler"`
	CPUs      topology.CPUSet `json:"cpus,omitzero"`
}

// Find returns the position of the pool of a name; -1: there is none.
func (p *CPUPools) Find(name string) int {
	return slices.IndexFunc(p.Pools, func(one CPUPool) bool { return one.Name == name })
}

// Clone returns a copy that shares nothing with p.
func (p *CPUPools) Clone() CPUPools {
	return CPUPools{Pools: slices.Clone(p.Pools), Guests: maps.Clone(p.Guests)}
}

// Equal reports whether both have the same pools with the same CPUs. The order of all but the first, and the
// guests, do not count.
func (p *CPUPools) Equal(o *CPUPools) bool {
	if len(p.Pools) != len(o.Pools) || len(p.Pools) > 0 && p.Pools[0].Name != o.Pools[0].Name {
		return false
	}
	for _, one := range p.Pools {
		i := o.Find(one.Name)
		if i < 0 || o.Pools[i].Scheduler != one.Scheduler || !o.Pools[i].CPUs.Equal(one.CPUs) {
			return false
		}
	}
	return true
}

// CPUPoolChange is a change of the pools: both layouts, so that it can be undone.
type CPUPoolChange struct {
	From CPUPools `json:"from"`
	To   CPUPools `json:"to"`
}

// PoolStepKind is the kind of a step that changes CPU pools.
type PoolStepKind string

// The kinds of steps that change CPU pools.
const (
	RenamePool PoolStepKind = "rename-pool"
	MoveToPool PoolStepKind = "move-to-pool"
	DeletePool PoolStepKind = "delete-pool" // its CPUs are free then
	FreeCPUs   PoolStepKind = "free-cpus"   // take CPUs from a pool
	CreatePool PoolStepKind = "create-pool" // of free CPUs
	AddCPUs    PoolStepKind = "add-cpus"    // add free CPUs to a pool
)

// PoolStep is one change that the hypervisor makes at once.
type PoolStep struct {
	Kind      PoolStepKind    `json:"kind"`
	Pool      string          `json:"pool"`
	To        string          `json:"to,omitempty"`        // new name, of RenamePool
	Guest     string          `json:"vm,omitempty"`        // of MoveToPool
	Scheduler string          `json:"scheduler,omitempty"` // of CreatePool
	CPUs      topology.CPUSet `json:"cpus,omitzero"`       // of FreeCPUs, CreatePool and AddCPUs
}

// String returns the step in words.
func (s PoolStep) String() string {
	switch s.Kind {
	case RenamePool:
		return fmt.Sprintf("rename pool %q to %q", s.Pool, s.To)
	case MoveToPool:
		return fmt.Sprintf("move VM %s to pool %q", s.Guest, s.Pool)
	case DeletePool:
		return fmt.Sprintf("delete pool %q", s.Pool)
	case FreeCPUs:
		return fmt.Sprintf("take CPUs %s from pool %q", s.CPUs, s.Pool)
	case CreatePool:
		return fmt.Sprintf("create pool %q with CPUs %s and scheduler %s", s.Pool, s.CPUs, s.Scheduler)
	case AddCPUs:
		return fmt.Sprintf("add CPUs %s to pool %q", s.CPUs, s.Pool)
	}
	return string(s.Kind)
}
