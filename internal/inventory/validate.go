package inventory

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// maxVCPUs is more than any hypervisor gives a guest: QEMU ends at 4096.
	maxVCPUs = 16384
	// maxMemory is more than any host has, and leaves room to add.
	maxMemory = 1024 * topology.TiB
	// maxCPUs of a load, for the same reason.
	maxCPUs = 1e6
)

// Validate returns an error for each guest and node that no decision can be made
// on: a guest without a name or with that of another, and figures that no host
// shows. A document may come from anywhere. The topology has a Validate of its
// own, which holds for what is read live as well: there figures of memory may
// change from one line to the next.
func (h *Host) Validate() error {
	var errs []error
	for _, n := range h.Topology.Nodes {
		if n.Free > n.Memory {
			errs = append(errs,
				fmt.Errorf("node %d: free_bytes %d: allowed are up to its memory_bytes %d", n.ID, n.Free, n.Memory))
		}
	}
	seen := map[string]bool{}
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Name == "" {
			errs = append(errs, fmt.Errorf("guests[%d]: has no name", i))
			continue
		}
		if seen[g.Name] {
			errs = append(errs, fmt.Errorf("guest %s: is there twice", g.Name))
		}
		seen[g.Name] = true
		if err := g.validate(); err != nil {
			errs = append(errs, fmt.Errorf("guest %s: %w", g.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (g *Guest) validate() error {
	if n := g.Config.VCPUs; n < 0 || n > maxVCPUs {
		return fmt.Errorf("config.vcpus %d: allowed are 0 to %d", n, maxVCPUs)
	}
	if m := g.Config.Memory; m > maxMemory {
		return fmt.Errorf("config.memory_bytes %d: allowed are up to %v", m, maxMemory)
	}
	for node, m := range g.Seen.MemoryByNode {
		if m > maxMemory {
			return fmt.Errorf("seen.memory_by_node.%d %d: allowed are up to %v", node, m, maxMemory)
		}
	}
	if l := g.Seen.Load; l != nil {
		for name, v := range map[string]float64{"cpu": l.CPU, "wait": l.Wait} {
			if !(v >= 0 && v <= maxCPUs) {
				return fmt.Errorf("seen.load.%s %v: allowed are 0 to %v CPUs", name, v, maxCPUs)
			}
		}
		if r := l.Remote; r != nil && !(r.Share >= 0 && r.Share <= 1) {
			return fmt.Errorf("seen.load.remote.share %v: allowed are 0 to 1", r.Share)
		}
	}
	return nil
}
