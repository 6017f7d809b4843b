// Package place places one guest on one host: it chooses nodes, CPUs and the
// memory from each node, and explains the choice.
//
// # Objective
//
// Placements are compared by four figures; the first that differs decides:
//
//  1. overload: the demand for CPUs of a node beyond its CPUs, in whole CPUs, but no
//     more than the cell adds. If the guest may use only some of them (Limits.CPUs, a CPU
//     pool), it is the demand beyond these CPUs, and guests that may also use others count
//     only as far as the node has no others for them. A guest that may use only some CPUs
//     wants no more than these. The guest counts with all its vCPUs, others as
//     measured (package capacity). To avoid overload, the guest may use more
//     nodes, but only in parts of two vCPUs and more. If every such placement
//     overloads a node, figures 1 and 2 are one sum: a vCPU of overload counts 2, a
//     shared core 1, and each of several parts with a single vCPU 1;
//  2. sharing: vCPUs that would have to share a core with another of the same
//     guest because a node has fewer usable cores than the cell has vCPUs.
//     Capacity comes before locality. Not counted where the policy counts
//     threads, or the guest asks for siblings together;
//  3. the number of nodes;
//  4. the cost, a weighted sum of access, other guests' traffic to the same memory,
//     load, stranding, devices, caches and page pool growth: package cost.
//
// # Room for other guests
//
// The room of a host is the number of cells of typical sizes that fit: a whole node, half of it,
// a quarter and an eighth of its CPUs, with as large a part of its memory and with half
// of that; pairs of them on neighbours count 0.4 more. Each counts its share of a node's
// CPUs, divided by 8 for the mean over the sizes. The term wide room is the room that is
// lost, plus 0.1 for the unused rest of the node's CPUs and memory in shares: so ties are
// broken by what is left over. Nodes that are equal in that, too, are interchangeable.
//
// Load and room compete. Without overcommit no VM waits for promised CPUs, so room
// counts in full and the load of nodes that stay below 100 % 0.02. At an overcommit of 2 and
// more, load counts in full and room 0.1; in between, linearly.
//
// # Constraints
//
// A cell uses one node: its vCPUs run on the node's CPUs, and its memory is on
// the node. Two cells never share a node. A cell may use the CPUs of a node
// without memory if its memory is on another node. It may use the memory of a
// node without CPUs (CXL, HBM) only if Limits.Nodes names that node. A guest
// without virtual NUMA that needs several nodes is divided into equal parts in
// the same way, and then configured with one cell.
//
// Where the spec leaves the cells to placing (topology auto and off), they are equal.
// If equal cells do not fit, need more nodes, share more cores, or overload more, the cells are as
// even as a set of nodes allows: vCPUs evenly, each cell with memory in proportion to
// its vCPUs. If no set of that size holds the guest in proportion, memory that does
// not fit near its vCPUs goes to other nodes, also without vCPUs; the guest then sees no NUMA.
//
// Only resources that no guest holds are free. A reservation counts in full,
// touched or not; observed use counts if it is greater (inventory.Holdings). fit
// documents the rules.
//
// # Search
//
// For 1, 2, 3 ... nodes, the package divides the guest into cells and prices every
// node for every kind of cell; branch and bound then chooses the set. The choice of
// a node for each cell is a quadratic assignment problem. The nodes of a socket
// usually have equal distances to all others, so the search decides only which
// such group a cell uses. A linear assignment then selects the nodes within groups.
// It also bounds the missing cells, each with half its cheapest ways to the others
// (Gilmore and Lawler), and excludes groups by their cost above the bound. Of
// several interchangeable groups the search tries only one.
//
// Often the ways are nested: boards of sockets of nodes, where the way between two of these is the
// same for all their nodes. The access cost between two parts of the host then depends only on
// how many cells of each kind they hold. A table of the least cost by these numbers, for each
// node, each two parts and at last the host, is exact at once; the search uses it where it is small.
//
// It first ignores overload. Only if its answer overloads a node does it search again, for
// placements without overload, and then for the one with the least shortfall.
//
// The search is exact unless it reaches policy.SearchSteps, a limit that depends on
// no clock; Why then says how much better another placement could be. The package's
// tests compare it with plain enumeration. Uneven cells depend on the set of nodes:
// for them, the search examines every set that could hold the guest.
package place
