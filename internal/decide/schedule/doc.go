// Package schedule chooses the host for a new VM among many hosts, and the NUMA nodes
// on it.
//
// # Two levels
//
// A fleet keeps a summary of the free resources of every node of every host. A
// decision compares the hosts by their summaries. Package place then decides on the
// nodes of the best one exactly, under its own rules and price list (without overcommit, a VM
// of one cell goes to the cheapest node, if place accepts that); if it refuses,
// the next host is asked. A summary is optimistic where it cannot be exact: no host
// that place would accept is left out.
//
// # Objective
//
// Hosts are compared by these figures; the first that differs decides:
//
//  1. vCPUs that would share a core with another vCPU of the VM;
//  2. nodes of the VM with more CPUs in demand than they have;
//  3. the number of nodes that the VM needs there;
//  4. the cost: a weighted sum of scarcity, load, spread over racks and the operator's
//     preference (Weights).
//
// # Scarcity
//
// On which host a VM is put decides which VMs still fit later. A fleet runs out of
// room for its largest shapes first, and best fit on free CPUs does not see that. The
// fleet therefore counts, for each shape s of the VMs that it was asked for, how
// many more of them fit (F_s). With p_s, the share of the requests that have this shape,
// F_s / p_s requests can come until it is exhausted. A placement costs
//
//	sum over shapes s of  (p_s / F_s)^2  times  the number of fits that it takes away
//
// which is the fall of the mean of F_s / p_s with weights that favour the shapes that are
// nearly exhausted. The idea of pricing a placement by the room that it takes
// from the shapes of a workload is that of fragmentation gradient descent (Weng et
// al., USENIX ATC 2023); the weights are this package's own. Compare: go test
// -run Packing ./internal/decide/schedule.
//
// # Speed
//
// A cost depends on one host and on the weights of the shapes. The fleet remembers it for
// each host and shape, and computes it again only for hosts that changed since, for the best
// ones, and for a few others in turn. Weights change more often than hosts: for a
// larger number of hosts in turn, the remembered fits are weighed again. A tournament of the
// hosts gives the best ones without a look at all. The shares of the shapes are
// recomputed after a number of requests that grows with their number.
package schedule
