// Package room finds the cheapest moves of running guests after which a new guest
// fits that does not fit now.
//
// # Objective
//
// Of all plans it takes the one that copies the fewest bytes, then the one with the
// fewest moves. A guest moves at most once, alone, as a whole, and never with fewer
// cells than it shows.
//
// # Conditions
//
//   - Only guests move that balancing may move or advise (balance.Immovable), whose
//     memory can be moved, and that no other command holds.
//   - The room of the new guest is reserved before the first move. Each move must be
//     legal with this reservation, and with all guests where they are then
//     (balance.Legal).
//   - No move raises the CPU use of a node beyond policy.Balance.MaxNodeCPU, unless it
//     was higher there, or on a node that the guest leaves, before. A guest that was
//     not measured counts with all its vCPUs. If nothing was measured, only the policy's
//     overcommit bounds the vCPUs of a node, as in placing.
//   - A guest does not get more nodes than it has, nor nodes that are farther apart.
//
// # Search
//
// The search is best-first (A*): it extends the set of moves with the lowest bound of
// bytes by one move. The bound adds to the bytes of a set what must at least be copied
// to free the memory and the vCPUs that are still missing, on the node where that is
// cheapest. A set that could suffice by these sums is tried: each order of its moves,
// until all rules of placing hold after each of them and the new guest fits. The first
// set that passes is therefore the cheapest.
//
// On large hosts the search looks only at the guests of the nodes that are cheapest to
// empty, and at the roomiest targets. After a number of steps it prefers sets that are
// nearly enough to sets that copy little, and then gives up; no clock is involved.
// Plan.Proven says whether the result is the optimum. The package's tests
// compare it with plain enumeration.
package room
