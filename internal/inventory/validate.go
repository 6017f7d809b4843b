package inventory

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// maxVCPUs is more than any hypervisor supports: QEMU supports up to 4096.
	maxVCPUs = 16384
	// maxMemory is more than any host has, and leaves room to add.
	maxMemory = 1024 * topology.TiB
	// maxPage is the largest huge page of any architecture (arm64, POWER).
	maxPage = 16 * topology.GiB
	// maxCPUs of a load, for the same reason.
	maxCPUs = 1e6
)

// Validate returns an error for each guest and node that makes a decision
// impossible: a guest without a name or with a duplicate one, and figures that no
// host can have. A document may come from any source. The topology has a separate
// Validate, which also holds for a live host: there figures of memory may
// change from one line to the next.
func (h *Host) Validate() error {
	var errs []error
	for i := range h.Topology.Nodes {
		if err := validNode(&h.Topology.Nodes[i]); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w", h.Topology.Nodes[i].ID, err))
		}
	}
	for _, c := range h.Claims {
		if err := validReservations(c.Placement.Reservations); err != nil {
			errs = append(errs, fmt.Errorf("claim %s: %w", c.Name, err))
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
			errs = append(errs, fmt.Errorf("VM %s: occurs twice", g.Name))
		}
		seen[g.Name] = true
		if err := g.validate(); err != nil {
			errs = append(errs, fmt.Errorf("VM %s: %w", g.Name, err))
		}
	}
	return errors.Join(errs...)
}

// validNode refuses amounts that wrap around when they are added or subtracted:
// a full node would then count as an empty one.
func validNode(n *topology.Node) error {
	switch {
	case n.Memory > maxMemory:
		return fmt.Errorf("memory_bytes %d: allowed are up to %v", n.Memory, maxMemory)
	case n.Free > n.Memory:
		return fmt.Errorf("free_bytes %d: allowed are up to its memory_bytes %d", n.Free, n.Memory)
	case n.Reclaimable > maxMemory:
		return fmt.Errorf("reclaimable_bytes %d: allowed are up to %v", n.Reclaimable, maxMemory)
	}
	for i, p := range n.HugePages {
		if p.Size == 0 || p.Size > maxPage {
			return fmt.Errorf("huge_pages[%d].size_bytes %d: allowed are 1 to %v", i, p.Size, maxPage)
		}
		if p.Total > uint64(maxMemory/p.Size) {
			return fmt.Errorf("huge_pages[%d].total %d: allowed are pages for up to %v", i, p.Total, maxMemory)
		}
	}
	return nil
}

func validReservations(all []guest.Reservation) error {
	for i, r := range all {
		if r.Memory > maxMemory {
			return fmt.Errorf("placement.reservations[%d].memory_bytes %d: allowed are up to "+
				"%v", i, r.Memory, maxMemory)
		}
		if r.PageSize > maxPage {
			return fmt.Errorf("placement.reservations[%d].page_size %d: allowed are up to %v", i, r.PageSize, maxPage)
		}
	}
	return nil
}

func (g *Guest) validate() error {
	if n := g.Config.VCPUs; n < 0 || n > maxVCPUs {
		return fmt.Errorf("config.vcpus %d: allowed are 0 to %d", n, maxVCPUs)
	}
	if m := g.Config.Memory; m > maxMemory {
		return fmt.Errorf("config.memory_bytes %d: allowed are up to %v", m, maxMemory)
	}
	if size := g.Config.PageSize; size > maxPage {
		return fmt.Errorf("config.page_size %d: allowed are up to %v", size, maxPage)
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
