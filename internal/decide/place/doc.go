// Package place places one guest on one host: it chooses nodes, CPUs and the
// memory from each node, and explains the choice.
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
// Among equal placements the one with the lowest node ids wins.
//
// # What is possible
//
// A cell uses one node: its vCPUs run on the node's CPUs, and its memory is on
// the node. Two cells never share a node. A cell may use the CPUs of a node
// without memory if its memory is on another node. It may use the memory of a
// node without CPUs (CXL, HBM) only if Limits.Nodes names that node. A guest
// without virtual NUMA that needs several nodes is divided into equal parts in
// the same way, and then configured with one cell.
//
// Only resources that no guest holds are free. A reservation counts in full,
// touched or not; observed use counts if it is greater (inventory.Holdings). fit
// documents the rules.
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
