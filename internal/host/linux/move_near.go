package linux

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// near calls a function on the CPUs of the nodes that the chunk's pages move
// between, as far as the thread may run there; without such CPUs, it calls the
// function on any.
func (c *chunk) near(do func() error) error {
	if c.mover.CPUs == nil {
		return do()
	}
	runtime.LockOSThread()
	allowed, err := Affinity(0)
	if err != nil {
		runtime.UnlockOSThread()
		return do()
	}
	wanted := c.mover.CPUs(c.between()).Intersect(allowed)
	if wanted.IsEmpty() || unix.SchedSetaffinityDynamic(0, cpuMask(wanted)) != nil {
		runtime.UnlockOSThread()
		return do()
	}
	defer func() {
		// A thread that cannot get its CPUs back stays locked to its goroutine, and
		// ends with it.
		if unix.SchedSetaffinityDynamic(0, cpuMask(allowed)) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return do()
}

// between returns the targets, and the nodes of the pages that are to move there.
func (c *chunk) between() topology.NodeSet {
	nodes := c.targets
	last := stay
	for _, i := range c.left() {
		if at := c.statuses[i]; at != last {
			nodes, last = nodes.With(topology.NodeID(at)), at
		}
	}
	return nodes
}
