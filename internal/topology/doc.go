// Package topology describes the hardware of a host as plain values: NUMA nodes,
// CPUs, caches, distances, huge page pools and devices.
//
// Invariants that every reader ensures and Topology.Validate checks:
//
//   - ids are those of the kernel: sparse, unordered, never a position in a table;
//   - every online CPU belongs to exactly one node; a node may have no CPU
//     (CXL, HBM, GPU memory) or no memory;
//   - distances need not be symmetric, and may be absent for a pair.
package topology
