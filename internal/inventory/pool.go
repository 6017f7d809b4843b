package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Pool is a part of the host's CPUs with a scheduler of its own. Guests in it run on no other CPUs.
type Pool struct {
	Name      string          `json:"name"`
	Scheduler string          `json:"scheduler"`
	CPUs      topology.CPUSet `json:"cpus,omitzero"`
}

// ControlDomain is what dom0 takes of the host, and how Xen's tools make room for guests.
type ControlDomain struct {
	VCPUs  int             `json:"vcpus"`
	CPUs   topology.CPUSet `json:"cpus,omitzero"` // on which its vCPUs may run
	Memory topology.Bytes  `json:"memory_bytes"`
	// Balloons: xl takes memory from it for a new guest.
	Balloons bool `json:"balloons,omitempty"`
	// ClaimsOff: xl reserves no memory before it builds a guest.
	ClaimsOff bool `json:"claims_off,omitempty"`
}

// SoftAffinity reports whether the pool's scheduler obeys soft affinity. rtds and arinc653 accept and ignore it.
func (p *Pool) SoftAffinity() bool {
	switch p.Scheduler {
	case "credit", "credit2", "null":
		return true
	}
	return false
}

// PoolError means that a spec names a CPU pool that the host does not have, or that has no CPUs
// within the other limits.
type PoolError struct {
	Pool string
	Why  string
}

func (e *PoolError) Error() string { return fmt.Sprintf("CPU pool %q: %s", e.Pool, e.Why) }

// WithinPool returns limits with the CPUs of their pool: a guest runs on no others. A host with
// pools has new guests in its first pool unless the limits name another. On a host without pools
// the limits are returned as they are.
func (h *Host) WithinPool(l guest.Limits) (guest.Limits, error) {
	switch {
	case len(h.Pools) == 0 && l.Pool == "":
		return l, nil
	case len(h.Pools) == 0:
		return l, &PoolError{l.Pool, "the host has no CPU pools"}
	}
	pool := &h.Pools[0]
	if l.Pool != "" {
		i := slices.IndexFunc(h.Pools, func(p Pool) bool { return p.Name == l.Pool })
		if i < 0 {
			names := make([]string, len(h.Pools))
			for i := range h.Pools {
				names[i] = h.Pools[i].Name
			}
			return l, &PoolError{l.Pool, "the host has the pools " + strings.Join(names, ", ")}
		}
		pool = &h.Pools[i]
	}
	if pool.CPUs.Equal(h.Topology.CPUSet()) {
		return l, nil
	}
	cpus := pool.CPUs
	if !l.CPUs.IsEmpty() {
		cpus = cpus.Intersect(l.CPUs)
	}
	if cpus.IsEmpty() {
		return l, &PoolError{pool.Name, fmt.Sprintf("it has CPUs %q, of which the limits allow none", pool.CPUs)}
	}
	l.CPUs = cpus
	return l, nil
}
