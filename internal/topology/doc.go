// Package topology holds the words for what a host is: its NUMA nodes, CPUs,
// caches, distances, huge page pools and devices, as plain values.
//
// Invariants that every reader keeps and Topology.Validate checks:
//
//   - ids are whatever the kernel says: sparse, unordered, never a position in a table;
//   - every online CPU belongs to exactly one node; a node may have no CPU
//     (CXL, HBM, GPU memory) or no memory;
//   - distances need not be symmetric, and may be absent for a pair.
package topology
