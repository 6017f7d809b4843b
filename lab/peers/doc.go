// Package peers measures how much work memory-bound KVM guests do under
// Numavisor, under other ways to manage NUMA on one host, and under the hand-pinned baseline,
// in the lab: a host on which distance is felt. A Layout describes the host and the VMs: where
// everything is at the beginning, and what changes.
//
// Each run has a lab of its own. Its guests sweep their memory, every vCPU its
// own part, and report their progress by their own clock; the lab's access
// counter reports how far away the memory was. The counter sees the whole host
// from the moment the guests begin: their accesses, and those of the host's
// kernel, of the manager, and of the copying when memory moves.
//
// Managers that repair, and none at all, begin from the same worst-case start:
// memory where the layout says, on node 0 as a mass start may leave it or
// spread, and vCPUs elsewhere. It is made by limits that are gone before the
// guests begin to work, and by moving pages, so that it constrains no manager.
package peers
