package inventory

import "github.com/numavisor/numavisor/internal/topology"

// HintFaults are the figures of kernel balancing about a process.
type HintFaults struct {
	// Passes is how many times the kernel has taken the mapping of all memory of the process away.
	Passes uint64
	// Memory is what its threads touched after that, by the node of the page after the fault. The kernel halves it with
	// each pass. Memory that was brought counts on the node of the thread, memory that the kernel could not move where
	// it is.
	Memory topology.MemoryByNode
}
