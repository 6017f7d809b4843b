// Package peers measures how much work memory-bound KVM guests do under
// Numavisor, under other ways to manage NUMA on one host, and under the hand-pinned baseline,
// in the lab: a host of four nodes on which distance is felt.
//
// Each run has a lab of its own. Its guests sweep their memory, every vCPU its
// own part, and report their progress by their own clock; the lab's access
// counter reports how far away the memory was. The counter sees the whole host
// from the moment the guests begin: their accesses, and those of the host's
// kernel, of the manager, and of the copying when memory moves.
//
// Managers that repair, and none at all, begin from the same worst-case start: all
// memory on node 0, vCPUs on the other nodes, as a mass start may leave it. It
// is made by limits that are gone before the guests begin to work, so that they
// constrain no manager.
package peers
