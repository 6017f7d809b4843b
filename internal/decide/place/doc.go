// Package place finds room for one guest on one host: which nodes, which
// CPUs, how much memory from where, and why there.
//
// # What is best
//
// Placements are compared by three figures, the first that differs decides:
//
//  1. sharing: vCPUs that would have to share a core with another of the same
//     guest because a node has fewer usable cores than the cell has vCPUs.
//     Capacity comes before locality. Not counted where the policy counts
//     threads, or the guest asks for siblings together;
//  2. the number of nodes;
//  3. the cost, a weighted sum of access, load, stranding, devices, caches and
//     page pool growth: package cost.
//
// What remains equal is interchangeable; the lowest node ids are taken then.
//
// # What is possible
//
// A cell lives on one node: its vCPUs on the node's CPUs, its memory on the
// node. Two cells never share a node. A node without memory lends its CPUs to
// a cell whose memory is elsewhere; a node without CPUs (CXL, HBM) gives
// memory only where Limits.Nodes names it. A guest that sees no NUMA but
// needs several nodes is divided in the same way, in equal parts, and then
// shown as one cell.
//
// Room is what nobody holds: reservations count whether touched or not, and
// what is seen counts where it is more (inventory.Holdings). Rules are
// written down at fit.
//
// # How
//
// For 1, 2, 3 ... nodes: the guest is divided into cells, every node is
// priced for every kind of cell, and branch and bound chooses the set. Which
// cell goes where is a quadratic assignment problem, but nodes of a socket are
// usually as far from everything as each other: the search decides only which
// such group a cell goes to. Nodes within groups follow from a linear
// assignment; it also bounds the missing cells, each with half its cheapest
// ways to the others (Gilmore and Lawler), and rules out groups by what they
// cost more than the bound. Groups that can be exchanged without any
// difference are tried once.
//
// The search is exact unless it runs into policy.SearchSteps, a limit that
// depends on no clock; Why then says how much better another placement could
// be. Package tests compare it with plain enumeration.
package place
