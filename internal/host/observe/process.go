package observe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Process observes one process closely that is not a VM of a hypervisor. Its
// name is "pid-PID".
func Process(ctx context.Context, k Kernel, pid int) (inventory.Guest, error) {
	g := inventory.Guest{
		Name:       fmt.Sprintf("pid-%d", pid),
		Hypervisor: guest.NoHypervisor,
		Can:        inventory.CapabilitiesOf(guest.NoHypervisor),
		State:      "running",
		PID:        pid,
	}
	var err error
	if g.Seen.Threads, g.Seen.ThreadSource, err = k.Threads(pid); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return g, fmt.Errorf(
				"process %d does not exist: it has ended, or the number is wrong ('ps -e' lists all): %w", pid, err)
		}
		return g, fmt.Errorf("process %d: its threads: %w", pid, err)
	}
	for _, t := range g.Seen.Threads {
		if t.VCPU != nil {
			g.Config.VCPUs++
		}
	}
	if g.Seen.Ranges, err = k.Ranges(ctx, pid); err != nil {
		return g, fmt.Errorf("process %d: its memory: %w", pid, err)
	}
	if g.Seen.NodeLimits, err = k.NodeLimits(pid); err != nil {
		return g, fmt.Errorf("process %d: the cgroups that restrict its nodes: %w", pid, err)
	}
	g.Seen.MemoryByNode, g.Seen.MemorySource = sum(g.Seen.Ranges), "numa_maps"
	for _, bytes := range g.Seen.MemoryByNode {
		g.Config.Memory += bytes
	}
	return g, nil
}
